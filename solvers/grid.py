"""Evaluating many configurations at once: the axes of a space as arrays, and one cell of it as a configuration.

Axis order of every grid: branch, resident sequences b, admission a, token budget c, offloaded layers o.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from models.case import BranchAxes, Case
from models.columns import Columns
from models.describe.configuration import Configuration
from models.lower import lower
from models.service import Limits, evaluate, every_request_counts
from solvers.constraints import Constraint, Point, constraints, feasible
from solvers.objective import score
from solvers.space import Space

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
MIXED = 5  # index of prefetch_buffers among the branch axes


@dataclass(frozen=True)
class Cell:
    """One configuration of a grid by its values: branch number and the four integers."""

    branch: int
    b: int
    a: int
    c: int
    o: int


@dataclass(frozen=True)
class Grid:
    """A space made ready for evaluation. ``a`` holds the number of requests where there is no admission limit."""

    case: Case
    axes: BranchAxes
    columns: Columns
    b: Ints
    a: Ints
    c: Ints
    o: Ints
    limits: tuple[Constraint, ...]
    target: str | None = None  # name of the constraint whose value is minimised instead of the objective
    launchable: Bools | None = None  # branches that the engine can run; None: all
    exact: bool = False  # count late requests one by one even where a search need not
    until: float | None = None  # monotonic seconds at which a search must stop; None: no limit

    def out_of_time(self) -> bool:
        """Whether the search's time is used up."""
        return self.until is not None and time.monotonic() > self.until

    def minimising(self, target: str) -> Grid:
        """The same grid searched for the least value of one constraint, which itself no longer limits."""
        return replace(self, limits=tuple(c for c in self.limits if c.name != target), target=target)

    def limited_to(self, names: frozenset[str]) -> Grid:
        """The same grid under the named constraints and the structural ones alone."""
        return replace(self, limits=tuple(c for c in self.limits if c.name in names or c.relaxable is None))

    @classmethod
    def of(cls, case: Case, space: Space, limits: tuple[Constraint, ...] | None = None) -> Grid:
        """The space with values that change nothing merged: more sequences than requests, budgets beyond all tokens."""
        columns = lower(case, space.axes)
        sequences = case.requests * case.request.samples
        rows = int((sequences * columns.rows_per_sequence).max())
        tokens = int(max((case.requests * columns.new_tokens).max(), columns.prefix_tokens.max(), rows))
        admission = sorted({case.requests if a is None else min(a, case.requests) for a in space.admission_limit})
        served = Limits.of(case.request.slo, case.requests).served
        admission = [a for a in admission if a >= served] or admission  # fewer would break the constraint "served" by themselves
        return cls(
            case, space.axes, columns, b=_merged(space.max_num_seqs, sequences), a=np.array(admission, dtype=np.int64),
            c=_merged(space.max_num_batched_tokens, tokens), o=np.array(space.offload_layers, dtype=np.int64),
            limits=constraints(case) if limits is None else limits,
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Cells of the grid, offload and buffers matched."""
        n = len(self.columns.buffers)
        none = int(np.count_nonzero(self.columns.buffers == 0)) * int(np.any(self.o == 0))
        some = int(np.count_nonzero(self.columns.buffers > 0)) * int(np.count_nonzero(self.o > 0))
        return (none + some) * len(self.b) * len(self.a) * len(self.c) if n else 0

    def point(self, k: Columns, b: Ints, a: Ints, c: Ints, o: Ints) -> Point:
        """Evaluate broadcast arrays."""
        spared = not self.exact and every_request_counts(self.case.request.slo)
        return Point(k, b, a, c, o, evaluate(self.case, k, b, a, c, o, all_on_time=spared))

    def scored(self, at: Point) -> Floats:
        """The first objective of each cell, infinite where a constraint is broken or offload and buffers do not match."""
        matched = (at.o > 0) == (at.k.buffers > 0)
        return np.where(feasible(self.limits, at) & matched, self.measured(at), np.inf)

    def measured(self, at: Point) -> Floats:
        """What is minimised: the scenario's first objective, or the target constraint's value."""
        if self.target is None:
            return score(self.case, self.case.scenario.objectives[0], at.k, at.outcome)
        target = next(c for c in constraints(self.case) if c.name == self.target)
        return np.asarray(target.value(at), dtype=np.float64)

    def configuration(self, cell: Cell) -> Configuration:
        """The settings of a cell."""
        shape = self.axes.shape
        at = np.unravel_index(cell.branch, shape)
        x, i = self.axes, [int(n) for n in at]
        draft, draft_tokens = x.speculation[i[4]]
        graphs, sizes, per_sequence = x.graphs[i[6]]
        return Configuration(
            max_num_seqs=cell.b, max_num_batched_tokens=cell.c, prefill_chunk=x.prefill_chunk[i[7]], kv_format=x.kv_format[i[2]],
            weight_format=x.weight_format[i[1]], prefix_sharing=x.prefix_sharing[i[3]], offload_layers=cell.o,
            prefetch_buffers=x.prefetch_buffers[i[5]], draft=draft, draft_tokens=draft_tokens,
            admission_limit=None if cell.a >= self.case.requests else cell.a, tensor_parallel=x.tensor_parallel[i[0]],
            cuda_graphs=graphs,
            captured_sizes=tuple(size * (draft_tokens + 1) for size in sizes) if per_sequence else sizes,
        )  # fmt: skip


def _merged(values: tuple[int, ...], enough: int) -> Ints:
    """Ascending values; of those at or above ``enough``, which are all alike, only the smallest."""
    below = [v for v in values if v < enough]
    above = [v for v in values if v >= enough]
    return np.array(below + above[:1], dtype=np.int64)


def single(case: Case, configuration: Configuration) -> tuple[Grid, Cell]:
    """A grid of exactly one configuration, kept as it is."""
    space_axes = BranchAxes.of(configuration)
    one = np.ones(1, dtype=np.int64)
    a = case.requests if configuration.admission_limit is None else configuration.admission_limit
    cell = Cell(0, configuration.max_num_seqs, a, configuration.max_num_batched_tokens, configuration.offload_layers)
    grid = Grid(
        case, space_axes, lower(case, space_axes), one * cell.b, one * cell.a, one * cell.c, one * cell.o, constraints(case), exact=True
    )
    return grid, cell
