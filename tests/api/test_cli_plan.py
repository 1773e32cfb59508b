"""``goodput plan`` from outside: the same answer as the use case, plain text through a pipe, exit codes."""

import json
from pathlib import Path

import pytest

from api.cli import run
from planner.plan import plan
from planner.scenario_file import read_raw

SCENARIO = str(Path(__file__).parents[2] / "scenarios" / "chapter8.yaml")


def _without_time(text):
    found = json.loads(text)
    assert found.pop("elapsed_s") > 0
    return found


def test_json_is_the_answer_of_the_use_case(capsysbinary):
    assert run(["plan", SCENARIO, "--json"]) == 0
    out, err = capsysbinary.readouterr()
    assert _without_time(out) == _without_time(plan(read_raw(SCENARIO)).model_dump_json())
    assert err == b""


def test_the_table_names_the_winner_the_reasons_and_the_command(capsys):
    assert run(["plan", SCENARIO]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert all(line == line.rstrip() for line in out.splitlines())
    for words in (
        "✓ first",
        "9.02 GiB",
        "e2e 9.02 s against 7.00 s",
        "no q8_0 KV",
        "vllm serve Qwen/Qwen3-8B",
        "calibration chapter8 version 1",
    ):
        assert words in " ".join(out.split()), words


def test_an_infeasible_plan_is_an_answer_unless_asked_to_fail(capsys):
    changed = ["plan", SCENARIO, "--set", "hardware.kv_budget=6GiB"]
    assert run(changed) == 0
    assert "kv_budget ≥ 9.02 GiB" in capsys.readouterr().out
    assert run([*changed, "--fail-if-infeasible"]) == 1


@pytest.mark.parametrize(
    "arguments", [[], ["plan"], ["nonsense"], ["plan", SCENARIO, "--nonsense"], ["plan", SCENARIO, "--time-limit", "x"]]
)
def test_wrong_usage_exits_2(arguments, capsys):
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert err
