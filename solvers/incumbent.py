"""A good configuration found quickly: the cells of least bound at a few budgets and offload counts. No proof, only a start."""

from __future__ import annotations

import numpy as np

from solvers.full_resolution import Bounded, bounded_cells
from solvers.grid import Grid

CELLS, BUDGETS, OFFLOADS = 256, 24, 12


def _spread(values: np.ndarray, count: int) -> np.ndarray:
    """At most ``count`` of ascending values, evenly spread with both ends."""
    if len(values) <= count:
        return values
    return values[np.unique(np.linspace(0, len(values) - 1, count).round().astype(np.intp))]


def find(grid: Grid, bounded: Bounded | None = None) -> float:
    """The least score among them, infinite when none is feasible."""
    bound, cells = bounded_cells(grid) if bounded is None else bounded
    if not len(bound):
        return float("inf")
    order = np.argsort(bound, kind="stable")[:CELLS]
    some = cells.take(order)
    c = np.unique(np.concatenate([_spread(grid.c, BUDGETS), grid.c[:1], grid.c[-1:]]))
    geometric = grid.c[np.unique(np.searchsorted(grid.c, np.geomspace(grid.c[0], grid.c[-1], BUDGETS)).clip(0, len(grid.c) - 1))]
    c = np.unique(np.concatenate([c, geometric])).reshape(1, -1, 1)
    o = _spread(grid.o, OFFLOADS).reshape(1, 1, -1)
    k = grid.columns.take(some.branch).shaped(-1, 1, 1)
    values = grid.scored(grid.point(k, some.b.reshape(-1, 1, 1), some.a.reshape(-1, 1, 1), c, o))
    return float(values.min())
