"""CP-SAT's assumption core: limits that are together sufficient for infeasibility, over all classes of the space."""

from __future__ import annotations

from solvers import cpsat
from solvers.cpsat_model import build_model
from solvers.cpsat_tables import build, split_classes
from solvers.full_resolution import bounded_cells
from solvers.grid import Grid
from solvers.ortools_door import cp_model

LARGEST_CLASS = 400
"""Cells of a class beyond which the core is left to the deletion filter alone."""


def assumption_core(grid: Grid, seconds: float = 5.0) -> tuple[str, ...] | None:
    """Union over the classes of the limits in each one's core; None where a class is too large or ends without a proof."""
    if cpsat.applicable(grid) is not None:
        return None
    limits = cpsat.limits_of(grid)
    core: set[str] = set()
    _, cells = bounded_cells(grid.limited_to(frozenset()))
    for key, index in split_classes(grid, cells).items():
        if len(index) > LARGEST_CLASS:
            return None
        tables = build(grid, cells.take(index), key)
        if not tables.cells:
            continue
        built = build_model(tables, limits, cpsat.widest(tables), assume=True)
        built.model.add_assumptions(list(built.assumptions.values()))
        solver = cpsat.new_solver(seconds, 0)
        if solver.solve(built.model) != cp_model.INFEASIBLE:
            return None
        names = {literal.index: name for name, literal in built.assumptions.items()}
        core |= {names[i] for i in solver.sufficient_assumptions_for_infeasibility() if i in names}
    return tuple(c.name for c in grid.limits if c.name in core)
