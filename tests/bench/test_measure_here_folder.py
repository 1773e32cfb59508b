"""What ``make measure-here`` keeps between runs, and what it makes anew: no engine is started."""

import json
from pathlib import Path

import pytest

from bench import measure_here
from bench.here.loads import LOADS
from bench.measure_here import Folder

MODEL = "model.gguf"


@pytest.fixture
def started(monkeypatch):
    """Arguments of each server that is started in a test; the server answers how many were started before it."""
    found = []

    def python(_interpreter, _script, _asked, answer, _dashes, *arguments):
        Path(answer).write_text(json.dumps({"number": len(found)}))
        found.append(arguments)

    monkeypatch.setattr(measure_here, "python", python)
    return found


def test_a_load_is_served_again_only_with_other_arguments(tmp_path, started):
    """Rank 1 of another plan has the same name, but is another server."""
    folder, load = Folder(tmp_path, quick=True), LOADS[0]
    first = folder.serve(load, load.arguments(MODEL))
    assert Folder(tmp_path, quick=True).serve(load, load.arguments(MODEL)) == first
    assert len(started) == 1
    other = [*load.arguments(MODEL), "--ubatch-size", "64"]
    assert folder.serve(load, other) != first
    assert len(started) == 2


def test_a_calibration_never_outlives_its_run(tmp_path):
    """Runs of other step times in the store would be fitted together with the new ones."""
    (Folder(tmp_path, quick=True).goodput.home / "goodput.db").write_text("runs of an earlier measurement")
    assert not any(Folder(tmp_path, quick=True).goodput.home.iterdir())
    assert Folder(tmp_path, quick=True).steps != Folder(tmp_path, quick=False).steps
