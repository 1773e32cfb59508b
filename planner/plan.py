"""The use case: a scenario in, ranked and proven configurations out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from models.case import Case
from models.catalog.devices import catalogue_version
from models.describe.configuration import Configuration
from models.errors import InputError, SolverError
from planner.answer import SCHEMA_VERSION, Answer, CalibrationUsed, Ranked
from planner.coverage import asked_of_burst, extrapolation
from planner.decision import choices
from planner.explain import explain
from planner.launch_commands import launch_commands
from planner.launchability import launchable, launchable_branches
from planner.options import Options
from planner.predict import predict
from planner.ranking import order, pareto_front, wins
from planner.rejections import left_out_notes, rejected_values
from planner.relax import Infeasibility, of_candidates, of_space
from planner.resolve import resolve
from planner.scenario_file import parse_scenario
from planner.weigh import Standing, standing
from solvers import full_resolution, incumbent
from solvers.grid import Cell, Grid
from solvers.space import build_space, configuration_from, pinned
from solvers.status import Solution, Status, Termination
from solvers.variables import default_sizes

__all__ = ["Options", "plan"]

EVERY_GROUP = 1 << 20
SHOWN = 12
"""Most configurations of a search that the answer lists."""


@dataclass(frozen=True)
class Outcome:
    """What a search or ranking produced before it is explained."""

    solution: Solution
    space: int
    configurations: tuple[Ranked, ...]
    solver: str
    infeasibility: Infeasibility | None
    warnings: tuple[str, ...] = ()
    rejected: Mapping[str, str] = field(default_factory=dict)


def plan(raw: Mapping[str, Any], options: Options | None = None) -> Answer:
    """Plan raw scenario data; every problem with it is an ``InputError``."""
    options = options or Options()
    started = time.perf_counter()
    scenario = parse_scenario(raw)
    if not scenario.is_burst:
        from planner.traffic.plan import plan_traffic  # noqa: PLC0415

        return plan_traffic(scenario, options, started)
    case = resolve(scenario, options.stored)
    outcome = _rank_candidates(case) if scenario.candidates is not None else _search(case, options)
    sure = Standing(outcome.configurations)
    if options.launch:
        sure = standing(case, outcome.configurations, choices(case, outcome.configurations), options.stored)
    return _answer(raw, case, replace(outcome, configurations=sure.ranked), sure, options, started)


def _answer(raw: Mapping[str, Any], case: Case, outcome: Outcome, sure: Standing, options: Options, started: float) -> Answer:
    solution = outcome.solution
    winner = outcome.configurations[0] if wins(case, outcome.configurations) else None
    status = Status.INFEASIBLE if winner is None and solution.status is not Status.TIME_LIMIT else solution.status
    bound = solution.bound if np.isfinite(solution.bound) else None
    objectives = case.scenario.objectives
    return Answer(
        schema_version=SCHEMA_VERSION, status=status, termination=solution.termination, solver=outcome.solver,
        objective=objectives[0], bound=bound, gap=solution.gap, evaluated=solution.evaluated, space=outcome.space,
        calibration=CalibrationUsed(name=case.calibration.name, version=case.calibration.version, requested=case.scenario.calibration),
        catalogue_version=catalogue_version(), engine=f"{case.engine.name} {case.engine.version}",
        warnings=(*case.warnings, *outcome.warnings, *sure.warnings, *_extrapolated(case, outcome)), order_decided=sure.decided,
        configurations=outcome.configurations,
        pareto_front=pareto_front(outcome.configurations),
        explanation=explain(
            raw, case, outcome.configurations, outcome.infeasibility, rejected=outcome.rejected, wanted=options.explain,
            stored=options.stored,
        ),
        launch=launch_commands(case, Configuration.model_validate(winner.settings)) if winner and options.launch else {},
        elapsed_s=round(time.perf_counter() - started, 4),
    )  # fmt: skip


def _extrapolated(case: Case, outcome: Outcome) -> list[str]:
    """How far the first configuration goes beyond what its calibration was measured on."""
    first = next(iter(outcome.configurations), None)
    if first is None:
        return []
    return extrapolation(case.calibration, asked_of_burst(case, Configuration.model_validate(first.settings)))


def _rank_candidates(case: Case) -> Outcome:
    """Exactly the named configurations, each evaluated in full."""
    named = case.scenario.candidates or {}
    configurations = {label: configuration_from(case, given, f"candidates.{label}") for label, given in named.items()}
    for label, one in configurations.items():
        if one.weight_format not in case.weights:
            raise InputError(
                "the model has no published checkpoint in this format", path=f"candidates.{label}.weight_format", value=one.weight_format,
                way_out=f"use one of {', '.join(case.weights)}",
            )  # fmt: skip
    ranked = order(case, [predict(case, label, one, launchable(case, one)) for label, one in configurations.items()])
    won = wins(case, ranked)
    score = ranked[0].objective if won and ranked[0].objective is not None else float("inf")
    status = Status.OPTIMAL if won else Status.INFEASIBLE
    solution = Solution(status, Termination.RANKED, score, score, None, len(ranked))
    return Outcome(solution, len(ranked), ranked, "named candidates", None if won else of_candidates(case, configurations))


def _search(case: Case, options: Options) -> Outcome:
    """The whole space at full resolution, and CP-SAT's proof held against it."""
    space = build_space(case)
    if space.size == 0:
        raise InputError("the search space is empty", path="search", way_out="list values that go together, or leave variables open")
    grid = replace(Grid.of(case, space), until=time.monotonic() + options.time_limit_s)
    able = launchable_branches(grid)
    grid = replace(grid, launchable=able) if bool(able.any()) else grid
    bounded = full_resolution.bounded_cells(grid)
    found = full_resolution.solve(grid, keep=EVERY_GROUP, bounded=bounded)
    solution, solver, notes = _proven(grid, bounded, found, options)
    best = [_settled(grid, score, cell) for score, cell in found.best[:SHOWN]]
    elsewhere = _not_launchable(grid, able)
    ranked = order(case, [_predicted(grid, str(i), cell) for i, cell in enumerate((*best, *elsewhere), start=1)])
    if len(case.scenario.objectives) > 1:
        ranked, solution, notes = _with_other_ends(grid, ranked, solution, notes)
    fresh = replace(grid, until=time.monotonic() + options.time_limit_s)
    infeasibility = of_space(case, fresh) if not best and found.complete else None
    rejected = rejected_values(fresh, found.best, able) if options.explain else {}
    kept = ", ".join(f"{name} {'none' if value is None else value}" for name, value in pinned(case).items() if value != ())
    notes = (*notes, f"not listed under search, so kept at the engine's default: {kept}") if kept else notes
    return Outcome(solution, space.size, ranked, solver, infeasibility, (*notes, *left_out_notes(case)), rejected)


