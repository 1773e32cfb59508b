"""Where simulated traffic turns: deadlines that conflict, the smallest change of one that helps, the highest rate, the switch points.

All of it speaks about the configurations that were simulated: a search over traffic proves nothing beyond them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

from models.describe.configuration import Configuration
from models.describe.scenario import Scenario
from models.errors import GoodputError
from planner.answer import Relaxation, SwitchPoint
from planner.predict import outward
from planner.traffic.load import Traffic
from planner.traffic.requests import requests_of, scaled
from planner.traffic.trial import Trial, run

Tried = Sequence[tuple[str, Configuration, Trial]]
FEW = 6
LOWEST = 2.0**-10
RATE_STEPS = 11
FACTORS = tuple(2.0 ** (i / 2) for i in range(-4, 5))
RATE_KINDS = ("rate", "gamma", "even")


def conflicts(traffic: Traffic, tried: Tried) -> tuple[str, ...]:
    """The fewest deadlines that no simulated configuration meets together."""
    names = [f"{name}.{metric}" for name, case in traffic.cases.items() for metric in case.request.slo.deadlines()]
    for size in range(1, len(names) + 1):
        for together in combinations(names, size):
            if all(set(together) & set(trial.late) for _, _, trial in tried):
                return together
    return ()


def deadline_relaxations(tried: Tried) -> tuple[Relaxation, ...]:
    """For each deadline the smallest limit with which a configuration that meets all others is on time."""
    best: dict[str, tuple[float, str]] = {}
    for label, _, trial in tried:
        if len(trial.late) == 1:
            [(name, (value, _))] = trial.late.items()
            if math.isfinite(value) and (name not in best or (value, label) < best[name]):
                best[name] = (value, label)
    found = []
    for name, (value, label) in sorted(best.items()):
        klass, metric = name.rsplit(".", maxsplit=1)
        shown = outward(math.ceil(value * 1e6), "us")
        found.append(Relaxation(path=f"workload.{klass}.slo.{metric}.limit", value=shown, text=f"{name} ≥ {shown}", winner=label))
    return tuple(found)


def rate_path(scenario: Scenario) -> tuple[str, float] | None:
    """Where the rate of the only class is written, and its value."""
    [(name, one), *others] = scenario.workload.items()
    kind = next((kind for kind in RATE_KINDS if getattr(one.arrivals, kind) is not None), None)
    return None if others or kind is None else (f"workload.{name}.arrivals.{kind}", getattr(one.arrivals, kind))


def _on_time(traffic: Traffic, scenario: Scenario, factor: float, seed: int) -> Callable[[Configuration], Trial | None]:
    """Simulate at ``factor`` times the rate; None where the configuration cannot run or is late."""
    faster = replace(traffic, requests=requests_of(scaled(scenario, factor), len(traffic.requests), seed))

    def simulated(configuration: Configuration) -> Trial | None:
        try:
            trial = run(faster, configuration, seed=seed)
        except GoodputError:
            return None
        return trial if trial is not None and not trial.late else None

    return simulated


def rate_relaxation(traffic: Traffic, scenario: Scenario, tried: Tried, seed: int) -> tuple[Relaxation, ...]:
    """The highest rate at which one of the closest configurations is on time, by bisection."""
    found = rate_path(scenario)
    if found is None or not tried:
        return ()
    path, rate = found

    def winner(factor: float) -> str | None:
        simulated = _on_time(traffic, scenario, factor, seed)
        return next((label for label, one, _ in tried[:FEW] if simulated(one) is not None), None)

    low, high = LOWEST, 1.0
    if winner(low) is None:
        return ()
    for _ in range(RATE_STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if winner(middle) is not None else (low, middle)
    shown = _inward(rate * low)
    while (label := winner(shown / rate)) is None:
        shown = _inward(0.98 * shown)
        if shown < rate * LOWEST:
            return ()
    return (Relaxation(path=path, value=f"{shown:.3g} /s", text=f"rate ≤ {shown:.3g} /s", winner=label),)


def _inward(rate: float) -> float:
    """Three significant digits, rounded down."""
    unit = 10.0 ** (math.floor(math.log10(rate)) - 2)
    return float(f"{math.floor(rate / unit * (1 + 1e-12)) * unit:.3g}")


def rate_switches(traffic: Traffic, scenario: Scenario, named: Mapping[str, Configuration], seed: int) -> tuple[SwitchPoint, ...]:
    """The best candidate from a quarter to four times the rate; boundaries by bisection to 1 %."""
    found = rate_path(scenario)
    if found is None:
        return ()
    path, rate = found
    first = traffic.case.scenario.objectives[0].value
    known: dict[float, str | None] = {}

    def winner(factor: float) -> str | None:
        if factor not in known:
            simulated = _on_time(traffic, scenario, factor, seed)
            values = {label: trial.values[first] for label, one in named.items() if (trial := simulated(one)) is not None}
            known[factor] = min(values, key=lambda label: (values[label], label)) if values else None
        return known[factor]

    points = [(FACTORS[0], winner(FACTORS[0]))]
    for low, high in pairwise(FACTORS):
        points += [(at, winner(at)) for at in _changes(low, high, winner)]
    shown = [SwitchPoint(path=path, value=f"{rate * factor:.3g} /s", winner=label) for factor, label in points]
    return tuple(shown) if len(shown) > 1 else ()


def _changes(low: float, high: float, winner: Callable[[float], str | None]) -> list[float]:
    """Rates in (low, high] from which another candidate wins, by halving where the ends differ."""
    if winner(low) == winner(high):
        return []
    if high <= 1.01 * low:
        return [high]
    middle = math.sqrt(low * high)
    return _changes(low, middle, winner) + _changes(middle, high, winner)
