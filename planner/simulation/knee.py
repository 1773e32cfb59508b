"""The knee of a scenario's traffic under one configuration: bracketed by doubling, bisected for several seeds (8.6.1, 8.6.2)."""

from __future__ import annotations

import numpy as np

from models.describe.scenario import Scenario
from models.errors import ContradictionError, InputError
from models.knee import Engine, Knee, goodput_curve, knee
from models.knee import Traffic as DrawTraffic
from models.simulation_summary import SimulationSummary
from models.simulation_types import RequestArrays, SimulationInputs
from planner.simulation.answer import Curve, KneeFound, finite
from planner.simulation.options import SimulationOptions
from planner.traffic.load import Traffic
from planner.traffic.requests import LONGEST_S, offered_rate, requests_of, scaled
from planner.traffic.trial import lateness

SEEDS = 5
DOUBLINGS = 20
RATES = 13
USUAL_RUNS = SEEDS * 9 + RATES + 4
"""About as many simulations as a knee takes: for the progress bar."""


def find_knee(traffic: Traffic, scenario: Scenario, inputs: SimulationInputs, options: SimulationOptions) -> KneeFound:
    """The highest rate at which every deadline of every class holds at its own percentile, and the curve around it."""
    base = offered_rate(scenario, traffic.requests)
    if base is None:
        raise ContradictionError("a burst or a closed loop has no rate to vary", path="--knee", way_out="give the class a rate")
    if not any(one.slo.deadlines() for one in scenario.workload.values()):
        raise InputError("the workload states no deadline, so every rate is good", path="--knee", way_out="add slo to a class")
    runs = 0

    def draw(rate: float, seed: int) -> RequestArrays:
        nonlocal runs
        runs += 1
        options.progress(min(0.99, runs / USUAL_RUNS))
        return requests_of(scaled(scenario, rate / base), options.requests, seed)

    engine = Engine(inputs, traffic.deadlines, lambda result: not lateness(traffic, result)[0])
    seeds = tuple(range(options.seed, options.seed + SEEDS))
    slowest = max(base * 2.0**-DOUBLINGS, 4 * options.requests / LONGEST_S)
    low, high = _bracket(engine, draw, base, slowest, options.seed)
    found = knee(engine, draw, low=low, high=high, seeds=seeds)
    rates = np.linspace(0.25, 1.75, RATES) * (found.rate or base)
    curve = goodput_curve(engine, draw, rates.tolist(), seed=options.seed)
    return _found(found, [(rate, summary) for rate, summary in curve])


def _bracket(engine: Engine, draw: DrawTraffic, base: float, slowest: float, seed: int) -> tuple[float, float]:
    """Rates between which a deadline is lost, with a margin for other seeds."""
    low = high = base
    for _ in range(DOUBLINGS):
        if not engine.holds(draw(high, seed), seed):
            break
        low, high = high, high * 2
    else:
        return low, high
    while low == high or not engine.holds(draw(low, seed), seed):
        low /= 2
        if low < slowest:
            break
    return low / 1.5, high * 1.5


def _found(one: Knee, curve: list[tuple[float, SimulationSummary]]) -> KneeFound:
    return KneeFound(
        rate_per_s=one.rate, low_per_s=one.low, high_per_s=one.high, confidence=one.confidence, seeds=len(one.rates),
        bounded=one.bounded, curve=tuple(_point(rate, summary) for rate, summary in curve),
    )  # fmt: skip


def _point(rate: float, s: SimulationSummary) -> Curve:
    o = s.overall
    return Curve(
        rate_per_s=rate, throughput_per_s=o.requests_per_s, goodput_per_s=o.goodput_per_s, share_good=o.good / max(o.requests, 1),
        ttft_p95_s=finite(o.ttft.p95), e2e_p95_s=finite(o.e2e.p95),
    )  # fmt: skip
