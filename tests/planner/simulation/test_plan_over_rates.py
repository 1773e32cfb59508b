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
from planner.traffic.ties import tiers
from planner.traffic.trial import Abandoned, attempt, run

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


def test_a_plan_says_which_requests_can_never_fit(tmp_path):
    (tmp_path / "day.csv").write_text("arrival,prompt,output\n0,1000000,10\n" + "".join(f"{i},200,20\n" for i in range(1, 40)))
    chat = {
        "arrivals": {"trace": str(tmp_path / "day.csv")},
        "slo": {"ttft": {"limit": "1 s", "percentile": 95}},
        "quality": {"correct": 1.0},
    }
    answer = plan(NAMED | {"workload": {"chat": chat}}, SMALL)
    assert answer.status == "feasible"
    assert any("1 request can never fit" in note for note in answer.warnings)


def test_no_deadline_of_a_winner_is_used_beyond_its_percentile():
    """Half of the first tokens may be later than the median's deadline, which the winner meets all the same."""
    raw = with_value(RATE, "workload.chat.slo", {"ttft": {"limit": "100 ms", "percentile": 50}})
    answer = plan(raw, Options(trials=10, requests=300, explain=False))
    best = answer.configurations[0]
    assert best.feasible
    assert best.time.ttft_s.p95 > 0.1
    assert answer.explanation.binding == (f"chat.ttft ({best.time.ttft_s.p50 / 0.1:.0%} used)",)


def test_the_search_says_what_it_tried(searched):
    trials = searched.trials
    assert (trials.tried, trials.requests, trials.seed) == (20, 200, 0)
    assert 0 < trials.pruned < 20
    values = [value for _, value in trials.history]
    assert values == sorted(values, reverse=True)
    assert min(one.objective for one in searched.configurations) == values[-1]
    assert trials.closed_form >= values[-1]  # the closed form's choices are among the trials
    assert trials.gain == pytest.approx(1 - searched.configurations[0].objective / trials.closed_form)
    assert trials.closed_form == next(one.objective for one in searched.configurations if one.id == trials.closed_form_id)


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
            tried = attempt(traffic, one, seed=0)
            if isinstance(tried, Abandoned):
                abandoned += 1
                assert tried.shortfall > 0
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


@pytest.mark.parametrize("raw", [NAMED, RATE], ids=["named", "searched"])
@pytest.mark.parametrize(("path", "value"), [("slo.ttft.limit", "10 ms"), ("arrivals.rate", "60 /s")])
def test_a_relaxed_deadline_or_rate_is_met_when_it_is_planned_again(raw, path, value):
    raw = with_value(raw, f"workload.chat.{path}", value)
    answer = plan(raw, replace(SMALL, explain=True))
    assert answer.status == "infeasible"
    assert answer.explanation.conflicts == ("chat.ttft",)
    assert f"workload.chat.{path}" in {one.path for one in answer.explanation.relaxations}
    for one in answer.explanation.relaxations:
        again = plan(with_value(raw, one.path, one.value), SMALL)
        assert again.winner is not None
        if "candidates" in raw:
            assert next(r for r in again.configurations if r.id == one.winner).feasible


def test_a_smaller_deadline_or_higher_rate_than_the_relaxed_one_is_not_met():
    for path, value, parse, factor, unit in (
        ("slo.ttft.limit", "10 ms", parse_seconds, 0.98, "s"), ("arrivals.rate", "60 /s", parse_rate, 1.05, "/s")
    ):  # fmt: skip
        raw = with_value(NAMED, f"workload.chat.{path}", value)
        by_path = {one.path: one.value for one in plan(raw, replace(SMALL, explain=True)).explanation.relaxations}
        shown = parse(by_path[f"workload.chat.{path}"])
        assert plan(with_value(raw, f"workload.chat.{path}", f"{shown * factor} {unit}"), SMALL).winner is None


def test_overload_is_said_with_the_growth_of_the_queue_and_offers_no_deadline():
    """At 60 a second against a capacity c, the queue grows by 60 - c; longer waiting would not help in the long run."""
    answer = plan(with_value(NAMED, "workload.chat.arrivals.rate", "60 /s"), replace(SMALL, requests=600, explain=True))
    for one in answer.configurations:
        assert one.simulated.overload
        assert 60 * 0.6 < one.simulated.queue_growth_per_s < 60
    assert any("overload" in note for note in answer.warnings)
    assert {one.path for one in answer.explanation.relaxations} == {"workload.chat.arrivals.rate"}


def test_an_infeasible_search_shows_the_nearest_first():
    answer = plan(with_value(RATE, "workload.chat.slo.ttft.limit", "10 ms"), SMALL)
    assert answer.winner is None
    late = [one.violations[0].value for one in answer.configurations]
    assert len(late) > 3
    assert late[0] == min(late)


def test_the_winner_along_the_rate_is_the_winner_of_that_rate():
    points = plan(NAMED, replace(SMALL, explain=True)).explanation.switch_points
    assert points
    for point in points:
        answer = plan(with_value(NAMED, point.path, point.value.replace(" /s", "") + " /s"), SMALL)
        won = {answer.winner.id, *answer.explanation.undecided} if answer.winner else {None}
        near = {points[max(0, points.index(point) - 1)].winner, point.winner}
        assert won & near  # the printed rate is rounded: it may stand on either side


def test_ties_go_to_the_probability_then_to_the_percentile_then_to_the_simpler_one():
    """Everybody is on time: the objective differs only by what happens after the last arrival."""
    raw = FIXED | {
        "candidates": {
            "z": {"max_num_seqs": 256, "max_num_batched_tokens": 8192}, "limited": {"max_num_seqs": 256, "max_num_batched_tokens": 8192,
            "admission_limit": 1000}, "slow": {"max_num_seqs": 256, "max_num_batched_tokens": 16384, "prefill_chunk": 64},
        }
    }  # fmt: skip
    answer = plan(with_value(raw, "workload.chat.arrivals.rate", "4 /s"), SMALL)
    order = [one.id for one in answer.configurations]
    assert order.index("z") < order.index("limited")  # the same run with one setting less
    assert set(answer.explanation.undecided) == set(order[1:])
    assert any("is not decided" in note for note in answer.warnings)
    chances = {one.id: one.slo_probability for one in answer.configurations}
    assert all(chances[order[0]] >= chance - 0.02 for chance in chances.values())


def test_tiers_hold_what_is_the_same_as_their_first():
    assert tiers([3.0, 1.0, 1.05, 1.2, 3.02], lambda v: v, lambda first, one: one <= first * 1.1) == [[1.0, 1.05], [1.2], [3.0, 3.02]]


def test_an_interruption_keeps_the_best_so_far():
    def stop(done, _of, _best):
        if done >= 12:
            raise KeyboardInterrupt

    answer = plan(RATE, replace(SMALL, progress=stop))
    assert (answer.trials.tried, answer.trials.wanted, answer.trials.interrupted) == (12, 20, True)
    assert answer.termination == "interrupted"
    assert answer.winner is not None


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
