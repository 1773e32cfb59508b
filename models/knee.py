"""Goodput against arrival rate and its knee: the highest rate at which the asked share of requests is good.

Notation: rate in 1/s. The share of good requests falls as the rate rises, so bisection finds the crossing for each seed; the
knee is the mean over seeds with a Student t interval (sections 8.6.1 and 8.6.2, figures 8-33 and 8-34).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from models.errors import InputError
from models.serving import serve
from models.simulation_summary import SimulationSummary, good_requests, summarise
from models.simulation_types import Deadlines, RequestArrays, SimulationInputs

Traffic = Callable[[float, int], RequestArrays]  # (rate, seed) → requests


@dataclass(frozen=True)
class Engine:
    """What runs the traffic and what counts as good."""

    inputs: SimulationInputs
    deadlines: Deadlines

    def share_good(self, requests: RequestArrays, seed: int) -> float:
        """Good requests over all that arrived."""
        result = serve(requests, self.inputs, seed=seed, deadlines=self.deadlines)
        return good_requests(result) / len(requests)


@dataclass(frozen=True)
class Knee:
    """Rate (1/s) with its interval; ``bounded`` False where even ``high`` met the share (the knee lies above).

    A seed for which even the slowest rate tried misses the share counts as 0; where all do, ``rate`` is 0 and ``high`` that rate.
    """

    rate: float
    low: float
    high: float
    confidence: float
    share: float
    rates: tuple[float, ...]
    bounded: bool


def _crossing(engine: Engine, traffic: Traffic, seed: int, share: float, low: float, high: float, precision: float) -> tuple[float, bool]:
    if engine.share_good(traffic(high, seed), seed) >= share:
        return high, False
    if engine.share_good(traffic(low, seed), seed) < share:
        return 0.0, True
    while high - low > precision * high:
        middle = 0.5 * (low + high)
        if engine.share_good(traffic(middle, seed), seed) >= share:
            low = middle
        else:
            high = middle
    return low, True


def knee(
    engine: Engine, traffic: Traffic, *, low: float, high: float, share: float = 0.95, seeds: Sequence[int] = (0, 1, 2, 3, 4),
    confidence: float = 0.95, precision: float = 0.01,
) -> Knee:  # fmt: skip
    """Bisect for every seed. Raises ``InputError`` for an empty bracket."""
    from scipy.special import stdtrit  # noqa: PLC0415  a third of a second, which whoever only simulates does not need

    if not 0 < low < high:
        raise InputError("the bracket of rates must rise from above 0", path="knee", value=(low, high))
    found = [_crossing(engine, traffic, seed, share, low, high, precision) for seed in seeds]
    rates = np.array([rate for rate, _ in found])
    spread = float(rates.std(ddof=1)) if len(rates) > 1 else 0.0
    half = float(stdtrit(max(len(rates) - 1, 1), 0.5 + confidence / 2)) * spread / len(rates) ** 0.5
    half += precision * float(rates.mean()) / 2  # the bracket left by bisection
    mean = float(rates.mean())
    least, most = (max(mean - half, 0.0), mean + half) if mean else (0.0, low)
    return Knee(mean, least, most, confidence, share, tuple(rates.tolist()), all(bounded for _, bounded in found))


def goodput_curve(engine: Engine, traffic: Traffic, rates: Sequence[float], *, seed: int = 0) -> list[tuple[float, SimulationSummary]]:
    """(rate, summary) for each rate: throughput and goodput of figures 8-33 and 8-34."""
    return [(rate, summarise(serve(traffic(rate, seed), engine.inputs, seed=seed, deadlines=engine.deadlines))) for rate in rates]
