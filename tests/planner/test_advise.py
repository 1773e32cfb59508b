"""Advice over bursts and over rates: one belief with plans, commands that the tools accept, nothing to measure where all is known."""

import json
import re
import shlex
from pathlib import Path

import pytest

from planner.advise import advise
from planner.options import Options
from planner.plan import plan
from tests.planner.test_traffic_decision import OPTIONS
from tests.planner.test_traffic_decision import SCENARIO as RATES

BENCH = json.loads((Path(__file__).parents[1] / "data/launch/bench/vllm-0.33.0.json").read_text())
BURST = RATES | {
    "workload": {"chat": {"prompt_tokens": 4096, "output_tokens": 128, "arrivals": {"burst": 16}, "slo": {"e2e": "20 s"}}},
    "candidates": {"small": {"max_num_seqs": 8}, "large": {"max_num_seqs": 16}, "fp8": {"max_num_seqs": 16, "kv_format": "fp8_e4m3"}},
}


@pytest.mark.parametrize("scenario", [BURST, RATES], ids=["burst", "rates"])
def test_plans_and_advice_believe_the_same(scenario):
    answer, advice = plan(scenario, OPTIONS), advise(scenario, OPTIONS)
    assert {c.id: c.probability_best for c in answer.configurations if c.probability_best is not None} == advice.probability_best
    assert answer.order_decided is advice.decided
    assert advice.basis == "widths of the specification's parameters"


def accepted(command: str, flags: set[str]) -> None:
    given = [word for word in shlex.split(command) if word.startswith("--")]
    assert given
    assert set(given) <= flags, set(given) - flags


@pytest.mark.parametrize("scenario", [BURST, RATES], ids=["burst", "rates"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_commands_are_those_of_the_tools(scenario, engine):
    """A KV format that nobody measured is worth a run; every option of its commands exists (read from the wheel of vLLM 0.33)."""
    from typer.main import get_command

    from api.cli import build

    version = {"vllm": "0.33", "sglang": "0.5.10"}[engine]
    found = advise(scenario | {"engine": {"name": engine, "version": version}}, OPTIONS)
    importing = {option for p in get_command(build()).commands["import"].params for option in p.opts}  # type: ignore[attr-defined]
    for one in found.runs:
        _, load, stored = one.commands
        assert load.startswith("vllm bench serve ")
        accepted(load, set(BENCH["flags"]))
        for flag, choices in BENCH["choices"].items():
            assert re.search(f"{flag} (\\S+)", load).group(1) in choices
        assert ("--port 30000" in load) is (engine == "sglang")
        accepted(stored, importing)
    gains = [one.gain for one in found.runs]
    assert gains == sorted(gains)
    assert not gains or gains[-1] <= found.perfect_gain * 1.1 + 1e-3


def test_a_decided_order_needs_no_run():
    """An hour against a second: no parameter turns that."""
    far = BURST | {"candidates": {"one": {"max_num_seqs": 1}, "all": {"max_num_seqs": 16}}}
    found = advise(far, Options(explain=False))
    assert (found.first, found.second, found.decided, found.runs) == ("all", "one", True, ())
