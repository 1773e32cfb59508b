"""Load tests as evidence: an independent per-iteration simulator serves loads with a known step model; the fit predicts other loads."""

import math

import numpy as np
import pytest

from models.calibration.served_run import PER_TOKEN, ServedRun, from_runs
from models.calibration.step_fit import fit_steps
from models.catalog.step_prior import SINGLE, step_prior
from models.errors import CalibrationError
from models.kernels.step import PHYSICAL, StepModel
from models.simulation_types import Cache, EngineParameters, Policy, PrefixTree, RequestArrays
from tests.oracles.scheduler_oracle import Oracle

# an 8-billion-parameter dense model on a device of 500 TFLOP/s and 1.8 TB/s
TEMPLATE = StepModel(PHYSICAL, 5e14, 1.8e12, 1.4e10, 1.2e9, 6e5, 1.6e10, 0.0, 0.0)
TRUTH = TEMPLATE._replace(matmul_efficiency=0.55, attention_efficiency=0.35, bandwidth_efficiency=0.7, half_rows=20.0, overlap=0.4,
                          host_s=6e-3, host_per_sequence_s=2e-5, host_overlap=0.7)  # fmt: skip
REQUEST_S = 0.012
KV = 147456
NAMES = (*SINGLE, "request_s")
RNG = np.random.default_rng


def engine(**more):
    return EngineParameters(policy=Policy.CHUNKED, max_num_seqs=32, token_budget=2048, kv_bytes_per_token=KV, block_tokens=16, **more)


