"""The chapter's closing example (8.6.3) simulated: 16 long requests at once, against the closed form's printed values."""

import numpy as np
import pytest
from scipy.optimize import brentq

from models.kernels.step import LINEAR, PHYSICAL, StepModel
from models.simulate import simulate
from models.simulation_summary import summarise
from models.simulation_types import Cache, Deadlines, EngineParameters, Policy, PrefixTree, RequestArrays

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, FFN, VOCABULARY = 36, 4096, 32, 8, 128, 12288, 151936
LINEARS = LAYERS * (HIDDEN * (HEADS + 2 * KV_HEADS) * HEAD + HEADS * HEAD * HIDDEN + 3 * HIDDEN * FFN)
KV_BYTES = 2 * LAYERS * KV_HEADS * HEAD * 2
READ_BYTES = 15136811008
INF = float("inf")


def prefill_model(factor=1.0):
    """FLOPs over 57.8 % of 503.8 TFLOP/s, nothing else (chapter8-calibration)."""
    share = 0.578 / factor
    return StepModel(PHYSICAL, 503.8e12, 1e30, 2 * LINEARS, 2 * HIDDEN * VOCABULARY, 4 * HEADS * HEAD * LAYERS, 0, 0, 0,
                     matmul_efficiency=share, attention_efficiency=share)  # fmt: skip


def decode_model(extra=0.0):
    """23.82 ms + 0.1701 ms for each GB read."""
    return StepModel(LINEAR, 1e30, 1e30, 0, 0, 0, READ_BYTES, 0, 0, fixed_s=0.02382 + extra, per_byte_s=0.0001701e-9)


def sixteen(*, shared):
    tree = (
        PrefixTree(np.array([-1]), np.array([6144]), np.arange(17), np.zeros(16, np.int64), np.array([True]), np.zeros(1))
        if shared
        else None
    )
    return RequestArrays(np.zeros(16), np.full(16, 8192), np.full(16, 256), prefixes=tree if shared else None)


def engine(shared, draft=0, tokens=1.0, kv=1.0, acceptance=None):
    return EngineParameters(
        Policy.FIXED, 16, cache=Cache.LRU if shared else Cache.OFF, kv_bytes_per_token=KV_BYTES * kv,
        shared_read_once=shared, constant_context=True, draft_tokens=draft, tokens_per_round=tokens, acceptance=acceptance,
    )  # fmt: skip


# id, shared, draft tokens, tokens a round, KV size, prefill factor, extra a round, prefill_s, total_s, round_ms
ROWS = [
    ("A", False, 0, 1.0, 1.0, 1.0, 0.0, 7.34, 14.91, 29.68),
    ("B", True, 0, 1.0, 1.0, 1.0, 0.0, 2.04, 9.02, 27.37),
    ("C", False, 0, 1.0, 34 / 64, 1.0, 0.0, 7.34, 14.52, 28.14),
    ("D", True, 7, 3.0, 1.0, 1.0943, 0.0, 2.23, 4.56, 27.37),
    ("E", True, 2, 2.0, 1.0, 1.0, 1e-4, 2.04, 5.55, 27.47),
]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_whole_burst_takes_what_the_closed_form_says(row):
    _, shared, draft, tokens, kv, factor, extra, prefill_s, total_s, round_ms = row
    result = simulate(sixteen(shared=shared), engine(shared, draft, tokens, kv), prefill_model(factor), decode_model(extra))
    summary = summarise(result)
    assert summary.overall.ttft.max == pytest.approx(prefill_s, abs=0.012)
    assert summary.overall.e2e.max == pytest.approx(total_s, rel=0.006)
    assert summary.itl.max == pytest.approx(round_ms / 1e3, abs=2e-5)
    assert summary.itl.p50 == pytest.approx(round_ms / 1e3, abs=2e-5)


def test_random_acceptance_lets_the_slowest_of_the_batch_decide():
    """Geometric acceptance of mean 3: about 97 rounds and 4.9 s (golden random_acceptance), and an SLO share that follows."""
    chance = brentq(lambda a: sum(a**j for j in range(1, 8)) - 2.0, 0.1, 0.99)
    limits = Deadlines((INF,), (4.85,), (INF,), (INF,))
    makespans, shares = [], []
    for seed in range(40):
        parameters = engine(shared=True, draft=7, tokens=3.0, acceptance=(chance,) * 7)
        result = simulate(sixteen(shared=True), parameters, prefill_model(1.0943), decode_model(), seed=seed, deadlines=limits)
        makespans.append(result.makespan)
        shares.append(summarise(result).overall.good / 16)
    assert np.mean(makespans) == pytest.approx(4.9, abs=0.06)
    assert 0.8 < np.mean(shares) < 1.0
