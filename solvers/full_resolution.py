"""The best cell of a space at full resolution, by bounding and evaluating with the very same models.

A cell here is a branch with its resident sequences b and admission a; the long axes c (token budget) and o (offloaded layers) are
searched inside. Two lower bounds, both evaluations of the model itself:
    1. o layers needed: memory forces at least o_min layers out; every smaller o is infeasible.
    2. time: one prefill step of all tokens is never slower than many (step time is subadditive: reads of weights, host time and
       saturation are paid once), so the time at an unlimited budget bounds every budget; copies grow with o and with steps, so the
       fewest steps that memory admits bound the copies.
Cells are visited in order of their bound; the search ends when the next bound is not below the incumbents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.errors import OutOfTimeError
from solvers.constraints import Point
from solvers.grid import Cell, Grid

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
STRUCTURAL = ("served", "context", "sequences")
TIMED = ("e2e", "ttft", "itl", "tpot")
MEMORY = ("device_memory", "kv_budget")
CHUNK_OF_CELLS = 2048
POINTS_AT_ONCE = 1 << 14
CELLS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Found:
    """Best cell of each of the best groups of branches, ascending by score; the least bound not explored (infinite: none is left)."""

    best: tuple[tuple[float, Cell], ...]
    bound: float
    evaluated: int
    complete: bool = True  # False: ended by the clock


@dataclass(frozen=True)
class Cells:
    """Flat arrays of cells: branch, b, a."""

    branch: Ints
    b: Ints
    a: Ints

    def take(self, index: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Cells:
        return Cells(self.branch[index], self.b[index], self.a[index])


Bounded = tuple[Floats, Cells]


def solve(grid: Grid, keep: int = 1, cutoff: float = float("inf"), bounded: Bounded | None = None) -> Found:
    """The ``keep`` best groups with their best cells, exactly. Scores at or above ``cutoff`` are not looked for.

    A group holds the branches that differ only in draft length, prefetch buffers and captured sizes.
    """
    groups = _groups(grid)
    bound, cells = bounded_cells(grid) if bounded is None else bounded
    order = np.argsort(bound, kind="stable")
    bound, cells = bound[order], cells.take(order)
    best: dict[int, tuple[float, Cell]] = {}
    evaluated = len(bound)
    start, width, complete = 0, 16, True
    while start < len(bound):
        worst = _worst(best, keep, cutoff)
        if not bound[start] < worst:
            break
        if grid.out_of_time():
            complete = False
            break
        stop = start + int(np.searchsorted(bound[start : start + width], worst))
        evaluated += _visit(grid, cells.take(np.arange(start, stop)), bound[start:stop], groups, best, cutoff)
        start, width = stop, min(width * 2, CHUNK_OF_CELLS)
    ranked = sorted(best.values(), key=lambda pair: (pair[0], pair[1].branch))[:keep]
    return Found(tuple(ranked), float(bound[start]) if start < len(bound) else float("inf"), evaluated, complete)


def _worst(best: dict[int, tuple[float, Cell]], keep: int, cutoff: float) -> float:
    """Score that a new branch must beat."""
    scores = sorted(score for score, _ in best.values())
    return min(scores[keep - 1], cutoff) if len(scores) >= keep else cutoff


def _all_cells(grid: Grid, branches: Ints) -> Cells:
    branch, b, a = np.meshgrid(branches, grid.b, grid.a, indexing="ij")
    return Cells(branch.ravel(), b.ravel(), a.ravel())


def _layers_needed(grid: Grid, at: Point) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Fewest offloaded layers with which a cell fits every memory limit at its smallest budget, and whether any number does."""
    k = at.k
    excess = np.full(1, -(1 << 50), dtype=np.int64)  # below 0: room to spare, which the prefetch buffers may use
    for limit in grid.limits:
        if limit.name in MEMORY:
            excess = np.maximum(excess, limit.value(at) - limit.limit)
    some = k.buffers > 0
    room = np.where(some, excess + k.buffers * k.layer_kib, excess)
    needed = np.where(some, np.maximum(-(-room // np.maximum(k.layer_kib, 1)), 1), 0)
    largest = np.where(some, grid.o.max(), 0)
    allowed = np.where(some, needed <= largest, excess <= 0) & np.where(some, np.any(grid.o > 0), np.any(grid.o == 0))
    index = np.minimum(np.searchsorted(grid.o, needed), len(grid.o) - 1)
    return np.where(some, grid.o[index], 0), allowed


@dataclass(frozen=True)
class _Optimistic:
    """Every cell at its best: ``fast`` in time (few layers offloaded, one prefill step), ``fits`` in memory at ``smallest`` budget."""

    cells: Cells
    smallest: Ints
    fits: npt.NDArray[np.bool_]
    fast: Point


def _optimistic(grid: Grid, branches: Ints) -> _Optimistic:
    cells = _all_cells(grid, branches)
    k = grid.columns.take(cells.branch)
    requests = np.minimum(np.maximum(cells.b // k.samples, 1), np.minimum(cells.a, grid.case.requests))
    rows = requests * k.samples * k.rows_per_sequence
    smallest = grid.c[np.minimum(np.searchsorted(grid.c, np.minimum(rows, grid.c[-1])), len(grid.c) - 1)]
    lean = grid.point(k, cells.b, cells.a, smallest, np.zeros(1, dtype=np.int64))
    needed, fits = _layers_needed(grid, lean)
    fast = grid.point(k, cells.b, cells.a, grid.c[-1:], needed)
    return _Optimistic(cells, smallest, fits & np.ones(len(cells.b), dtype=np.bool_), fast)


def unreachable(grid: Grid, branches: npt.NDArray[np.bool_]) -> tuple[str, ...]:
    """Limits that no cell of ``branches`` meets even at its best."""
    met: set[str] = set()
    fits = False
    for part in _parts(grid, np.flatnonzero(branches)):
        some = _optimistic(grid, part)
        fits = fits or bool(some.fits.any())
        met |= {c.name for c in grid.limits if c.name not in MEMORY and bool(np.any(c.holds(some.fast) & some.fits))}
    return tuple(c.name for c in grid.limits if (c.name in MEMORY) != fits and c.name not in met)


def _parts(grid: Grid, branches: Ints) -> Iterator[Ints]:
    """Branches in parts of so many cells as fit memory well; stops with an error when the time is used up."""
    step = max(1, CELLS_AT_ONCE // (len(grid.b) * len(grid.a)))
    for start in range(0, len(branches), step):
        if grid.out_of_time():
            raise OutOfTimeError(
                "the time limit ended before the space was bounded", value=f"{start} of {len(branches)} branches",
                way_out="list fewer values under search, or raise the time limit",
            )  # fmt: skip
        yield branches[start : start + step]


def bounded_cells(grid: Grid) -> tuple[Floats, Cells]:
    """Lower bound of each cell's score, for the cells that may be feasible at all."""
    whole = np.arange(len(grid.columns.buffers))
    found = [_bounded_part(grid, part) for part in _parts(grid, whole if grid.launchable is None else whole[grid.launchable])]
    if not found:
        none = np.zeros(0, dtype=np.int64)
        return np.zeros(0), Cells(none, none, none)
    cells = Cells(*(np.concatenate([getattr(c, name) for _, c in found]) for name in ("branch", "b", "a")))
    return np.concatenate([value for value, _ in found]), cells


def _bounded_part(grid: Grid, branches: Ints) -> Bounded:
    at = _optimistic(grid, branches)
    cells, fast, possible = at.cells, at.fast, at.fits
    k, zero, smallest = fast.k, np.zeros(1, dtype=np.int64), at.smallest
    for limit in grid.limits:
        if limit.name in STRUCTURAL or limit.name in TIMED:
            possible = possible & limit.holds(fast)
    leanest = grid.point(k, cells.b, cells.a, smallest, np.where(k.buffers > 0, grid.o[-1], zero)) if grid.target in MEMORY else fast
    value = np.broadcast_to(grid.measured(leanest), possible.shape)
    keep = possible & np.isfinite(value)
    return value[keep], cells.take(keep)


def _groups(grid: Grid) -> Ints:
    """Group number of each branch: its place on the axes that a user tells configurations apart by."""
    codes = np.unravel_index(np.arange(len(grid.columns.buffers)), grid.axes.shape)
    drafts = [draft.value for draft, _ in grid.axes.speculation]
    graphs = [on for on, _, _ in grid.axes.graphs]
    told = [*codes[:4], np.unique(drafts, return_inverse=True)[1][codes[4]], np.unique(graphs, return_inverse=True)[1][codes[6]], codes[7]]
    return np.unique(np.stack(told), axis=1, return_inverse=True)[1].ravel()


def _visit(grid: Grid, cells: Cells, bound: Floats, groups: Ints, best: dict[int, tuple[float, Cell]], cutoff: float) -> int:
    """Evaluate the whole (c, o) plane of each cell whose bound can still improve its group; update the group's best."""
    evaluated = 0
    some = grid.columns.buffers[cells.branch] > 0
    for buffered in (False, True):
        offloads = grid.o[(grid.o > 0) == buffered]
        if not len(offloads):
            continue
        together = max(1, POINTS_AT_ONCE // (len(grid.c) * len(offloads)))
        waiting = np.flatnonzero(some == buffered)
        for start in range(0, len(waiting), together):
            part = waiting[start : start + together]
            hopeful = [int(i) for i in part if bound[i] < best.get(int(groups[cells.branch[i]]), (cutoff,))[0]]
            if hopeful:
                evaluated += _planes(grid, cells.take(np.array(hopeful)), offloads, groups, best, cutoff)
    return evaluated


def _planes(grid: Grid, cells: Cells, offloads: Ints, groups: Ints, best: dict[int, tuple[float, Cell]], cutoff: float) -> int:
    """Evaluate the planes of ``cells`` in one go; of equal scores the first cell in order stays."""
    k = grid.columns.take(cells.branch).shaped(-1, 1, 1)
    b, a = cells.b.reshape(-1, 1, 1), cells.a.reshape(-1, 1, 1)
    shape = (len(cells.b), len(grid.c), len(offloads))
    values = np.broadcast_to(grid.scored(grid.point(k, b, a, grid.c.reshape(1, -1, 1), offloads.reshape(1, 1, -1))), shape)
    flat = values.reshape(len(cells.b), -1)
    for i, where in enumerate(flat.argmin(axis=1).tolist()):
        value, branch = float(flat[i, where]), int(cells.branch[i])
        group = int(groups[branch])
        if value < min(best.get(group, (cutoff,))[0], cutoff):
            c, o = divmod(where, len(offloads))
            best[group] = (value, Cell(branch, int(cells.b[i]), int(cells.a[i]), int(grid.c[c]), int(offloads[o])))
    return int(values.size)
