"""Goodput against arrival rate and its knee: the highest rate that is served well enough.

Notation: rate in 1/s. What is served well falls as the rate rises, so bisection finds the crossing for each seed; the
knee is the mean over seeds with a Student t interval (sections 8.6.1 and 8.6.2, figures 8-33 and 8-34).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from models.errors import InputError
from models.serving import serve
from models.simulation_summary import SimulationSummary, good_requests, summarise
from models.simulation_types import Deadlines, RequestArrays, SimulationInputs, SimulationResult

Traffic = Callable[[float, int], RequestArrays]  # (rate, seed) → requests


Verdict = Callable[[SimulationResult], bool]


def on_time(share: float) -> Verdict:
    """Whether so many of all that arrived are good: within every deadline of their class."""
    return lambda result: good_requests(result) >= share * len(result.records)


USUAL = on_time(0.95)


@dataclass(frozen=True)
class Engine:
    """What runs the traffic, and when it does so well enough."""

    inputs: SimulationInputs
    deadlines: Deadlines
    enough: Verdict = USUAL

    def holds(self, requests: RequestArrays, seed: int) -> bool:
        """Whether this traffic is served well enough."""
        return self.enough(serve(requests, self.inputs, seed=seed, deadlines=self.deadlines))


@dataclass(frozen=True)
class Knee:
    """Rate (1/s) with its interval; ``bounded`` False where even ``high`` was served well enough (the knee lies above).

    A seed for which even the slowest rate tried was not counts as 0; where none was, ``rate`` is 0 and ``high`` that rate.
    """

    rate: float
    low: float
    high: float
    confidence: float
    rates: tuple[float, ...]
    bounded: bool


def _crossing(engine: Engine, traffic: Traffic, seed: int, low: float, high: float, precision: float) -> tuple[float, bool]:
    if engine.holds(traffic(high, seed), seed):
        return high, False
    if not engine.holds(traffic(low, seed), seed):
        return 0.0, True
    while high - low > precision * high:
        middle = 0.5 * (low + high)
        if engine.holds(traffic(middle, seed), seed):
            low = middle
        else:
            high = middle
    return low, True


def knee(
    engine: Engine, traffic: Traffic, *, low: float, high: float, seeds: Sequence[int] = (0, 1, 2, 3, 4),
    confidence: float = 0.95, precision: float = 0.01,
) -> Knee:  # fmt: skip
    """Bisect for every seed. Raises ``InputError`` for an empty bracket."""
    from scipy.special import stdtrit  # noqa: PLC0415  a third of a second, which whoever only simulates does not need

    if not 0 < low < high:
        raise InputError("the bracket of rates must rise from above 0", path="knee", value=(low, high))
    found = [_crossing(engine, traffic, seed, low, high, precision) for seed in seeds]
    rates = np.array([rate for rate, _ in found])
    spread = float(rates.std(ddof=1)) if len(rates) > 1 else 0.0
    half = float(stdtrit(max(len(rates) - 1, 1), 0.5 + confidence / 2)) * spread / len(rates) ** 0.5
    half += precision * float(rates.mean()) / 2  # the bracket left by bisection
    mean = float(rates.mean())
    least, most = (max(mean - half, 0.0), mean + half) if mean else (0.0, low)
    return Knee(mean, least, most, confidence, tuple(rates.tolist()), all(bounded for _, bounded in found))


def goodput_curve(engine: Engine, traffic: Traffic, rates: Sequence[float], *, seed: int = 0) -> list[tuple[float, SimulationSummary]]:
    """(rate, summary) for each rate: throughput and goodput of figures 8-33 and 8-34."""
    return [(rate, summarise(serve(traffic(rate, seed), engine.inputs, seed=seed, deadlines=engine.deadlines))) for rate in rates]
