"""The oracle: every cell of an enumerable grid, evaluated in blocks of arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.errors import SolverError
from solvers.grid import Cell, Grid

BLOCK = 1 << 19
LARGEST = 1 << 34


@dataclass(frozen=True)
class Best:
    """The best cell of a search (None: none is feasible), its score, and how many cells were looked at."""

    cell: Cell | None
    score: float
    evaluated: int


def solve(grid: Grid) -> Best:
    """The feasible cell of least score; ties go to the first in axis order."""
    per_branch = solve_branches(grid)
    best = min(per_branch, key=lambda found: found.score, default=Best(None, float("inf"), 0))
    return Best(best.cell, best.score, grid.size)


def solve_branches(grid: Grid) -> list[Best]:
    """The best cell of each branch, in branch order; infeasible branches have score infinity."""
    inner = (len(grid.b), len(grid.a), len(grid.c), len(grid.o))
    cells = int(np.prod(inner))
    branches = len(grid.columns.buffers)
    if cells * branches > LARGEST:
        raise SolverError("the grid is too large to enumerate", value=cells * branches, way_out="list fewer values under search")
    step = max(1, BLOCK // max(cells, 1))
    found: list[Best] = []
    for start in range(0, branches, step):
        index = np.arange(start, min(start + step, branches))
        found.extend(_block(grid, index, inner))
    return found


def _block(grid: Grid, index: np.ndarray, inner: tuple[int, int, int, int]) -> list[Best]:
    k = grid.columns.take(index).shaped(-1, 1, 1, 1, 1)
    b, a = grid.b.reshape(1, -1, 1, 1, 1), grid.a.reshape(1, 1, -1, 1, 1)
    c, o = grid.c.reshape(1, 1, 1, -1, 1), grid.o.reshape(1, 1, 1, 1, -1)
    values = np.broadcast_to(grid.scored(grid.point(k, b, a, c, o)), (len(index), *inner)).reshape(len(index), -1)
    where = values.argmin(axis=1)
    found = []
    for row, (branch, flat) in enumerate(zip(index, where, strict=True)):
        value = float(values[row, flat])
        at = np.unravel_index(int(flat), inner)
        cell = Cell(int(branch), int(grid.b[at[0]]), int(grid.a[at[1]]), int(grid.c[at[2]]), int(grid.o[at[3]]))
        found.append(Best(cell if np.isfinite(value) else None, value, values.shape[1]))
    return found
