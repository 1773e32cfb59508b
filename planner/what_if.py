"""What if: the same scenario with some values changed, before and after side by side, with what changed and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.units import format_bytes, format_seconds
from planner.answer import Answer, Part, Ranked
from planner.plan import Options, plan
from planner.scenario_file import with_value


class Assignment(Part):
    """One changed value by its scenario path."""

    path: str
    before: Any
    after: Any


class ConfigurationChange(Part):
    """How one configuration's standing changed; null where it is absent on one side."""

    id: str
    rank: tuple[int | None, int | None]
    feasible: tuple[bool | None, bool | None]
    makespan_s: tuple[float | None, float | None]
    total_bytes: tuple[int | None, int | None]
    objective: tuple[float | None, float | None]
    why: str


class WhatIf(Part):
    """Both answers and their difference."""

    assignments: tuple[Assignment, ...]
    winner: tuple[str | None, str | None]
    summary: str
    configurations: tuple[ConfigurationChange, ...]
    before: Answer
    after: Answer


class Sweep(Part):
    """The winner at each value of one path."""

    path: str
    values: tuple[Any, ...]
    winners: tuple[str | None, ...]
    answers: tuple[Answer, ...]


def what_if(
    raw: Mapping[str, Any], changes: Sequence[tuple[str, Any]], options: Options | None = None, before: Answer | None = None
) -> WhatIf:
    """Plan with and without ``changes`` (path, value); ``before`` spares the first plan where it is known."""
    options = options or Options(explain=False, launch=False)
    changed: dict[str, Any] = dict(raw)
    for path, value in changes:
        changed = with_value(changed, path, value)
    first = before or plan(raw, options)
    second = plan(changed, options)
    assignments = tuple(Assignment(path=path, before=value_at(raw, path), after=value) for path, value in changes)
    rows = _rows(first, second)
    winners = (first.winner.id if first.winner else None, second.winner.id if second.winner else None)
    return WhatIf(
        assignments=assignments, winner=winners, summary=_summary(first, second, winners), configurations=rows, before=first, after=second
    )


def sweep(raw: Mapping[str, Any], path: str, values: Sequence[Any], options: Options | None = None) -> Sweep:
    """Plan at each value of ``path``."""
    options = replace(options or Options(), explain=False, launch=False)
    answers = tuple(plan(with_value(raw, path, value), options) for value in values)
    return Sweep(path=path, values=tuple(values), winners=tuple(a.winner.id if a.winner else None for a in answers), answers=answers)


def value_at(raw: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path, None where it is not written."""
    here: Any = raw
    for part in path.split("."):
        if not isinstance(here, Mapping) or part not in here:
            return None
        here = here[part]
    return here


def _rows(before: Answer, after: Answer) -> tuple[ConfigurationChange, ...]:
    old, new = ({one.id: one for one in answer.configurations} for answer in (before, after))
    return tuple(_row(label, old.get(label), new.get(label)) for label in dict.fromkeys([*old, *new]))


def _row(label: str, old: Ranked | None, new: Ranked | None) -> ConfigurationChange:
    return ConfigurationChange(
        id=label, rank=(old.rank if old else None, new.rank if new else None),
        feasible=(old.feasible if old else None, new.feasible if new else None),
        makespan_s=(old.time.makespan_s if old else None, new.time.makespan_s if new else None),
        total_bytes=(old.memory.total_bytes if old else None, new.memory.total_bytes if new else None),
        objective=(old.objective if old else None, new.objective if new else None), why=_why(old, new),
    )  # fmt: skip


def _why(old: Ranked | None, new: Ranked | None) -> str:
    """In words: which limits began or ceased to bind, and how time and memory moved."""
    if old is None or new is None:
        return "only after the change" if old is None else "only before the change"
    broken = {v.constraint for v in new.violations} - {v.constraint for v in old.violations}
    mended = {v.constraint for v in old.violations} - {v.constraint for v in new.violations}
    parts = [f"now breaks {', '.join(sorted(broken))}"] if broken else []
    parts += [f"now meets {', '.join(sorted(mended))}"] if mended else []
    if old.settings != new.settings:
        differing = [f"{k} {old.settings[k]} → {v}" for k, v in new.settings.items() if old.settings[k] != v]
        parts.append("settings: " + ", ".join(differing))
    if abs(new.time.makespan_s - old.time.makespan_s) > 5e-7:
        parts.append(f"time {format_seconds(old.time.makespan_s)} → {format_seconds(new.time.makespan_s)}")
    if new.memory.total_bytes != old.memory.total_bytes:
        parts.append(f"memory {format_bytes(old.memory.total_bytes)} → {format_bytes(new.memory.total_bytes)}")
    return "; ".join(parts) or "unchanged"


def _summary(before: Answer, after: Answer, winners: tuple[str | None, str | None]) -> str:
    if winners[0] == winners[1]:
        kept = f"{winners[0]} stays first" if winners[0] else "still nothing is feasible"
        return kept + (f" ({before.winner.objective:.4g} → {after.winner.objective:.4g})" if before.winner and after.winner else "")
    if winners[1] is None:
        return f"nothing is feasible any more ({winners[0]} was first)"
    return f"{winners[1]} is first" + (f" instead of {winners[0]}" if winners[0] else ", before nothing was feasible")
