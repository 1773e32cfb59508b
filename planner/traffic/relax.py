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
from models.units import parse_seconds
from planner.answer import Relaxation, SwitchPoint
from planner.predict import outward
from planner.traffic.load import Traffic
from planner.traffic.requests import requests_of, scaled
from planner.traffic.ties import tied
from planner.traffic.trial import Trial, run

Tried = Sequence[tuple[str, Configuration, Trial]]
FEW = 6
SLACKS = (1.0, 1.03, 1.1, 1.25)
"""Beyond what the simulated configurations need, where planning again finds nothing at that very limit."""
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


Again = Callable[[Scenario], str | None]
"""Plans a changed scenario as this one was planned: who is on time, None for nobody."""


def deadline_relaxations(scenario: Scenario, tried: Tried, again: Again) -> tuple[Relaxation, ...]:
    """For each deadline the smallest limit with which a configuration that meets all others is on time, planned again with it.

    Overloaded configurations do not speak here: their times are those of so many requests and would grow with more of them.
    """
    best: dict[str, float] = {}
    for _, _, trial in tried:
        if len(trial.late) == 1 and not trial.summary.overload:
            [(name, (value, _))] = trial.late.items()
            if math.isfinite(value):
                best[name] = min(value, best.get(name, math.inf))
    found = (_verified_deadline(scenario, name, value, again) for name, value in sorted(best.items()))
    return tuple(one for one in found if one is not None)


def _verified_deadline(scenario: Scenario, name: str, value: float, again: Again) -> Relaxation | None:
    """The limit rounded outward, or a little more where a plan with it finds nothing on time."""
    klass, metric = name.rsplit(".", maxsplit=1)
    for slack in SLACKS:
        shown = outward(math.ceil(value * slack * 1e6), "us")
        if (winner := again(_with_limit(scenario, klass, metric, parse_seconds(shown, name)))) is not None:
            return Relaxation(path=f"workload.{klass}.slo.{metric}.limit", value=shown, text=f"{name} ≥ {shown}", winner=winner)
    return None


def _with_limit(scenario: Scenario, klass: str, metric: str, limit: float) -> Scenario:
    one = scenario.workload[klass]
    deadline = one.slo.deadlines()[metric].model_copy(update={"limit": limit})
    changed = one.model_copy(update={"slo": one.slo.model_copy(update={metric: deadline})})
    return scenario.model_copy(update={"workload": {**scenario.workload, klass: changed}})


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
        return trial if not trial.late else None

    return simulated


def rate_relaxation(traffic: Traffic, scenario: Scenario, tried: Tried, seed: int, again: Again) -> tuple[Relaxation, ...]:
    """The highest rate at which one of the closest configurations is on time, by bisection, planned again with it."""
    found = rate_path(scenario)
    if found is None or not tried:
        return ()
    path, rate = found

    def holds(factor: float) -> bool:
        simulated = _on_time(traffic, scenario, factor, seed)
        return any(simulated(one) is not None for _, one, _ in tried[:FEW])

    low, high = LOWEST, 1.0
    if not holds(low):
        return ()
    for _ in range(RATE_STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    for slack in SLACKS:
        shown = _inward(rate * low / slack)
        if (winner := again(scaled(scenario, shown / rate))) is not None:
            return (Relaxation(path=path, value=f"{shown:.3g} /s", text=f"rate ≤ {shown:.3g} /s", winner=winner),)
    return ()


def _inward(rate: float) -> float:
    """Three significant digits, rounded down."""
    unit = 10.0 ** (math.floor(math.log10(rate)) - 2)
    return float(f"{math.floor(rate / unit * (1 + 1e-12)) * unit:.3g}")


def rate_switches(
    traffic: Traffic, scenario: Scenario, named: Mapping[str, Configuration], seed: int, winner_here: str | None
) -> tuple[SwitchPoint, ...]:  # fmt: skip
    """The best candidate from a quarter to four times the rate; boundaries by bisection to 1 %.

    Where the simulation does not tell the winner of the scenario's own rate from the best, it stays the winner.
    """
    found = rate_path(scenario)
    if found is None:
        return ()
    path, rate = found
    case, first = traffic.case, traffic.case.scenario.objectives[0].value
    known: dict[float, str | None] = {}

    def winner(factor: float) -> str | None:
        if factor not in known:
            simulated = _on_time(traffic, scenario, factor, seed)
            fine = {label: trial for label, one in named.items() if (trial := simulated(one)) is not None}
            best = min(fine, key=lambda label: (fine[label].values[first], label), default=None)
            stays = best is not None and winner_here in fine and tied(case, fine[best], fine[winner_here])
            known[factor] = winner_here if stays else best
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
