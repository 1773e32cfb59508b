"""Why nothing fits, and the least change of one limit that would.

Conflict: a set of limits that cannot hold together although every proper subset can (a deletion filter over an exact feasibility
test; CP-SAT's assumption core, where there is a CP-SAT model, is the set that the filter starts from).
Relaxation: the least value of one limited quantity over all configurations that satisfy every other limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from solvers import full_resolution
from solvers.grid import Cell, Grid


@dataclass(frozen=True)
class Least:
    """Least value of a limited quantity with the other limits kept, and the cell that reaches it."""

    name: str
    unit: str
    value: int
    cell: Cell


def relaxable(grid: Grid) -> tuple[str, ...]:
    """Names of the limits that a user can move."""
    return tuple(c.name for c in grid.limits if c.relaxable is not None)


def minimal(names: tuple[str, ...], possible: Callable[[frozenset[str]], bool]) -> tuple[str, ...]:
    """A minimal subset of ``names`` that is still impossible; empty when even the structure alone is (or everything is possible)."""
    kept = list(names)
    for name in names:
        without = [n for n in kept if n != name]
        if not possible(frozenset(without)):
            kept = without
    return tuple(kept)


def conflicts(grid: Grid, start: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """A minimal conflicting set of an infeasible grid, beginning from ``start`` (an assumption core) where one is known."""

    def possible(names: frozenset[str]) -> bool:
        # Any finite quantity serves as the target: the objective may be infinite where a dropped deadline leaves nothing good.
        return bool(full_resolution.solve(replace(grid.limited_to(names), target="device_memory")).best)

    names = relaxable(grid) if start is None or possible(frozenset(start)) else start
    return minimal(names, possible)


def least(grid: Grid, name: str) -> Least | None:
    """The smallest single relaxation of ``name``; None when the other limits cannot be met whatever this one is."""
    constraint = next(c for c in grid.limits if c.name == name)
    found = full_resolution.solve(grid.minimising(name)).best
    if not found or not np.isfinite(found[0][0]) or found[0][0] >= float(1 << 50):
        return None
    return Least(name, constraint.unit, int(found[0][0]), found[0][1])
