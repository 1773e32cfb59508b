"""The order among configurations, and which of them a simulation does not tell apart.

A finite run ends with a stretch after the last arrival in which the engine only empties; a run without end has none. So the true value
of an objective v that counts time lies between v (1 - e) and v, e the share of that stretch, and two configurations whose ranges
overlap are tied. Ties go to the higher P(SLO), then to the lower p95 answer, the fewer devices, the fewer settings that differ from the
engine's own; each of these with a resolution of its own, so that noise does not decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from models.case import Case
from models.describe.configuration import Configuration
from models.describe.scenario import Objective
from planner.traffic.probability import Confidence
from planner.traffic.trial import Trial
from solvers.variables import VARIABLES, default_draft_tokens

CHANCE_RESOLUTION = 0.02
"""P(SLO) is bisected: closer ones are the same."""
TIME_RESOLUTION = 0.01
"""A percent of a percentile is nobody's reason."""
LEAST_ERROR = 1e-3
"""Smallest relative difference of objectives that a simulation is believed to resolve."""

SHOWN = 12
Pair = tuple[Configuration, Trial]

_T = TypeVar("_T")


@dataclass(frozen=True)
class Contender:
    """One simulated configuration with what decides its place."""

    label: str
    configuration: Configuration
    trial: Trial
    able: bool  # the scenario's engine can run it
    confidence: Confidence


def error_of(case: Case, trial: Trial) -> float:
    """Relative error of the first objective that the end of the run causes; a percentile of times has none."""
    return LEAST_ERROR if case.scenario.objectives[0] is Objective.LATENCY else max(LEAST_ERROR, trial.end_share)


def tied(case: Case, best: Trial, other: Trial) -> bool:
    """Whether the simulation leaves open which of the two has the lower first objective; ``best`` has the lower value here."""
    name = case.scenario.objectives[0].value
    return other.values[name] * (1.0 - error_of(case, other)) <= best.values[name]


def tiers(rows: Sequence[_T], key: Callable[[_T], float], same: Callable[[_T, _T], bool]) -> list[list[_T]]:
    """Groups in ascending order of ``key``: each holds its least member and every other that is the ``same`` as it."""
    left, found = sorted(rows, key=key), list[list[_T]]()
    while left:
        first = left[0]
        found.append([one for one in left if one is first or same(first, one)])
        left = [one for one in left if one is not first and not same(first, one)]
    return found


def ordered(case: Case, rows: Sequence[Contender]) -> list[Contender]:
    """Feasible first, then those that the engine can run, then as the module says; infeasible ones by how far they are from feasible."""
    placed: list[Contender] = []
    for late, able in ((False, True), (False, False), (True, True), (True, False)):
        group = [one for one in rows if bool(one.trial.late) == late and one.able == able]
        if late:
            placed += sorted(group, key=lambda one: (one.trial.shortfall, *one.trial.values.values(), len(one.label), one.label))
        else:
            placed += [one for tier in leading(case, group) for one in _untied(case, tier)]
    return placed


def leading(case: Case, rows: Sequence[Contender]) -> list[list[Contender]]:
    """Tiers of the first objective: within one, the simulation does not say which is better."""
    name = case.scenario.objectives[0].value
    return tiers(rows, lambda one: one.trial.values[name], lambda first, one: tied(case, first.trial, one.trial))


def _untied(case: Case, tier: Sequence[Contender]) -> list[Contender]:
    """The members of a tier by P(SLO), p95 answer, devices, simplicity."""
    by_chance = tiers(tier, lambda one: -one.confidence.probability, _same_chance)
    by_time = [group for one in by_chance for group in tiers(one, lambda row: row.trial.summary.overall.e2e.p95, _same_time)]

    def simplest(row: Contender) -> tuple[object, ...]:
        return (row.configuration.tensor_parallel, departures(case, row.configuration), len(row.label), row.label)

    return [one for group in by_time for one in sorted(group, key=simplest)]


def _same_chance(first: Contender, one: Contender) -> bool:
    return first.confidence.probability - one.confidence.probability <= CHANCE_RESOLUTION


def _same_time(first: Contender, one: Contender) -> bool:
    return one.trial.summary.overall.e2e.p95 <= first.trial.summary.overall.e2e.p95 * (1.0 + TIME_RESOLUTION)


def departures(case: Case, configuration: Configuration) -> int:
    """How many settings differ from what the engine does by itself: the measure of simplicity."""
    own = {name: variable.default(case) for name, variable in VARIABLES.items()}
    own["draft_tokens"] = default_draft_tokens(case, own["draft"])
    return sum(getattr(configuration, name) != value for name, value in own.items())


def screened(case: Case, trials: Sequence[Pair], seeded: Pair | None) -> list[Pair]:
    """The trials worth judging further, each outcome once: sizes that the traffic never reaches change nothing.

    Those that are tied for the first objective come first, by how much of their deadlines they leave; then the next best. The closed
    form's choice stays among them, and so does the whole Pareto front. Where nothing is on time: the nearest to it.
    """
    found: dict[tuple[float, ...], Pair] = {}
    for pair in (seeded, *trials) if seeded is not None else trials:
        found.setdefault(_outcome(pair[1]), pair)
    every = sorted(found, key=lambda mark: _place(found[mark]))
    fine = [mark for mark in every if not found[mark][1].late]
    if not fine:
        return [found[mark] for mark in sorted(every, key=lambda mark: found[mark][1].shortfall)][:SHOWN]
    best = found[fine[0]][1]
    even = [mark for mark in fine if tied(case, best, found[mark][1])]
    even.sort(key=lambda mark: max(found[mark][1].used.values(), default=0.0))
    first = list(dict.fromkeys((fine[0], *even, *fine)))
    front = [mark for mark in first if _undominated(found[mark], [found[one] for one in fine])]
    kept = set(front[: 4 * SHOWN]) if len(case.scenario.objectives) > 1 else set()
    kept |= {_outcome(seeded[1])} & set(fine) if seeded is not None else set()
    others = [mark for mark in first if mark not in kept][: max(0, SHOWN - len(kept))]
    return [found[mark] for mark in first if mark in kept or mark in others]


def _outcome(trial: Trial) -> tuple[float, ...]:
    return tuple(float(f"{value:.9g}") for value in (*trial.values.values(), trial.summary.overall.e2e.mean, trial.shortfall))


def _place(pair: Pair) -> tuple[float | str, ...]:
    return (*pair[1].values.values(), pair[0].model_dump_json())


def _undominated(pair: Pair, fine: Sequence[Pair]) -> bool:
    mine = tuple(pair[1].values.values())
    others = (tuple(other.values.values()) for _, other in fine)
    return not any(other != mine and all(a <= b for a, b in zip(other, mine, strict=True)) for other in others)
