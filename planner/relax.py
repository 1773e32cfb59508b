"""When nothing is feasible: the limits in conflict, and for each limit the smallest change that makes something feasible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from models.case import Case
from models.describe.configuration import Configuration
from models.describe.engine import not_launchable
from models.kernels.burst import NEVER
from models.units import parse_bytes
from planner.answer import Relaxation
from planner.predict import outward
from planner.scenario_file import with_value
from solvers import conflict, full_resolution
from solvers.grid import Grid, single
from solvers.space import build_space

SYMBOL = {"KiB": "≥", "us": "≥", "tokens": "≥"}


@dataclass(frozen=True)
class Infeasibility:
    """Conflicting limits by name and the single relaxations of limits."""

    conflicts: tuple[str, ...]
    relaxations: tuple[Relaxation, ...]


def of_candidates(case: Case, configurations: Mapping[str, Configuration]) -> Infeasibility:
    """Over the named configurations that the engine can run; nothing when it can run none, since no limit is to blame then."""
    table = {label: _values(case, one) for label, one in configurations.items() if not not_launchable(one, case.engine)}
    names = conflict.relaxable(single(case, next(iter(configurations.values())))[0])

    def possible(kept: frozenset[str]) -> bool:
        return any(all(ok or (name in names and name not in kept) for name, (_, ok, _) in row.items()) for row in table.values())

    found: list[Relaxation] = []
    for name in names:
        others = {label: row[name] for label, row in table.items() if all(ok for other, (_, ok, _) in row.items() if other != name)}
        reached = {label: value for label, (value, _, _) in others.items() if value < NEVER}
        if reached:
            label = min(reached, key=lambda one: (reached[one], one))
            found.extend(_relaxation(case, name, reached[label], others[label][2], label))
    return Infeasibility(conflict.minimal(names, possible) if not possible(frozenset(names)) else (), tuple(found))


def _values(case: Case, configuration: Configuration) -> dict[str, tuple[int, bool, str]]:
    """Each limit's (value, holds, unit) of one configuration."""
    grid, _ = single(case, configuration)
    at = grid.point(grid.columns, grid.b, grid.a, grid.c, grid.o)
    return {c.name: (int(np.asarray(c.value(at)).flat[0]), bool(np.all(c.holds(at))), c.unit) for c in grid.limits}


def of_space(case: Case, grid: Grid) -> Infeasibility:
    """Over the whole space at full resolution; the conflict begins from CP-SAT's assumption core."""
    from solvers import core  # noqa: PLC0415

    found: list[Relaxation] = []
    for name in conflict.relaxable(grid):
        least = conflict.least(grid, name)
        if least is not None:
            found.extend(_relaxation(case, name, least.value, least.unit, _short(case, grid.configuration(least.cell))))
    return Infeasibility(conflict.conflicts(grid, core.assumption_core(grid)), tuple(found))


def _short(case: Case, configuration: Configuration) -> str:
    shared = "shared prefix" if configuration.prefix_sharing else ""
    parts = [f"{configuration.kv_format.value} KV", shared, f"draft {configuration.draft.value}"]
    if configuration.weight_format != case.stored_format:
        parts.insert(0, f"{configuration.weight_format} weights")
    if configuration.tensor_parallel > 1:
        parts.append(f"TP {configuration.tensor_parallel}")
    if configuration.offload_layers:
        parts.append(f"{configuration.offload_layers} layers offloaded")
    return ", ".join([f"{configuration.max_num_seqs} sequences", *(p for p in parts if p)])


def _relaxation(case: Case, name: str, value: int, unit: str, winner: str) -> list[Relaxation]:
    """The relaxation in the user's units; none where the card itself or the instance has not as much memory.

    None either at or below zero: with layers offloaded the pool needs less than nothing, so this limit is not what keeps answers
    from being good (each may be wrong).
    """
    if value <= 0:
        return []
    path = {
        "kv_budget": "hardware.kv_budget", "device_memory": "hardware.memory", "context": "engine.max_model_len",
    }.get(name, f"workload.{case.class_name}.slo.{name}")  # fmt: skip
    shown = outward(value, unit)
    most = {"device_memory": case.device.memory_bytes, "kv_budget": case.scenario.hardware.memory or case.device.memory_bytes}.get(name)
    if most is not None and parse_bytes(shown) > most:
        return []
    return [Relaxation(path=path, value=shown, text=f"{name} {SYMBOL[unit]} {shown}", winner=winner)]


def shorter_output(raw: Mapping[str, Any], case: Case, feasible: Callable[[Mapping[str, Any]], str | None]) -> Relaxation | None:
    """The longest output with which something is feasible: bisection, since a longer output never needs less."""
    return _largest(raw, case, "output_tokens", case.request.output_tokens, feasible)


def smaller_burst(raw: Mapping[str, Any], case: Case, feasible: Callable[[Mapping[str, Any]], str | None]) -> Relaxation | None:
    """The largest burst with which something is feasible."""
    return _largest(raw, case, "arrivals.burst", case.requests, feasible)


def _largest(
    raw: Mapping[str, Any], case: Case, field: str, now: int, feasible: Callable[[Mapping[str, Any]], str | None]
) -> Relaxation | None:  # fmt: skip
    path = f"workload.{case.class_name}.{field}"
    low, high, winner = 0, now, None
    while high - low > 1:
        middle = (low + high) // 2
        label = feasible(with_value(raw, path, middle))
        if label is None:
            high = middle
        else:
            low, winner = middle, label
    if winner is None:
        return None
    name = field.rsplit(".", maxsplit=1)[-1]
    return Relaxation(path=path, value=str(low), text=f"{name} ≤ {low}", winner=winner)


def feasible_in_space(case: Case) -> str | None:
    """A short name of some feasible configuration of the case's space, or None."""
    from planner.launchability import launchable_branches  # noqa: PLC0415

    grid = Grid.of(case, build_space(case))
    able = launchable_branches(grid)
    grid = replace(grid, launchable=able) if bool(able.any()) else grid
    found = full_resolution.solve(grid).best
    return _short(case, grid.configuration(found[0][1])) if found else None
