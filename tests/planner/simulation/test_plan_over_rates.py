"""Plans over simulated traffic: reproducible on any number of workers, early stopping counted, relaxations that hold, P(SLO)."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.describe.configuration import Configuration
from models.errors import InputError
from models.units import parse_rate, parse_seconds
from planner.plan import Options, plan
from planner.scenario_file import parse_scenario, read_raw, with_value
from planner.traffic.load import load
from planner.traffic.probability import confidence, draws
from planner.traffic.trial import run

RATE = read_raw(Path(__file__).parents[3] / "scenarios" / "chat-rate.yaml")
SMALL = Options(trials=20, requests=200, explain=False)
FIXED = {k: v for k, v in RATE.items() if k != "search"}
NAMED = FIXED | {
    "candidates": {
        "few": {"max_num_seqs": 16, "max_num_batched_tokens": 2048}, "many": {"max_num_seqs": 256, "max_num_batched_tokens": 2048},
    }
}  # fmt: skip


def plain(answer):
    return answer.model_dump(exclude={"elapsed_s"})


@pytest.fixture(scope="module")
def searched():
    return plan(RATE, SMALL)


def test_same_seed_same_answer_on_one_worker_and_on_two(searched):
    one, two = (plan(RATE, replace(SMALL, workers=workers)) for workers in (1, 2))
    assert plain(one) == plain(two) == plain(searched)


def test_the_search_says_what_it_tried(searched):
    trials = searched.trials
    assert (trials.tried, trials.requests, trials.seed) == (20, 200, 0)
    assert 0 < trials.pruned < 20
    values = [value for _, value in trials.history]
    assert values == sorted(values, reverse=True)
    assert searched.configurations[0].objective == values[-1]
    assert trials.closed_form >= values[-1]  # the closed form's choices are among the trials
    assert trials.gain == pytest.approx(1 - values[-1] / trials.closed_form)


def test_the_answer_is_its_configuration_simulated_again(searched):
    scenario = parse_scenario(RATE)
    traffic = load(scenario, Options(requests=200))
    first = searched.configurations[0]
    trial = run(traffic, Configuration.model_validate(first.settings), seed=0)
    assert not trial.late
    assert trial.values["gpu_seconds_per_good_request"] == first.objective


def test_an_early_stop_is_never_a_configuration_that_is_on_time():
    """Whatever is abandoned after a tenth is late in full."""
    tight = with_value(RATE, "workload.chat.arrivals.rate", "20 /s")
    traffic = load(parse_scenario(tight), Options(requests=400))
    abandoned = 0
    for seqs in (8, 16, 32, 128):
        for budget in (512, 4096):
            given = plan(
                FIXED | {"candidates": {"x": {"max_num_seqs": seqs, "max_num_batched_tokens": budget}}}, replace(SMALL, requests=50)
            )
            one = Configuration.model_validate(given.configurations[0].settings)
            if run(traffic, one, seed=0, stop=True) is None:
                abandoned += 1
                assert run(traffic, one, seed=0).late
    assert abandoned


def test_probability_falls_with_the_deadline_and_intervals_hold_the_median():
    chances = []
    for limit in ("60 ms", "150 ms", "2 s"):
        raw = with_value(with_value(NAMED, "workload.chat.slo.ttft.limit", limit), "workload.chat.arrivals.rate", "4 /s")
        one = next(r for r in plan(raw, SMALL).configurations if r.id == "many")
        chances.append(one.slo_probability)
        low, high = one.intervals["ttft_p95_s"]
        assert low < one.time.ttft_s.p95 < high
    assert chances == sorted(chances)
    assert chances[0] < 0.3
    assert chances[-1] > 0.9


def test_a_slower_engine_is_the_same_traffic_on_a_faster_clock():
    """Times of the slowed traffic, stretched back, are those of an engine whose every step takes twice as long."""
    traffic = load(parse_scenario(RATE), Options(requests=100))
    configuration = Configuration.model_validate(plan(NAMED, SMALL).configurations[0].settings)
    slowed = run(traffic.slowed(2.0), configuration, seed=0)
    inputs = slowed.inputs
    from models.simulate import simulate

    def doubled(model):
        times = ("host_s", "host_per_sequence_s", "collective_s", "collective_per_token_s", "conversion_s_per_byte")
        half = {"peak_flops": model.peak_flops / 2, "peak_bytes_per_s": model.peak_bytes_per_s / 2}
        return model._replace(**half, **{name: 2 * getattr(model, name) for name in times})

    assert inputs.prefill.form == 1
    direct = simulate(traffic.requests, inputs.engine, doubled(inputs.prefill), doubled(inputs.decode), seed=0)
    np.testing.assert_allclose(slowed.result.records["last"] * 2, direct.records["last"], rtol=1e-9)


def test_without_uncertainty_the_probability_is_the_share_of_draws_on_time():
    scenario = parse_scenario(RATE)
    traffic = load(scenario, Options(requests=100))
    sure = traffic.case.calibration.model_copy(
        update={"uncertainty": traffic.case.calibration.uncertainty.model_copy(update={"prefill_log_sd": 0.0, "decode_log_sd": 0.0})}
    )
    exact = replace(traffic, cases={name: replace(case, calibration=sure) for name, case in traffic.cases.items()})
    one = Configuration.model_validate(plan(NAMED, SMALL).configurations[0].settings)
    drawn = draws(exact, scenario, 100, 0, 4)
    on_time = [not run(each, one, seed=seed).late for seed, each in drawn]
    assert confidence(drawn, one).probability == sum(on_time) / 4


def test_a_relaxed_deadline_or_rate_is_met_by_the_configuration_named():
    for path, value in (("slo.ttft.limit", "10 ms"), ("arrivals.rate", "60 /s")):
        raw = with_value(NAMED, f"workload.chat.{path}", value)
        answer = plan(raw, replace(SMALL, explain=True))
        assert answer.status == "infeasible"
        assert answer.explanation.conflicts == ("chat.ttft",)
        assert answer.explanation.relaxations
        for one in answer.explanation.relaxations:
            again = plan(with_value(raw, one.path, one.value), SMALL)
            assert again.winner is not None
            assert next(r for r in again.configurations if r.id == one.winner).feasible


def test_a_smaller_deadline_or_higher_rate_than_the_relaxed_one_is_not_met():
    raw = with_value(NAMED, "workload.chat.arrivals.rate", "60 /s")
    by_path = {one.path: one.value for one in plan(raw, replace(SMALL, explain=True)).explanation.relaxations}
    limit, rate = by_path["workload.chat.slo.ttft.limit"], by_path["workload.chat.arrivals.rate"]
    assert plan(with_value(raw, "workload.chat.slo.ttft.limit", f"{parse_seconds(limit) * 0.98} s"), SMALL).winner is None
    assert plan(with_value(raw, "workload.chat.arrivals.rate", f"{parse_rate(rate) * 1.05} /s"), SMALL).winner is None


def test_the_winner_along_the_rate_is_the_winner_of_that_rate():
    points = plan(NAMED, replace(SMALL, explain=True)).explanation.switch_points
    assert points
    for point in points:
        answer = plan(with_value(NAMED, point.path, point.value.replace(" /s", "") + " /s"), SMALL)
        won = answer.winner.id if answer.winner else None
        near = {points[max(0, points.index(point) - 1)].winner, point.winner}
        assert won in near  # the printed rate is rounded: it may stand on either side


def test_several_objectives_give_an_undominated_front():
    raw = RATE | {"objective": ["gpu_seconds_per_good_request", "latency"]}
    answer = plan(raw, replace(SMALL, trials=40))
    rows = {one.id: tuple(one.objectives.values()) for one in answer.configurations if one.feasible}
    assert answer.pareto_front
    for label, mine in rows.items():
        beaten = any(all(o <= m for o, m in zip(other, mine, strict=True)) and other != mine for other in rows.values())
        assert beaten != (label in answer.pareto_front)


@pytest.mark.parametrize(("options", "words"), [({"trials": 0}, "--trials"), ({"requests": 0}, "--requests")])
def test_sizes_that_mean_nothing_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        plan(RATE, replace(SMALL, **options))