def _not_launchable(grid: Grid, able: npt.NDArray[np.bool_]) -> list[Cell]:
    """The best few configurations that the engine cannot run, to be shown after those that it can."""
    if bool(able.all()) or not bool(able.any()):
        return []
    return [cell for _, cell in full_resolution.solve(replace(grid, launchable=~able), keep=4).best]


def _with_other_ends(
    grid: Grid, ranked: tuple[Ranked, ...], solution: Solution, notes: tuple[str, ...]
) -> tuple[tuple[Ranked, ...], Solution, tuple[str, ...]]:  # fmt: skip
    """Add the best groups for each further objective: the ends of the front are exact, between them stand groups' best."""
    found = list(ranked)
    for objective in grid.case.scenario.objectives[1:]:
        scenario = grid.case.scenario.model_copy(update={"objective": objective})
        other = replace(grid, case=replace(grid.case, scenario=scenario))
        for score, cell in full_resolution.solve(other, keep=SHOWN).best:
            one = _predicted(grid, str(len(found) + 1), _settled(other, score, cell))
            if all(one.settings != known.settings for known in found):
                found.append(one)
    note = "several objectives: each end of the front is exact, between the ends stand the best of each group of configurations"
    return order(grid.case, found), replace(solution, status=Status.FEASIBLE if found else solution.status), (*notes, note)


def _predicted(grid: Grid, label: str, cell: Cell) -> Ranked:
    configuration = grid.configuration(cell)
    return predict(grid.case, label, configuration, launchable(grid.case, configuration))


def _proven(
    grid: Grid, bounded: full_resolution.Bounded, found: full_resolution.Found, options: Options
) -> tuple[Solution, str, tuple[str, ...]]:  # fmt: skip
    """CP-SAT's answer checked against the full-resolution search: a disagreement is an error that names both."""
    from solvers import cpsat  # noqa: PLC0415

    best = found.best[0] if found.best else None
    mine = Solution(
        Status.FEASIBLE if best else Status.INFEASIBLE, Termination.PROVEN, best[0] if best else float("inf"),
        best[0] if best else float("inf"), best[1] if best else None, found.evaluated,
    )  # fmt: skip
    if not found.complete:
        late = Solution(Status.TIME_LIMIT, Termination.LIMIT, mine.score, min(found.bound, mine.score), mine.cell, mine.evaluated)
        return late, "full resolution", ("the time limit ended the search: something better may exist",)
    outside = cpsat.applicable(grid)
    if not options.prove or outside is not None:
        why = f"no CP-SAT proof: {outside}; the full-resolution search covers the space" if outside else "no CP-SAT proof was asked for"
        return (
            Solution(mine.status, Termination.NOT_APPLICABLE, mine.score, mine.bound, mine.cell, mine.evaluated),
            "full resolution",
            (why,),
        )
    start = incumbent.find(grid, bounded)
    left = max(1.0, (grid.until or float("inf")) - time.monotonic())
    theirs = cpsat.solve(grid, cutoff=start, time_limit_s=left, seed=options.seed, bounded=bounded)
    if theirs.status is Status.TIME_LIMIT:
        return Solution(theirs.status, theirs.termination, mine.score, theirs.bound, mine.cell, mine.evaluated), "full resolution", ()
    if (theirs.cell is None) != (best is None) or (best is not None and theirs.score != best[0]):
        raise SolverError(
            f"two exact searches disagree: CP-SAT {theirs.score!r} at {theirs.cell}, full resolution {mine.score!r} at {mine.cell}",
            way_out="please report this scenario; neither answer is given as a plan",
        )
    return (
        Solution(theirs.status, theirs.termination, mine.score, theirs.bound, mine.cell, mine.evaluated),
        "CP-SAT, checked at full resolution",
        (),
    )


def _settled(grid: Grid, score: float, cell: Cell) -> Cell:
    """Among budgets of the very same score, the one nearest the engine's own default."""
    k = grid.columns.take(np.array([cell.branch]))
    one = np.ones(1, dtype=np.int64)
    values = grid.scored(grid.point(k, one * cell.b, one * cell.a, grid.c, one * cell.o))
    same = grid.c[np.flatnonzero(values == score)]
    if not len(same):
        return cell
    nearest = same[np.argmin(np.abs(np.log(same / default_sizes(grid.case)[1])))]
    return Cell(cell.branch, cell.b, cell.a, int(nearest), cell.o)
