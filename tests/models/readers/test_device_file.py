"""One's own device from a file: the catalogue's figures written in a file are the same device; what is wrong is one clear line."""

import pytest

from models.catalog.devices import load_device
from models.errors import FileFormatError, InputError, UnitError, UnknownNameError

CPU = {
    "name": "one core", "memory": "8 GiB", "bandwidth": "36 GB/s", "peaks": "{bf16: 66 GFLOP/s}", "source": "measured",
    "date": "2026-11-29",
}  # fmt: skip


def written(folder, **changes):
    said = {key: value for key, value in (CPU | changes).items() if value is not None}
    path = folder / "cpu.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in said.items()))
    return path


def test_units_are_read_and_the_id_is_the_whole_path(tmp_path, monkeypatch):
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    device = load_device("cpu.yaml")
    assert (device.id, device.name) == (str(tmp_path / "cpu.yaml"), "one core")
    assert (device.memory_bytes, device.memory_bandwidth_bytes_per_s, device.peak("bf16")) == (8 << 30, 36e9, 66e9)
    assert device.sources == ("measured, 2026-11-29",)
    assert device.host_link_bytes_per_s is None
    assert load_device(device.id) == device


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"memory": "8"}, UnitError, "memory.*missing unit"),
        ({"memory": "0 B"}, InputError, "memory.*greater than 0"),
        ({"bandwidth": "36 GB"}, UnitError, "bandwidth.*unknown unit"),
        ({"peaks": "{bf16: 66}"}, UnitError, "peaks.bf16.*missing unit"),
        ({"peaks": "{}"}, InputError, "peaks"),
        ({"peaks": "{fp32: 66 GFLOP/s}"}, InputError, "peaks.fp32"),
        ({"source": None}, InputError, "source.*missing"),
        ({"date": "yesterday"}, InputError, "date"),
        ({"flops": "1 GFLOP/s"}, UnknownNameError, "unknown field"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_key(tmp_path, changes, error, says):
    path = written(tmp_path, **changes)
    with pytest.raises(error, match=says) as caught:
        load_device(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileFormatError, match=r"my\.yaml.*cannot be read"):
        load_device(str(tmp_path / "my.yaml"))
