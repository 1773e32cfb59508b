"""Exact search with CP-SAT over the full-resolution space, class by class, each with its own proof.

Inside a class (see ``cpsat_tables``) the number of good requests and devices is constant, so the score is proportional to one time:
the model minimises whole microseconds, and scores of classes are compared as the grid computes them. A class whose least possible
score is not below the incumbent's is closed by that bound; every other one is closed by CP-SAT. The status is ``optimal`` only when
every class is closed. "Optimal" is not taken on CP-SAT's word alone: ``planner.plan`` checks it against ``full_resolution``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.describe.scenario import Objective
from models.errors import SolverError
from models.kernels.burst import NEVER
from solvers.cpsat_model import ClassModel, build_model
from solvers.cpsat_tables import Tables, build, split_classes
from solvers.full_resolution import Bounded, bounded_cells
from solvers.grid import Cell, Grid
from solvers.objective import per_device, scale
from solvers.ortools_door import cp_model
from solvers.status import Solution, Status, Termination

LIMITED = ("kv_budget", "device_memory", "e2e", "ttft", "itl", "tpot")
SLACK = 1 + 1e-9


@dataclass
class _State:
    """Incumbent and proof while classes are closed one after the other."""

    score: float
    cell: Cell | None = None
    bound: float = float("inf")
    timed_out: bool = False
    explored: int = 0


def applicable(grid: Grid) -> str | None:
    """Why this case is outside the CP-SAT model; None when it is inside."""
    slo = grid.case.request.slo
    if any(d.percentile < 100 for d in (slo.itl, slo.tpot) if d is not None):
        return "a percentile below 100 on itl or tpot"
    below = any(d.percentile < 100 for d in (slo.e2e, slo.ttft) if d is not None)
    if below and grid.case.request.quality is not None and grid.case.request.quality.retries:
        return "retries with a percentile below 100"
    if grid.case.scenario.objectives[0] is Objective.LATENCY and below:
        return "latency as the objective with a percentile below 100"
    return None


def solve(
    grid: Grid, *, cutoff: float = float("inf"), time_limit_s: float = 30.0, seed: int = 0, bounded: Bounded | None = None
) -> Solution:  # fmt: skip
    """The least score over the whole space with its proof. ``cutoff``: a score that is known to be reachable."""
    started = time.monotonic()
    state = _State(score=cutoff * SLACK if np.isfinite(cutoff) else cutoff)
    bound, cells = bounded_cells(grid) if bounded is None else bounded
    classes = split_classes(grid, cells)
    order = sorted(classes, key=lambda key: (_class_bound(bound, classes[key]), str(key)))
    for key in order:
        least = _class_bound(bound, classes[key])
        if not least < state.score:
            state.bound = min(state.bound, least)
            continue
        open_cells = classes[key][bound[classes[key]] < state.score]
        state.explored += len(open_cells)
        left = time_limit_s - (time.monotonic() - started)
        tables = build(grid, cells.take(open_cells), key)
        if tables.cells:
            _close(grid, tables, state, least, max(left, 0.01), seed)
    return _solution(state, cutoff)


def _solution(state: _State, cutoff: float) -> Solution:
    if state.timed_out:
        return Solution(Status.TIME_LIMIT, Termination.LIMIT, state.score, min(state.bound, state.score), state.cell, state.explored)
    if state.cell is None:
        if np.isfinite(cutoff):
            raise SolverError("CP-SAT found nothing at a score that the grid reaches", value=cutoff, way_out="please report this scenario")
        return Solution(Status.INFEASIBLE, Termination.PROVEN, float("inf"), float("inf"), None, state.explored)
    return Solution(Status.OPTIMAL, Termination.PROVEN, state.score, state.score, state.cell, state.explored)


def _class_bound(bound: Any, index: Any) -> float:
    """Least score of a class: its cells' bounds, which already count how many answers can be on time at best."""
    return float(bound[index].min())


def limits_of(grid: Grid) -> dict[str, int]:
    """Right-hand sides by name, TPOT as a limit on the whole decode phase."""
    gaps = max(grid.case.request.output_tokens - 1, 1)
    found = {c.name: c.limit for c in grid.limits if c.name in LIMITED}
    if "tpot" in found:
        found["tpot"] *= gaps
    return found


