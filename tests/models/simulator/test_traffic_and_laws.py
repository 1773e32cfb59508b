"""Drawn traffic has the moments that its description promises, and the simulator obeys queueing theory."""

import numpy as np
import pytest

from models.describe.traffic import TrafficClass
from models.errors import InputError
from models.kernels.step import LINEAR, StepModel
from models.knee import Engine, knee, on_time
from models.simulate import simulate
from models.simulation_summary import summarise
from models.simulation_types import (
    Cache,
    ContradictionError,
    Deadlines,
    EarlyStop,
    EngineParameters,
    Policy,
    RequestArrays,
    SimulationInputs,
    Status,
)
from models.traffic import generate

INF = float("inf")
SECOND = StepModel(LINEAR, 1e30, 1e30, 0, 0, 0, 0, 0, 0, fixed_s=1.0)  # every step takes a second
MILLI = StepModel(LINEAR, 1e30, 1e30, 0, 0, 0, 0, 0, 0, fixed_s=0.01, per_token_s=1e-5)


def traffic(**fields):
    return TrafficClass.parse({"requests": 4000, "prompt": 100, "output": 10, "arrivals": {"poisson": "5 /s"}} | fields)


@pytest.mark.parametrize(
    ("arrivals", "rate", "cv"),
    [
        ({"poisson": "5 /s"}, 5.0, 1.0),
        ({"gamma": "5 /s", "burstiness": 0.25}, 5.0, 2.0),
        ({"gamma": "5 /s", "burstiness": 4.0}, 5.0, 0.5),
        ({"even": "5 /s"}, 5.0, 0.0),
        ({"on_off": {"rate": "10 /s", "on": "10 s", "off": "10 s"}}, 5.0, None),
    ],
)
def test_arrivals_have_their_rate_and_burstiness(arrivals, rate, cv):
    times = generate({"a": traffic(arrivals=arrivals)}, seed=1).arrival
    gaps = np.diff(times)
    assert len(times) / times[-1] == pytest.approx(rate, rel=0.08)
    if cv is not None:
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1, abs=1e-9)
    else:
        assert not ((times % 20.0) > 10.0).any()


@pytest.mark.parametrize(
    ("lengths", "mean", "deviation"),
    [
        (300, 300, 0),
        ({"uniform": [100, 300]}, 200, 58.0),
        ({"lognormal": {"mean": 500, "cv": 0.5}}, 500, 250),
        ({"empirical": [10, 30]}, 20, 10),
    ],
)
def test_lengths_have_their_moments(lengths, mean, deviation):
    drawn = generate({"a": traffic(prompt=lengths)}, seed=2).prompt
    assert drawn.mean() == pytest.approx(mean, rel=0.05)
    assert drawn.std() == pytest.approx(deviation, rel=0.08, abs=1e-9)


def test_classes_merge_in_order_of_arrival_and_seeds_repeat():
    classes = {"chat": traffic(), "batch": traffic(prompt=2000, arrivals={"even": "1 /s"}, requests=500)}
    one, two, other = generate(classes, seed=3), generate(classes, seed=3), generate(classes, seed=4)
    assert (np.diff(one.arrival) >= 0).all()
    assert set(one.prompt[one.klass == 1]) == {2000}
    assert np.array_equal(one.arrival, two.arrival)
    assert not np.array_equal(one.arrival, other.arrival)


def test_clients_start_over_the_ramp_and_the_first_prompt_runs_alone():
    """Four clients 10 ms apart, steps of 10 ms + 10 us a token, prompts of 100: 11 ms for one prompt, 14 ms for four at once."""
    engine = EngineParameters(policy=Policy.CHUNKED, max_num_seqs=4)
    loops = [{"closed_loop": {"concurrency": 4} | ramp} for ramp in ({"ramp": "40 ms"}, {})]
    apart, together = (generate({"a": traffic(arrivals=loop, requests=8)}) for loop in loops)
    assert apart.arrival[:4] == pytest.approx([0.0, 0.01, 0.02, 0.03])
    assert apart.arrival[4:] == pytest.approx(np.zeros(4))  # the others follow at once
    assert simulate(apart, engine, MILLI).records["first"][0] == pytest.approx(0.011)
    assert simulate(together, engine, MILLI).records["first"][0] == pytest.approx(0.014)


def test_closed_loop_keeps_its_concurrency_and_little_holds():
    """L = lambda W (section 8.6.1): eight clients without pause keep eight requests in the system."""
    requests = generate({"a": traffic(arrivals={"closed_loop": {"concurrency": 8}}, requests=400)})
    result = simulate(requests, EngineParameters(max_num_seqs=4, token_budget=4096), MILLI)
    stay = result.records["last"] - result.records["arrival"]
    assert stay.sum() / result.makespan == pytest.approx(8.0, rel=0.02)


def test_one_server_waits_as_long_as_pollaczek_and_khinchine_say():
    """M/D/1: service of 1 s, load 0.7: mean wait rho / (2 (1 - rho)) = 1.1667 s (plus none for the step boundary: one step a request)."""
    random = np.random.default_rng(5)
    count = 60000
    requests = RequestArrays(np.cumsum(random.exponential(1 / 0.7, count)), np.full(count, 10), np.ones(count, np.int64))
    queue = summarise(simulate(requests, EngineParameters(Policy.FIXED, max_num_seqs=1), SECOND)).overall.queue
    assert queue.mean == pytest.approx(0.7 / (2 * 0.3), rel=0.05)


