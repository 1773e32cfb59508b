"""How sure a simulated answer is: other draws of the traffic, and an engine that is as slow as the calibration allows.

An engine slower by a factor s under arrivals a_i and deadlines D behaves as the calibrated one under arrivals a_i / s and
deadlines D / s, with every time multiplied by s. s is log-normal with median 1 and the larger of the calibration's two
spreads. For each seed the largest s that keeps every deadline is bisected in z = ln s / sd; P(SLO) is the mean of Phi(z).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from models.describe.configuration import Configuration
from models.describe.scenario import Scenario
from models.errors import GoodputError
from planner.traffic.load import Traffic
from planner.traffic.requests import requests_of
from planner.traffic.trial import Trial, run

Z90 = 1.6448536269514722
WIDEST = 3.0
STEPS = 3
TOP, TOP_SEEDS = 8, 4
"""The first few are drawn anew with several seeds; the rest are judged on their own draw."""


@dataclass(frozen=True)
class Confidence:
    """Probability that every deadline holds at its percentile; 90 % intervals in seconds."""

    probability: float
    intervals: dict[str, tuple[float, float]]


def draws(traffic: Traffic, scenario: Scenario, count: int, seed: int, seeds: int) -> list[tuple[int, Traffic]]:
    """The traffic itself and ``seeds - 1`` other draws of it."""
    others = [(other, replace(traffic, requests=requests_of(scenario, count, other))) for other in range(seed + 1, seed + seeds)]
    return [(seed, traffic), *others]


def confidence(drawn: Sequence[tuple[int, Traffic]], configuration: Configuration) -> Confidence:
    """Over every draw."""
    case = drawn[0][1].case
    sd = max(case.calibration.uncertainty.prefill_log_sd, case.calibration.uncertainty.decode_log_sd)
    chances: list[float] = []
    ends: list[tuple[Slowed, Slowed]] = []
    for seed, traffic in drawn:

        def at(z: float, traffic: Traffic = traffic, seed: int = seed) -> Slowed | None:
            return _at(traffic, configuration, seed, z * sd)

        fast, slow = at(-Z90), at(Z90)
        chances.append(_chance(at, fast, slow) if sd else float(_holds(fast)))
        if fast is not None and slow is not None:
            ends.append((fast, slow))
    return Confidence(sum(chances) / len(chances), _intervals(ends))


Slowed = tuple[Trial, float]
"""A trial and the factor by which its engine is slower."""


def _at(traffic: Traffic, configuration: Configuration, seed: int, log_slowdown: float) -> Slowed | None:
    """The trial on an engine slower by exp(log_slowdown), with that factor."""
    factor = math.exp(log_slowdown)
    try:
        return run(traffic.slowed(factor), configuration, seed=seed), factor
    except GoodputError:
        return None


def _holds(found: Slowed | None) -> bool:
    return found is not None and not found[0].late


def _chance(at: Callable[[float], Slowed | None], fast: Slowed | None, slow: Slowed | None) -> float:
    """Phi of the z at which the deadlines break; the ends of the interval already say in which stretch it lies."""
    low, high = (Z90, WIDEST) if _holds(slow) else (-Z90, Z90) if _holds(fast) else (-WIDEST, -Z90)
    if high == WIDEST and _holds(at(WIDEST)):
        return 1.0
    if low == -WIDEST and not _holds(at(-WIDEST)):
        return 0.0
    for _ in range(STEPS + (low < 0 < high)):  # the middle stretch is wider
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _holds(at(middle)) else (low, middle)
    return 0.5 * (1.0 + math.erf(0.5 * (low + high) / math.sqrt(2.0)))


def _intervals(ends: Sequence[tuple[Slowed, Slowed]]) -> dict[str, tuple[float, float]]:
    """Least and greatest of the draws at the two ends of the slowdown."""
    found = {}
    for name in ("ttft", "e2e"):
        low = [getattr(trial.summary.overall, name).p95 * factor for (trial, factor), _ in ends]
        high = [getattr(trial.summary.overall, name).p95 * factor for _, (trial, factor) in ends]
        if low and all(map(math.isfinite, (*low, *high))):
            found[f"{name}_p95_s"] = (min(low), max(high))
    return found
