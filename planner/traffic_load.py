"""A workload with rates, traces or bursts, lowered to the simulator's request arrays and deadlines. Same seed, same requests."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from models.describe.scenario import Scenario
from models.describe.workload import RequestClass
from models.errors import NotCoveredError
from models.simulation_types import Deadlines, PrefixTree, RequestArrays


def requests_of(scenario: Scenario, count: int, seed: int) -> RequestArrays:
    """About ``count`` requests: Poisson arrivals of every class with a rate over one common window, bursts at time 0."""
    classes = list(scenario.workload.items())
    rate = sum(r.arrivals.rate or 0.0 for _, r in classes)
    window = count / rate if rate else 0.0
    random = np.random.default_rng(seed)
    times, kinds = [], []
    for place, (name, one) in enumerate(classes):
        arrivals = _arrivals(name, one, window, random)
        times.append(arrivals)
        kinds.append(np.full(len(arrivals), place, dtype=np.int64))
    arrival, klass = np.concatenate(times), np.concatenate(kinds)
    order = np.argsort(arrival, kind="stable")
    klass = klass[order]
    prompt = np.array([r.prompt_tokens for _, r in classes], dtype=np.int64)[klass]
    output = np.array([r.output_tokens for _, r in classes], dtype=np.int64)[klass]
    return RequestArrays(
        arrival[order], prompt, output, klass, tuple(name for name, _ in classes), _prefixes([r for _, r in classes], klass)
    )  # fmt: skip


def _arrivals(name: str, one: RequestClass, window: float, random: np.random.Generator) -> npt.NDArray[np.float64]:
    if one.arrivals.burst is not None:
        return np.zeros(one.arrivals.burst)
    if one.arrivals.rate is None:
        raise NotCoveredError(
            "plans do not read traces yet",
            path=f"workload.{name}.arrivals.trace",
            value=one.arrivals.trace,
            way_out="state a rate, or a burst",
        )
    expected = one.arrivals.rate * window
    gaps = random.exponential(1.0 / one.arrivals.rate, size=math.ceil(expected + 6 * math.sqrt(expected) + 16))
    found = np.cumsum(gaps)
    return np.asarray(found[found <= window])


def _prefixes(classes: list[RequestClass], klass: npt.NDArray[np.int64]) -> PrefixTree | None:
    """One shared prefix for each class that has one."""
    shared = [i for i, one in enumerate(classes) if one.shared_prefix_tokens]
    if not shared:
        return None
    node = np.full(len(classes), -1, dtype=np.int64)
    node[shared] = np.arange(len(shared))
    path = node[klass]
    start = np.concatenate([[0], np.cumsum(path >= 0)]).astype(np.int64)
    return PrefixTree(
        parent=np.full(len(shared), -1, dtype=np.int64), tokens=np.array([classes[i].shared_prefix_tokens for i in shared], dtype=np.int64),
        path_start=start, paths=path[path >= 0], warm=np.array([classes[i].prefix_cached for i in shared]), value=np.zeros(len(shared)),
    )  # fmt: skip


def deadlines_of(scenario: Scenario) -> Deadlines:
    """Limits by class in the simulator's order; infinite where none is set."""

    def limits(metric: str) -> tuple[float, ...]:
        deadlines = (one.slo.deadlines().get(metric) for one in scenario.workload.values())
        return tuple(d.limit if d is not None else math.inf for d in deadlines)

    return Deadlines(ttft=limits("ttft"), e2e=limits("e2e"), itl=limits("itl"), tpot=limits("tpot"))