@pytest.mark.parametrize(("context", "hits"), [("append", True), ("rewrite", False), ("summarise", False)])
def test_turns_reuse_what_their_context_update_keeps(context, hits):
    session = {"turns": 4, "new_tokens": 64, "context": context, "think": "1 s"} | (
        {"summary_tokens": 32} if context == "summarise" else {}
    )
    requests = generate({"a": traffic(requests=3, prompt=160, output=16, session=session, arrivals={"even": "0.01 /s"})})
    result = simulate(requests, EngineParameters(max_num_seqs=4, token_budget=4096, kv_blocks=1000, cache=Cache.LRU), MILLI)
    assert (result.records["status"] == Status.FINISHED).all()
    if hits:
        # turn k finds floor((prompt + output - 1) / 16) blocks of the turn before
        expected = sum((160 + 80 * turn + 16 - 1) // 16 * 16 for turn in range(3)) * 3
        assert result.counters["hit_tokens"] == expected
    elif context == "rewrite":
        assert result.counters["hit_tokens"] == 0
    else:
        assert len(requests) == 3 * (4 + 3)


def test_the_knee_lies_inside_its_interval_and_below_capacity():
    """One request takes 0.1 s alone: no rate above 10 a second can be good for long."""
    service = StepModel(LINEAR, 1e30, 1e30, 0, 0, 0, 0, 0, 0, fixed_s=0.1)
    limits = Deadlines((INF,), (0.5,), (INF,), (INF,))

    def poisson(rate, seed):
        random = np.random.default_rng(seed)
        return RequestArrays(np.cumsum(random.exponential(1 / rate, 3000)), np.full(3000, 10), np.ones(3000, np.int64))

    inputs = SimulationInputs(EngineParameters(Policy.FIXED, 1), service, service, 1, 0)
    found = knee(Engine(inputs, limits, on_time(0.9)), poisson, low=0.5, high=40.0)
    assert found.bounded
    assert found.low <= found.rate <= found.high
    # M/D/1 tail: P(wait > t) = C exp(-theta t / s), rho (exp(theta) - 1) = theta, C = (1 - rho) / (rho exp(theta) - 1);
    # at four services it is 0.1 for rho = 0.75
    assert found.rate == pytest.approx(7.5, rel=0.06)


def test_where_no_rate_is_good_the_knee_is_nought():
    """A service of 0.1 s can never answer within 0.05 s: the slowest rate tried bounds what is known."""
    service = StepModel(LINEAR, 1e30, 1e30, 0, 0, 0, 0, 0, 0, fixed_s=0.1)
    limits = Deadlines((INF,), (0.05,), (INF,), (INF,))

    def even(rate, seed):
        return RequestArrays((np.arange(50) + 1) / rate, np.full(50, 10), np.ones(50, np.int64))

    inputs = SimulationInputs(EngineParameters(Policy.FIXED, 1), service, service, 1, 0)
    found = knee(Engine(inputs, limits), even, low=0.5, high=40.0)
    assert (found.low, found.rate, found.high, found.bounded) == (0.0, 0.0, 0.5, True)


@pytest.mark.parametrize(("count", "rate", "overload"), [(2, 1.0, False), (10, 5.0, False), (400, 5.0, False), (400, 20.0, True)])
def test_overload_is_more_than_the_noise_of_few_arrivals(count, rate, overload):
    """Ten requests a second can be served; the newest of a few always still waits."""
    service = StepModel(LINEAR, 1e30, 1e30, 0, 0, 0, 0, 0, 0, fixed_s=0.1)
    arrival = np.cumsum(np.random.default_rng(1).exponential(1 / rate, count))
    requests = RequestArrays(arrival, np.full(count, 10), np.ones(count, np.int64))
    assert summarise(simulate(requests, EngineParameters(Policy.FIXED, 1), service)).overload is overload


def test_a_hopeless_trial_stops_early():
    requests = RequestArrays(np.zeros(1000), np.full(1000, 100), np.full(1000, 50))
    limits = Deadlines((1e-3,), (INF,), (INF,), (INF,))
    result = simulate(requests, EngineParameters(max_num_seqs=4, token_budget=512), MILLI, deadlines=limits, early_stop=EarlyStop(100, 50))
    assert result.stopped_early
    assert (result.records["status"] == Status.FINISHED).sum() == 100


@pytest.mark.parametrize(
    "bad", [{"poisson": "0 /s"}, {}, {"poisson": "1 /s", "even": "1 /s"}, {"poisson": 3}, {"even": "1 /s", "burstiness": 2.0},
            {"gamma": "1 /s", "burstiness": 1e-6}],  # gaps below the smallest number: all at once, whatever the rate
)  # fmt: skip
def test_arrivals_that_mean_nothing_are_refused(bad):
    with pytest.raises(InputError):
        traffic(arrivals=bad)


def test_arrays_that_contradict_each_other_are_refused():
    one = np.ones(2, np.int64)
    with pytest.raises(ContradictionError):
        RequestArrays(np.zeros(3), one, one)
    with pytest.raises(InputError, match="order of time"):
        RequestArrays(np.array([1.0, 0.0]), one, one)
    with pytest.raises(InputError, match="finite"):
        RequestArrays(np.array([0.0, np.nan]), one, one)
    with pytest.raises(InputError, match="start at 1"):
        RequestArrays(np.zeros(2), 0 * one, one)


def test_a_budget_smaller_than_the_decoders_is_refused():
    with pytest.raises(ContradictionError, match="raise it to at least 512"):
        EngineParameters(max_num_seqs=128, draft_tokens=3, token_budget=256)
