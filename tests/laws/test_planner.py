"""What a plan promises: relaxations that work, fixed values that stay, one evaluation for searched and named configurations."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from models.errors import InputError
from planner.answer import Answer, Relaxation
from planner.plan import Options, plan
from planner.scenario_file import with_value
from planner.what_if import what_if
from tests.laws.scenarios import random_scenario
from tests.laws.support import examples, scenarios

QUICK = Options(explain=False, time_limit_s=120.0)
FOUND = ("optimal", "feasible")
PATH = "workload.traffic"


def planned(raw: dict[str, Any], options: Options = QUICK) -> Answer:
    """The plan; scenarios that are refused with an input error are skipped."""
    try:
        return plan(raw, options)
    except InputError:
        assume(condition=False)
        raise


def as_candidates(raw: dict[str, Any], answer: Answer, most: int = 4) -> dict[str, Any]:
    """The same scenario with an answer's configurations named instead of searched."""
    named = {f"n{one.id}": dict(one.settings) for one in answer.configurations[:most]}
    return {key: value for key, value in raw.items() if key != "search"} | {"candidates": named}


def tighter(relaxation: Relaxation) -> Any:
    """One printed unit less than a relaxation, or None where that is nothing."""
    number, _, unit = relaxation.value.partition(" ")
    if not unit:
        at_least = "≥" in relaxation.text
        return int(number) - 1 if at_least else int(number) + 1
    less = round(float(number) - 0.01, 2)
    return f"{less} {unit}" if less > 0 else None


def value_of(relaxation: Relaxation) -> Any:
    return relaxation.value if " " in relaxation.value else int(relaxation.value)


def check_relaxations(raw: dict[str, Any], answer: Answer) -> int:
    for one in answer.explanation.relaxations:
        assert plan(with_value(raw, one.path, value_of(one)), QUICK).status in FOUND, one
        less = tighter(one)
        if less:
            assert plan(with_value(raw, one.path, less), QUICK).status == "infeasible", (one, less)
    return len(answer.explanation.relaxations)


@examples(8)
@given(scenarios())
def test_relaxations_of_a_search_succeed_and_a_step_less_fails(raw):
    answer = planned(raw, Options(time_limit_s=120.0))
    assume(answer.status == "infeasible")
    check_relaxations(raw, answer)


@examples(8)
@given(st.integers(0, 2**48))
def test_relaxations_of_candidates_succeed_and_a_step_less_fails(seed):
    random = Random(seed)
    raw = random_scenario(random)
    loose = raw | {"workload": {"traffic": raw["workload"]["traffic"] | {"slo": {}}}}
    loose["hardware"] = {name: value for name, value in raw["hardware"].items() if name not in ("memory", "kv_budget")}
    answer = planned(loose)
    assume(answer.status in FOUND)
    named = as_candidates(raw, answer)
    assume(planned(named).status == "infeasible")
    check_relaxations(named, plan(named, Options()))


@examples(8)
@given(scenarios())
def test_a_named_configuration_scores_as_the_search_found_it(raw):
    answer = planned(raw)
    assume(answer.status in FOUND)
    named = plan(as_candidates(raw, answer), QUICK)
    searched = {f"n{one.id}": one for one in answer.configurations[:4]}
    for one in named.configurations:
        twin = searched[one.id]
        assert (one.objective, one.feasible, one.memory, one.time) == (twin.objective, twin.feasible, twin.memory, twin.time)
    assert named.configurations[0].objective == answer.configurations[0].objective


@examples(8)
@given(scenarios(), st.randoms(use_true_random=False))
def test_ranking_does_not_depend_on_the_order_of_candidates(raw, random):
    answer = planned(raw)
    assume(len(answer.configurations) > 1)
    named = as_candidates(raw, answer, most=6)
    items = list(named["candidates"].items())
    random.shuffle(items)
    shuffled = named | {"candidates": dict(items)}
    assert [one.id for one in plan(named, QUICK).configurations] == [one.id for one in plan(shuffled, QUICK).configurations]


@examples(8)
@given(scenarios())
def test_a_value_fixed_in_the_engine_block_is_in_every_configuration(raw):
    answer = planned(raw)
    assume(answer.configurations)
    names = [name for name in ("max_num_seqs", "kv_format", "prefix_sharing", "admission_limit") if name in raw["search"]]
    for name in names:
        value = answer.configurations[0].settings[name]
        assume(value is not None)
        search = {key: listed for key, listed in raw["search"].items() if key != name}
        fixed = raw | {"search": search, "engine": raw["engine"] | {name: value}}
        again = plan(fixed, QUICK)
        assert {one.settings[name] for one in again.configurations} == {value}
        assert again.configurations[0].objective == answer.configurations[0].objective


@examples(8)
@given(scenarios())
def test_what_if_with_the_same_value_changes_nothing(raw):
    planned(raw)
    burst = raw["workload"]["traffic"]["arrivals"]["burst"]
    seen = what_if(raw, [(f"{PATH}.arrivals.burst", burst)], QUICK)
    assert seen.winner[0] == seen.winner[1]
    assert {row.why for row in seen.configurations} <= {"unchanged"}
    assert seen.before.configurations == seen.after.configurations


@examples(8)
@given(scenarios(), st.sampled_from(["hardware.kv_budget", "hardware.memory", f"{PATH}.slo.e2e"]))
def test_more_room_or_time_never_makes_the_best_worse(raw, path):
    """A larger limit keeps every configuration, so the optimum cannot rise. Latency and goodput count good answers alike."""
    small, large = ("2 s", "20 s") if path.endswith("e2e") else ("20 GiB", "60 GiB")
    tight, loose = planned(with_value(raw, path, small)), planned(with_value(raw, path, large))
    if tight.status in FOUND:
        assert loose.status in FOUND
        first, second = tight.configurations[0].objective, loose.configurations[0].objective
        assert first is not None
        assert second is not None
        assert second <= first