def traffic(seed, *, rate=None, clients=None, prompt=512, output=64, count=60):
    rng = RNG(seed)
    lengths = rng.integers(prompt // 2, prompt * 3 // 2, count), rng.integers(output // 2, output * 3 // 2, count)
    if rate is not None:
        return RequestArrays(np.cumsum(rng.exponential(1 / rate, count)), *lengths)
    follows = np.arange(count) - clients
    return RequestArrays(np.zeros(count), *lengths, follows=np.where(follows < 0, -1, follows))


def measured(requests, served_by, truth=TRUTH):
    """TTFT, TPOT (means) and seconds a token that a client of the plain simulator sees."""
    oracle = Oracle(requests, served_by, truth).run()
    done = [r for r in oracle.requests if r.status == "finished"]
    starts = [r.arrival for r in done]
    ttft = np.mean([r.times[0] - r.arrival for r in done]) + REQUEST_S
    tpot = np.mean([(r.end - r.times[0]) / (r.output - 1) for r in done])
    return {"ttft mean": ttft, "tpot mean": tpot, PER_TOKEN: (max(r.end for r in done) - min(starts)) / sum(r.output for r in done)}


def run(seed, *, noise=0.0, drawn_anew=True, served_by=None, truth=TRUTH, name="run", **load):
    """A load test; what the fit simulates has other arrivals and lengths of the same kind where ``drawn_anew``."""
    served_by = served_by or engine()
    figures = measured(traffic(seed, **load), served_by, truth)
    rng = RNG(seed + 900)
    figures = {n: v * math.exp(noise * rng.standard_normal()) for n, v in figures.items()}
    return ServedRun(traffic(seed + 100 if drawn_anew else seed, **load), served_by, figures, name, drawn=drawn_anew)


def test_arrivals_by_the_clock_set_the_pace_also_from_time_zero():
    at = np.array([0.0, 0.5, 1.0])
    lengths = np.full(3, 16), np.full(3, 4)
    figures = {"ttft mean": 1.0}
    assert ServedRun(RequestArrays(at, *lengths), engine(), figures, "open").clocked
    assert not ServedRun(RequestArrays(np.zeros(3), *lengths), engine(), figures, "burst").clocked
    ramp = RequestArrays(np.array([0.0, 0.5, 0.0]), *lengths, follows=np.array([-1, -1, 0]))
    assert not ServedRun(ramp, engine(), figures, "closed").clocked


LOADS = [{"clients": c, "prompt": p, "output": o} for c in (1, 4, 16) for p, o in ((256, 48), (2048, 32))]
LOADS += [{"rate": r, "prompt": p, "output": 48} for r, p in ((4.0, 256), (10.0, 512), (6.0, 1024))]


def test_the_simulation_of_the_true_model_is_what_the_plain_simulator_measured():
    one = run(1, rate=8.0, drawn_anew=False)
    evidence = from_runs([one])
    np.testing.assert_allclose(evidence.predict(TRUTH._replace(request_s=REQUEST_S)), evidence.measured, rtol=1e-9)


@pytest.mark.parametrize("many", [False, True])
def test_loads_calibrate_and_other_loads_are_predicted(many, monkeypatch):
    """Six closed loops and three rates with 3 % noise; rates, clients and lengths in between and beyond are then foretold."""
    if many:
        monkeypatch.setattr("models.calibration.served_run._FEW", 0)  # as if there were a thousand: the local form
    evidence = from_runs([run(i, noise=0.03, name=f"load {i}", **load) for i, load in enumerate(LOADS)])
    posterior = fit_steps(evidence, TEMPLATE, step_prior(NAMES))
    other = [{"clients": 8, "prompt": 1024, "output": 64}, {"clients": 24, "prompt": 512, "output": 32}, {"rate": 7.0, "prompt": 700}]
    asked = from_runs([run(50 + i, drawn_anew=False, **load) for i, load in enumerate(other)])
    wrong = np.abs(np.exp(asked.predict(posterior.step_model(TEMPLATE)) - asked.measured) - 1)
    before = np.abs(np.exp(asked.predict(fit_steps(from_steps_of_none(), TEMPLATE, step_prior(NAMES)).step_model(TEMPLATE))
                           - asked.measured) - 1)  # fmt: skip
    assert np.median(wrong) < 0.03
    first = np.array([name.endswith("ttft mean") for name in asked.names])
    assert wrong[~first].max() < 0.06
    assert wrong[first].max() < 0.2  # sixty requests of unknown arrivals and lengths say no more
    assert np.median(wrong) < np.median(before) / 3


def from_steps_of_none():
    from models.calibration.evidence import from_steps

    return from_steps([])


def test_a_queue_is_believed_less_than_a_step():
    """Near the knee TTFT moves several times as much as the engine's speed; its noise counts so much more."""
    calm, crowded = (from_runs([run(3, rate=rate, drawn_anew=False)]).at(TRUTH) for rate in (1.0, 14.0))
    place = calm.names.index("run ttft mean")
    assert calm.weights[place] == pytest.approx(1.0, abs=0.1)
    assert crowded.weights[place] < 0.6
    assert crowded.weights[crowded.names.index("run tpot mean")] > crowded.weights[place]


def test_reused_prefixes_and_drafts_are_simulated():
    """A cached front of 400 of 500 tokens and rounds of 2.5 tokens: their figures fit the same step model, plain loads are foretold."""
    tree = PrefixTree(np.array([-1]), np.array([400]), np.arange(61), np.zeros(60, np.int64), np.array([True]), np.zeros(1))
    cached, drafted = engine(cache=Cache.LRU, kv_blocks=100_000), engine(draft_tokens=3, tokens_per_round=2.5)
    requests = traffic(5, clients=4, prompt=1000)
    shared = RequestArrays(requests.arrival, requests.prompt, requests.output, follows=requests.follows, prefixes=tree)
    runs = [ServedRun(shared, cached, measured(shared, cached), "cached"), run(6, served_by=drafted, clients=8, name="drafted")]
    runs += [run(i, name=f"load {i}", **load) for i, load in enumerate(LOADS[:3])]
    posterior = fit_steps(from_runs(runs), TEMPLATE, step_prior(NAMES))
    asked = from_runs([run(60, drawn_anew=False, clients=12)])
    assert np.abs(np.exp(asked.predict(posterior.step_model(TEMPLATE)) - asked.measured) - 1).max() < 0.08


def test_nothing_beats_the_device():
    one = run(7, clients=4)
    fast = ServedRun(one.requests, one.engine, {"tpot mean": 2e-3}, "fast")  # its weights alone take 16 GB / 1.8 TB/s = 8.9 ms
    with pytest.raises(CalibrationError, match="faster than the device can be"):
        fit_steps(from_runs([fast]), TEMPLATE, step_prior(NAMES))


@pytest.mark.parametrize("figures", [{}, {"ttft mean": math.nan}, {"latency mean": 1.0}])
def test_what_is_no_figure_is_refused(figures):
    with pytest.raises(CalibrationError):
        ServedRun(traffic(1, clients=1), engine(), figures, "bad")


LEAST_STEP_S = TEMPLATE.weight_bytes / TEMPLATE.peak_bytes_per_s
FLOORS = {
    "tpot p50": LEAST_STEP_S,
    "itl p50": LEAST_STEP_S,
    "e2e mean": 2048 * TEMPLATE.flops_per_token / TEMPLATE.peak_flops + 15 * LEAST_STEP_S,  # the prompt's arithmetic, then 15 steps
    PER_TOKEN: (1 + 2048 / 16) * TEMPLATE.flops_per_token / TEMPLATE.peak_flops,  # of a token and of the prompt's 128 tokens behind it
}


@pytest.mark.parametrize("figure", FLOORS)
def test_no_figure_of_a_load_test_may_beat_the_device(figure):
    def tested(share):
        requests = RequestArrays(np.zeros(8), np.full(8, 2048), np.full(8, 16))
        return from_runs([ServedRun(requests, engine(), {figure: share * FLOORS[figure]}, "run")])

    with pytest.raises(CalibrationError, match="faster than the device can be"):
        fit_steps(tested(0.9), TEMPLATE, step_prior())
    fit_steps(tested(1.5), TEMPLATE, step_prior())


def test_a_load_without_a_clock_shares_each_step_among_its_clients_at_best():
    requests = RequestArrays(np.zeros(8), np.full(8, 8), np.full(8, 64), follows=np.array([-1, -1, 0, 1, 2, 3, 4, 5]))
    slow = from_runs([ServedRun(requests, engine(), {PER_TOKEN: 0.9 * LEAST_STEP_S / 2}, "run")])
    with pytest.raises(CalibrationError, match="faster than the device can be"):
        fit_steps(slow, TEMPLATE, step_prior())
