"""Three searches written apart (enumeration, bounding at full resolution, CP-SAT) must give the very same optimum on every grid."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from solvers import conflict, core, cpsat, exhaustive, full_resolution, incumbent
from solvers.grid import Grid
from solvers.status import Status
from tests.laws.support import examples, grid_of, scenarios

INFINITE = float("inf")


def score_at(grid: Grid, cell) -> float:
    one = np.ones(1, dtype=np.int64)
    k = grid.columns.take(np.array([cell.branch]))
    return float(grid.scored(grid.point(k, one * cell.b, one * cell.a, one * cell.c, one * cell.o)).flat[0])


@examples(100)
@given(scenarios())
def test_full_resolution_finds_the_optimum_of_the_enumeration(raw):
    grid = grid_of(raw)
    oracle = exhaustive.solve(grid)
    found = full_resolution.solve(grid)
    assert (found.best[0][0] if found.best else INFINITE) == oracle.score
    for score, cell in found.best:
        assert score_at(grid, cell) == score


@examples(100)
@given(scenarios(proven_only=True), st.booleans())
def test_cpsat_finds_the_optimum_of_the_enumeration(raw, with_incumbent):
    grid = grid_of(raw)
    assert cpsat.applicable(grid) is None
    oracle = exhaustive.solve(grid)
    start = incumbent.find(grid) if with_incumbent else INFINITE
    assert start >= oracle.score
    found = cpsat.solve(grid, cutoff=start, time_limit_s=120.0)
    assert found.status is (Status.OPTIMAL if oracle.cell else Status.INFEASIBLE)
    assert found.score == oracle.score
    assert found.bound == oracle.score
    if found.cell is not None:
        assert score_at(grid, found.cell) == found.score


@examples(60)
@given(scenarios())
def test_best_of_each_group_is_the_best_of_the_enumeration(raw):
    """The runner-up list: of branches that differ only in draft length, buffers and capture sizes the best one, in ascending order."""
    grid = grid_of(raw)
    groups = full_resolution._groups(grid)
    least: dict[int, float] = {}
    for group, best in zip(groups.tolist(), exhaustive.solve_branches(grid), strict=True):
        least[group] = min(least.get(group, INFINITE), best.score)
    expected = sorted(value for value in least.values() if np.isfinite(value))[:12]
    assert [score for score, _ in full_resolution.solve(grid, keep=12).best] == expected


@examples(40)
@given(scenarios(), st.sampled_from([None, "kv_budget", "device_memory", "e2e", "ttft", "itl", "tpot"]))
def test_the_bound_bounds_every_cell_and_drops_none_that_is_feasible(raw, target):
    grid = grid_of(raw)
    if target is not None:
        assume(any(limit.name == target for limit in grid.limits))
        grid = grid.minimising(target)
    bound, cells = full_resolution.bounded_cells(grid)
    known = {(int(n), int(b), int(a)): float(v) for n, b, a, v in zip(cells.branch, cells.b, cells.a, bound, strict=True)}
    c, o = grid.c.reshape(-1, 1), grid.o.reshape(1, -1)
    every = full_resolution._all_cells(grid, np.arange(len(grid.columns.buffers)))
    for n, b, a in zip(every.branch, every.b, every.a, strict=True):
        k = grid.columns.take(np.array([n])).shaped(1, 1)
        least = float(grid.scored(grid.point(k, b.reshape(1, 1), a.reshape(1, 1), c, o)).min())
        assert known.get((int(n), int(b), int(a)), INFINITE) <= least


@examples(60)
@given(scenarios(), st.integers(0, 6))
def test_least_relaxation_is_the_least_over_the_enumeration(raw, which):
    grid = grid_of(raw)
    names = conflict.relaxable(grid)
    target = grid.minimising(names[which % len(names)])
    oracle = exhaustive.solve(target)
    found = conflict.least(grid, names[which % len(names)])
    reachable = oracle.cell is not None and oracle.score < float(1 << 50)
    assert (None if found is None else found.value) == (int(oracle.score) if reachable else None)


@examples(60)
@given(scenarios())
def test_a_conflict_cannot_hold_and_everything_smaller_can(raw):
    grid = grid_of(raw)

    def possible(names):  # a quantity that is finite everywhere, since the objective is infinite where nothing is on time
        return exhaustive.solve(replace(grid.limited_to(names), target="device_memory")).cell is not None

    assume(not possible(frozenset(conflict.relaxable(grid))))
    found = conflict.conflicts(grid, core.assumption_core(grid))
    if not possible(frozenset()):
        assert found == ()
        return
    assert not possible(frozenset(found))
    for name in found:
        assert possible(frozenset(found) - {name})


@examples(40)
@given(scenarios(), st.integers(0, 2**30))
def test_branches_that_the_engine_cannot_run_are_left_out(raw, seed):
    grid = grid_of(raw)
    able = np.random.default_rng(seed).random(len(grid.columns.buffers)) < 0.5
    assume(bool(able.any()))
    oracle = min(best.score for ok, best in zip(able, exhaustive.solve_branches(grid), strict=True) if ok)
    some = replace(grid, launchable=able)
    found = full_resolution.solve(some)
    assert (found.best[0][0] if found.best else INFINITE) == oracle
    if cpsat.applicable(some) is None:
        assert cpsat.solve(some, time_limit_s=120.0).score == oracle