def _horizon(grid: Grid, tables: Tables, state: _State) -> int:
    """Largest makespan worth a domain: what the incumbent's score allows, else the slowest schedule of the tables."""
    key = tables.key
    whole = widest(tables)
    if not np.isfinite(state.score) or grid.case.scenario.objectives[0] is Objective.LATENCY:
        return int(min(whole, int(NEVER)))
    one = _score(grid, tables, 1_000_000)
    return int(min(whole, np.ceil(state.score / one * 1e6) + 1, int(NEVER))) if key.on_time else whole


def widest(tables: Tables) -> int:
    """An upper bound on any time of a class: its slowest phases, with every copy added."""
    slowest = max(sum(row.waves) + len(row.waves) for row in tables.cells)
    phase = max((max(row.decode) for row in tables.cells), default=0) + max(max(row.prefill) for group in tables.chunks for row in group)
    steps = max(max(row.steps) for group in tables.chunks for row in group) + max(tables.rounds_per_phase.values())
    top = max(tables.offloads, default=0)
    return int(min((slowest + 1) * (2 * phase + top * tables.copy_us * steps) + 1, int(NEVER)))


def _score(grid: Grid, tables: Tables, makespan_us: int) -> float:
    """Score of a makespan in this class, up to the retries' share of good answers (which only lowers it)."""
    objective = grid.case.scenario.objectives[0]
    q = float(grid.columns.probability_correct[tables.cells[0].branch])
    retries = grid.case.request.quality.retries if grid.case.request.quality else 0
    good = tables.key.on_time * (1.0 - (1.0 - q) ** (retries + 1))
    devices = tables.key.devices if per_device(objective) else 1
    return scale(grid.case, objective) * devices * makespan_us / 1e6 / good if good else float("inf")


def _close(grid: Grid, tables: Tables, state: _State, least: float, seconds: float, seed: int) -> None:
    """Solve one class and fold its answer into ``state``."""
    built = build_model(tables, limits_of(grid), _horizon(grid, tables, state))
    latency = grid.case.scenario.objectives[0] is Objective.LATENCY
    built.model.minimize(built.e2e if latency else built.makespan)
    solver = new_solver(seconds, seed)
    status = solver.solve(built.model)
    if status == cp_model.MODEL_INVALID:
        raise SolverError("CP-SAT refused the model", value=built.model.validate(), way_out="please report this scenario")
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        cell = read_cell(solver, built)
        value = score_of(grid, cell)
        if value < state.score or (state.cell is None and value <= state.score):
            state.score, state.cell = value, cell
    if status in (cp_model.FEASIBLE, cp_model.UNKNOWN):
        state.timed_out = True
        reached = solver.best_objective_bound / 1e6 if latency else _score(grid, tables, int(solver.best_objective_bound))
        state.bound = min(state.bound, max(least, reached))


def new_solver(seconds: float, seed: int) -> Any:
    """A single-threaded solver, so that the same seed gives the same answer."""
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.random_seed = seed
    solver.parameters.num_workers = 1
    solver.parameters.linearization_level = 1
    return solver


def read_cell(solver: Any, built: ClassModel) -> Cell:
    """The configuration of a solution."""
    t = built.tables
    row = next(row for row, literal in zip(t.cells, built.y, strict=True) if solver.boolean_value(literal))
    chunk = next(r for r, literal in zip(t.chunks[row.group], built.z[row.group], strict=True) if solver.boolean_value(literal))
    o = next(o for o, literal in zip(t.offloads, built.w, strict=True) if solver.boolean_value(literal))
    return Cell(row.branch, row.b, t.key.admitted, chunk.c, o)


def score_of(grid: Grid, cell: Cell) -> float:
    """The grid's own score of a cell; infinite would mean that the two disagree about feasibility."""
    k = grid.columns.take(np.array([cell.branch]))
    one = np.ones(1, dtype=np.int64)
    value = float(grid.scored(grid.point(k, one * cell.b, one * cell.a, one * cell.c, one * cell.o)).flat[0])
    if not np.isfinite(value):
        raise SolverError("CP-SAT's configuration breaks a constraint of the grid", value=cell, way_out="please report this scenario")
    return value
