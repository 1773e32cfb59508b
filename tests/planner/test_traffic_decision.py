"""Chances over traffic against what simulations of slower engines say one by one, and against the burst's own belief."""

import math

import numpy as np
import pytest

from planner.belief import believe, slopes
from planner.decision import best_chances
from planner.options import Options
from planner.plan import plan
from planner.scenario_file import parse_scenario
from planner.traffic.decision import SLOWDOWNS, traffic_options
from planner.traffic.load import load
from planner.traffic.trial import run
from planner.weigh import weigh

SCENARIO = {
    "model": "Qwen/Qwen3-8B", "hardware": {"device": "rtx-pro-6000-ws"}, "engine": {"name": "vllm", "version": "0.23"},
    "workload": {"chat": {"prompt_tokens": 1024, "output_tokens": 128, "arrivals": {"rate": "6 /s"}, "quality": {"correct": 1.0},
                          "slo": {"ttft": {"limit": "1500 ms", "percentile": 95}, "tpot": {"limit": "80 ms", "percentile": 95}}}},
    "candidates": {"small": {"max_num_seqs": 8}, "large": {"max_num_seqs": 64}, "fp8": {"max_num_seqs": 64, "kv_format": "fp8_e4m3"}},
    "calibration": "none",
}  # fmt: skip
OPTIONS = Options(requests=200, explain=False, workers=1)


@pytest.fixture(scope="module")
def weighed():
    answer = plan(SCENARIO, OPTIONS)
    traffic = load(parse_scenario(SCENARIO), OPTIONS)
    options = traffic_options(traffic, answer.configurations, OPTIONS)
    return answer, traffic, options, weigh(traffic.case, options, None)


def test_worth_is_the_inverse_objective_of_a_slower_engine(weighed):
    """An engine slower by s: every step takes s times as long, so busy seconds for each good request grow by it."""
    _, traffic, options, _ = weighed
    one = options[0]
    for at in (2, 4, 6):
        trial = run(traffic.slowed(math.exp(SLOWDOWNS[at])), one.configuration, seed=0)
        expected = 0.0 if trial.late else 1 / (trial.values["gpu_seconds_per_good_request"] * math.exp(SLOWDOWNS[at]))
        assert one.worth[at] == pytest.approx(expected)
        assert one.value(np.array([SLOWDOWNS[at], SLOWDOWNS[at]])) == pytest.approx(expected)  # both phases slower by the same
    assert one.value(np.array([5.0, 5.0])) == one.worth[-1]


def test_chances_are_those_of_drawn_engines(weighed):
    """P(best) from drawn parameters, each option valued by hand at its own slowdown."""
    answer, traffic, options, found = weighed
    known = believe(traffic.case, None, [o.configuration for o in options])
    assert found.believed.names == known.names
    assert any(name.startswith("KV fp8") for name in known.names)  # the format has a factor of its own
    draws = np.random.default_rng(5).multivariate_normal(np.zeros(len(known.names)), known.belief.covariance, 4000)
    values = np.stack([o.value(draws @ slopes(o.case, o.configuration, known.names).T) for o in options], axis=1)
    expected = dict(zip((o.label for o in options), best_chances(values), strict=True))
    assert found.chances == pytest.approx(expected, abs=0.04)
    assert {c.id: c.probability_best for c in answer.configurations} == {c.id: found.chances.get(c.id) for c in answer.configurations}


def test_a_status_that_the_data_do_not_decide_is_said(weighed):
    answer, _, _, found = weighed
    assert answer.order_decided is found.order.decided
    assert any("not decided by the data" in w for w in answer.warnings) is (answer.order_decided is False)


def test_slower_phases_count_by_their_share(weighed):
    _, _, options, _ = weighed
    for one in options:
        assert one.shares.sum() == pytest.approx(1.0)
        assert (one.shares > 0).all()
        assert 1 <= one.case.requests <= one.configuration.max_num_seqs
