"""Loads joined in one simulation: each request's times are those of its load by itself."""

import numpy as np
import pytest

from models.calibration import served_together
from models.calibration.served_together import Load, simulate_each
from models.kernels.step import PHYSICAL, StepModel
from models.simulate import simulate
from models.simulation_types import Cache, EngineParameters, Policy, PrefixTree, RequestArrays

MODEL = StepModel(PHYSICAL, 5e14, 1.8e12, 1.4e10, 1.2e9, 6e5, 1.6e10, 0.0, 0.0, matmul_efficiency=0.6, host_s=2e-3)
ENGINE = EngineParameters(policy=Policy.CHUNKED, max_num_seqs=8, token_budget=1024, kv_bytes_per_token=147456.0)
PAGED = EngineParameters(policy=Policy.PREFILL_FIRST, max_num_seqs=16, token_budget=1024, kv_blocks=300, kv_bytes_per_token=147456.0)
CACHED = EngineParameters(policy=Policy.CHUNKED, max_num_seqs=8, token_budget=1024, cache=Cache.LRU, kv_blocks=500)


def load(seed, engine, alone_s=1.0):
    """A closed loop with pauses, a burst or a rate, by ``seed``."""
    rng, count = np.random.default_rng(seed), 20
    lengths = rng.integers(50, 900, count), rng.integers(2, 60, count)
    if seed % 3 == 0:
        follows = np.maximum(np.arange(count) - 4, -1)
        return Load(RequestArrays(np.where(follows < 0, 0.0, 0.01 * seed), *lengths, follows=follows), engine, alone_s)
    arrival = np.zeros(count) if seed % 3 == 1 else np.cumsum(rng.exponential(0.1, count))
    return Load(RequestArrays(arrival, *lengths), engine, alone_s)


def shared(seed, engine):
    plain = load(seed, engine)
    tree = PrefixTree(np.array([-1]), np.array([48]), np.arange(21), np.zeros(20, np.int64), np.array([False]), np.zeros(1))
    r = plain.requests
    return Load(RequestArrays(r.arrival, r.prompt, r.output, follows=r.follows, prefixes=tree), engine, 1.0)


@pytest.mark.parametrize("alone_s", [1.0, 1e-4])  # of the second, every pause is too short at first
def test_each_load_is_served_as_if_by_itself(alone_s):
    loads = [load(seed, engine, alone_s) for seed in range(1, 10) for engine in (ENGINE, PAGED)]
    loads += [shared(seed, CACHED) for seed in range(1, 4)]  # a cache remembers the load before: these are kept apart
    for one, records in zip(loads, simulate_each(loads, MODEL), strict=True):
        expected = simulate(one.requests, one.engine, MODEL).records
        assert (records["status"] == expected["status"]).all()
        for name in ("first", "last"):
            np.testing.assert_allclose(records[name] - records["arrival"], expected[name] - expected["arrival"], rtol=1e-7, atol=1e-9)


def test_loads_of_one_engine_take_one_simulation(monkeypatch):
    calls = []
    monkeypatch.setattr(served_together, "simulate", lambda *given: calls.append(given) or simulate(*given))
    simulate_each([load(seed, engine) for seed in range(1, 61) for engine in (ENGINE, PAGED)], MODEL)
    assert len(calls) == 2
