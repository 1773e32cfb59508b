"""Where the winner changes: along memory exactly (only at a configuration's own need), along output length by bisection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from models.case import Case
from models.describe.configuration import Configuration
from models.describe.engine import not_launchable
from models.errors import GoodputError
from planner.answer import Relaxation, SwitchPoint
from planner.predict import outward
from planner.relax import feasible_in_space, shorter_output, smaller_burst
from planner.resolve import CalibrationLookup, resolve
from planner.scenario_file import parse_scenario, with_value
from solvers.grid import Grid, single
from solvers.objective import score
from solvers.space import build_space, configuration_from

MEMORY = {"kv_budget": "hardware.kv_budget", "device_memory": "hardware.memory"}
LENGTHS = (1, 4, 16, 64, 256, 1024, 4096)
Profile = dict[str, tuple[float, int, bool, bool]]
"""Label -> (score, memory need in KiB, all other limits hold, launchable)."""


def switch_points(raw: Mapping[str, Any], case: Case, stored: CalibrationLookup | None) -> tuple[SwitchPoint, ...]:
    """Winners along memory, then along output length, each list starting at the smallest value."""
    along_memory = memory_switches(case, profile(case))
    if case.scenario.candidates is None:
        return along_memory
    return (*along_memory, *length_switches(raw, case, stored))


def limited_by(case: Case) -> str:
    """The memory limit that the scenario states: the pool, or the whole device."""
    return "kv_budget" if case.scenario.hardware.kv_budget is not None else "device_memory"


def profile(case: Case) -> Profile:
    """Score and memory need of each candidate, or of the best few of a coarse grid of the space."""
    if case.scenario.candidates is None:
        return _space_profile(case)
    found: Profile = {}
    for label, given in case.scenario.candidates.items():
        one = configuration_from(case, given, f"candidates.{label}")
        found[label] = _one(case, one)
    return found


def _one(case: Case, configuration: Configuration) -> tuple[float, int, bool, bool]:
    grid, _ = single(case, configuration)
    at = grid.point(grid.columns, grid.b, grid.a, grid.c, grid.o)
    name = limited_by(case)
    need = next(int(np.asarray(c.value(at)).flat[0]) for c in grid.limits if c.name == name)
    others = all(bool(np.all(c.holds(at))) for c in grid.limits if c.name != name)
    return float(grid.measured(at).flat[0]), need, others, not not_launchable(configuration, case.engine)


def _space_profile(case: Case) -> Profile:
    """Cells of a coarse grid that no other beats in both score and memory need, labelled by what sets them apart."""
    grid = Grid.of(case, build_space(case))
    name = limited_by(case)
    k = grid.columns.shaped(-1, 1, 1, 1)
    b = grid.b[np.unique(np.linspace(0, len(grid.b) - 1, 17).round().astype(np.intp))].reshape(1, -1, 1, 1)
    c = grid.c[np.unique(np.searchsorted(grid.c, np.geomspace(grid.c[0], grid.c[-1], 6)).clip(0, len(grid.c) - 1))].reshape(1, 1, -1, 1)
    o = grid.o[np.unique(np.linspace(0, len(grid.o) - 1, 5).round().astype(np.intp))].reshape(1, 1, 1, -1)
    at = grid.point(k, b, grid.a[-1:].reshape(1, 1, 1, 1), c, o)
    need = next(x.value(at) for x in grid.limits if x.name == name)
    relaxed = grid.minimising(name)
    values = np.where(np.isfinite(relaxed.scored(at)), score(case, case.scenario.objectives[0], at.k, at.outcome), np.inf)
    need = np.broadcast_to(need, values.shape)
    order = np.lexsort((values.ravel(), need.ravel()))
    kept: Profile = {}
    best = float("inf")
    for flat in order[np.isfinite(values.ravel()[order])]:
        value = float(values.ravel()[flat])
        if value < best * (1 - 1e-12):
            best = value
            where = np.unravel_index(int(flat), values.shape)
            label = _label(grid, int(where[0]), int(b.ravel()[where[1]]), int(o.ravel()[where[3]]))
            kept.setdefault(label, (value, int(need.ravel()[flat]), True, True))
    return kept


def _label(grid: Grid, branch: int, b: int, o: int) -> str:
    i = [int(n) for n in np.unravel_index(branch, grid.axes.shape)]
    draft, _ = grid.axes.speculation[i[4]]
    shared = ", shared prefix" if grid.axes.prefix_sharing[i[3]] else ""
    offload = ", offload" if o else ""
    formats = f"{grid.axes.weight_format[i[1]]} weights, {grid.axes.kv_format[i[2]].value} KV"
    return f"{formats}{shared}, draft {draft.value}{offload}, {b} sequences"


def memory_switches(case: Case, found: Profile) -> tuple[SwitchPoint, ...]:
    """The winner as the memory limit grows: it can change only where one more configuration fits."""
    path = MEMORY[limited_by(case)]
    steps = winners_by_memory(found)
    if not steps:
        return ()
    points = [SwitchPoint(path=path, value=outward(need, "KiB"), winner=label) for need, label in steps if need > 0]
    at_nothing = [label for need, label in steps if need <= 0]
    return (SwitchPoint(path=path, value="0 B", winner=at_nothing[-1] if at_nothing else None), *points)


def winners_by_memory(found: Profile) -> list[tuple[int, str]]:
    """(limit in KiB, winner from it on), ascending; below the first nothing fits."""
    steps: list[tuple[int, str]] = []
    able = {label: row for label, row in found.items() if row[2] and row[3] and np.isfinite(row[0])}
    for need in sorted({row[1] for row in able.values()}):
        fitting = {label: row[0] for label, row in able.items() if row[1] <= need}
        best = min(fitting, key=lambda label: (fitting[label], label))
        if not steps or best != steps[-1][1]:
            steps.append((need, best))
    return steps


def winner_at(raw: Mapping[str, Any], stored: CalibrationLookup | None) -> str | None:
    """The best feasible and launchable candidate of changed scenario data, or of its space."""
    try:
        case = resolve(parse_scenario(raw), stored)
        if case.scenario.candidates is None:
            return feasible_in_space(case)
        limit = _limit_kib(case)
        rows = {label: row for label, row in profile(case).items() if row[1] <= limit and row[2] and row[3]}
    except GoodputError:
        return None
    return min(rows, key=lambda label: (rows[label][0], label)) if rows else None


def _limit_kib(case: Case) -> int:
    budget = case.scenario.hardware.kv_budget
    return (budget if budget is not None else case.memory_limit) // 1024


def length_switches(raw: Mapping[str, Any], case: Case, stored: CalibrationLookup | None) -> tuple[SwitchPoint, ...]:
    """The winner along output length, from one token to four times the scenario's, boundaries found by bisection."""
    path = f"workload.{case.class_name}.output_tokens"
    known: dict[int, str | None] = {}

    def winner(tokens: int) -> str | None:
        if tokens not in known:
            known[tokens] = winner_at(with_value(raw, path, tokens), stored)
        return known[tokens]

    longest = 4 * case.request.output_tokens
    samples = sorted({n for n in LENGTHS if n < longest} | {case.request.output_tokens, longest})
    points = [SwitchPoint(path=path, value=str(samples[0]), winner=winner(samples[0]))]
    for low, high in pairwise(samples):
        points.extend(SwitchPoint(path=path, value=str(n), winner=winner(n)) for n in _changes(low, high, winner))
    return tuple(points) if len(points) > 1 else ()


def _changes(low: int, high: int, winner: Callable[[int], str | None]) -> list[int]:
    """Lengths in (low, high] at which the winner differs from one token less, found by halving where the ends differ."""
    if winner(low) == winner(high):
        return []
    if high - low == 1:
        return [high]
    middle = (low + high) // 2
    return _changes(low, middle, winner) + _changes(middle, high, winner)


def length_relaxations(raw: Mapping[str, Any], case: Case, stored: CalibrationLookup | None) -> tuple[Relaxation, ...]:
    """The longest output and the largest burst with which something is feasible."""

    def feasible(changed: Mapping[str, Any]) -> str | None:
        return winner_at(changed, stored)

    found = (shorter_output(raw, case, feasible), smaller_burst(raw, case, feasible))
    return tuple(one for one in found if one is not None)
