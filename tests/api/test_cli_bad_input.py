"""Bad input: one clear line with path, value and way out, exit code 2, nothing on standard output, nothing written."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.cli import run
from models.errors import GoodputError
from planner.answer import Answer
from planner.plan import Options, plan
from planner.scenario_file import parse_raw, read_raw

ROOT = Path(__file__).parents[2]
SCENARIO, SEARCH = (str(ROOT / "scenarios" / name) for name in ("chapter8.yaml", "chapter8-search.yaml"))


def _refused(arguments, capsys):
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert len(err) < 1000
    return err


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("hardware.colour=red", "hardware.colour: unknown field"),
        ("hardware.memory=32", "hardware.memory: missing unit (got 32); write for example '12 GiB'"),
        ("hardware.memory=-3 GiB", "must not be negative"),
        ("hardware.memory=1e400 GiB", "absurdly large"),
        ("hardware.memory=200 GiB", "more than rtx-pro-6000-ws has"),
        ("hardware=3", "hardware: expected a mapping"),
        ("model=Qwen/Qwen3-9B", "did you mean Qwen/Qwen3-8B"),
        ("model=3", "model: "),
        ("workload=3", "workload: expected a mapping"),
        ("engine=3", "engine: expected a mapping"),
        ("engine.fixed=3", "fixed must be a mapping"),
        ("engine.name=vlm", "did you mean vllm"),
        ("candidates=[1,2]", "candidates: expected a mapping"),
        ("candidates.A.max_num_seqs=lots", "candidates.A.max_num_seqs: "),
        ("candidates.A.kv_format=bf17", "did you mean bf16?"),
        ("candidates.A.colour=1", "unknown decision variable"),
        ("workload.long.output_tokens=.nan", "workload.long.output_tokens: "),
        ("workload.long.slo.e2e=.inf", "not a quantity"),
        ("workload.long.slo.e2e=1e-300 s", "between 1 µs and 10^9 s"),
        ("workload.long.slo.e2e=1e300 s", "between 1 µs and 10^9 s"),
        ("workload.long.quality.correct=1.5", "less than or equal to 1"),
        ("objective=[]", "objective: "),
        ("objective=7", "objective: "),
        ("calibration=foo", "unknown calibration"),
        ("nosuch.path=3", "unknown field"),
        ("a..b=3", "is not a path of names"),
    ],
)
def test_a_bad_value_is_one_line(assignment, words, capsys):
    assert words in _refused(["plan", SCENARIO, "--set", assignment], capsys)


@pytest.mark.parametrize(
    "search",
    [
        "5", "{max_num_seqs: lots}", "{max_num_seqs: []}", "{max_num_seqs: [1.5]}", "{max_num_seqs: {min: 1, max: 1000000000000}}",
        "{kv_format: [7]}", "{max_num_seqs: [1000000000000000000000000]}", "{nonsense: [1]}",
    ],
)  # fmt: skip
def test_a_bad_search_block_is_one_line(search, capsys):
    assert "search" in _refused(["plan", SEARCH, "--set", f"search={search}"], capsys)


@pytest.mark.parametrize("command", ["plan", "simulate"])
@pytest.mark.parametrize("seed", ["-1", "99999999999999999999"])
def test_a_seed_out_of_range_is_one_line(command, seed, capsys):
    assert "--seed" in _refused([command, SCENARIO, "--seed", seed], capsys)


@pytest.mark.parametrize(
    "text",
    [
        b"\x00\xff\xfe\x01", b"[" * 100_000, b"", b"just words", b"a: &a [x]\nb: *a\n", b"a: 1\na: 2\n",
        b"model: !!python/name:os.system\n", b"? [a]\n: 3\n", b"1: 2\n",
    ],
)  # fmt: skip
def test_a_file_that_is_no_scenario_is_one_line(text, tmp_path, capsys, monkeypatch):
    file = tmp_path / "odd.yaml"
    file.write_bytes(text)
    _refused(["plan", str(file)], capsys)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text)))
    _refused(["plan", "-"], capsys)
    assert [p.name for p in tmp_path.iterdir()] == ["odd.yaml"]


def test_few_lines_of_aliases_cannot_fill_the_memory(tmp_path, capsys):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    assert "aliases are not accepted (line 2)" in _refused(["plan", str(tmp_path / "bomb.yaml")], capsys)


def test_folders_missing_and_oversized_files_are_one_line(tmp_path, capsys):
    _refused(["plan", str(tmp_path)], capsys)
    _refused(["plan", str(tmp_path / "missing.yaml")], capsys)
    (tmp_path / "large.yaml").write_bytes(b"#" * (1 << 21))
    assert "larger than 1 MiB" in _refused(["plan", str(tmp_path / "large.yaml")], capsys)


def test_truncated_model_files_are_one_line(tmp_path, capsys):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "qwen3", "hidden_size": 4096})[:-7])
    assert "config.json: not valid JSON" in _refused(["plan", SCENARIO, "--set", f"model={config}"], capsys)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(b"GGUF\x03\x00\x00\x00")
    assert "cut.gguf: " in _refused(["model", str(cut)], capsys)


@pytest.mark.parametrize(
    "arguments",
    [
        ["model", "nosuch"], ["model", "qwen3-8b", "--tokens", "-1"], ["model", "qwen3-8b", "--tp", "7"],
        ["model", "qwen3-8b", "--new", "-5"],
        ["model", "qwen3-8b", "--kv-format", "x"], ["what-if", SCENARIO], ["what-if", SCENARIO, "--sweep", "hardware.kv_budget="],
        ["plan", SCENARIO, "--time-limit", "nan"], ["plan", SCENARIO, "--time-limit", "-1"], ["plan", SCENARIO, "--calibration", "nosuch"],
    ],
)  # fmt: skip
def test_bad_options_are_one_line(arguments, capsys):
    _refused(arguments, capsys)


def _answered_or_refused(attempt, kind):
    """Any other exception fails the test."""
    try:
        found = attempt()
    except GoodputError as error:
        message = str(error)
    else:
        assert isinstance(found, kind)
        return
    assert "\n" not in message
    assert len(message) < 1000


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=6), st.just([]), st.just({}), st.just([None, 1]),
    st.just({"min": 1, "max": 4}), st.sampled_from(["12 GiB", "7 s", "1e-9 s", "1e300 GiB", "28/32", "1/0", "-1", "nan", "none", "latest"]),
)  # fmt: skip


def _paths(tree, before=()):
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield (*before, key)
        yield from _paths(value, (*before, key))


def _changed(tree, path, value, how):
    copy = {k: v for k, v in tree.items() if not (how == "drop" and path == (k,))}
    if len(path) > 1:
        copy[path[0]] = _changed(tree[path[0]], path[1:], value, how)
    elif how == "set":
        copy[path[0]] = value
    elif how == "add":
        copy[str(value)] = value
    return copy


@pytest.mark.parametrize("name", [SCENARIO, SEARCH])
@settings(max_examples=120, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_mutation_is_an_answer_or_an_error_of_ours(name, data):
    raw = read_raw(name)
    if name == SEARCH:
        raw["search"] = {"max_num_seqs": [8, 16], "kv_format": ["bf16"], "draft": ["none", "dflash"], "max_num_batched_tokens": [8192]}
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(list(_paths(raw))))
        raw = _changed(raw, path, data.draw(LEAVES), data.draw(st.sampled_from(["set", "drop", "add"])))
    _answered_or_refused(lambda: plan(raw, Options(explain=False, prove=False)), Answer)


@given(st.text(max_size=80))
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
def test_any_text_is_a_mapping_or_an_error_of_ours(text):
    _answered_or_refused(lambda: parse_raw(text), dict)
