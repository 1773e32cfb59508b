"""What the charts show, as plain rows: memory against time, and the winner over memory limit x output length.

Memory in GiB, time in seconds, lengths in tokens. The switch map is exact along memory (a winner changes only at a configuration's own
need) and sampled along length, with the boundaries that the answer already found among the samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from models.case import Case
from models.errors import GoodputError
from models.units import GIB
from planner.answer import Answer, Ranked
from planner.charts.labels import placed
from planner.resolve import CalibrationLookup, resolve
from planner.scenario_file import parse_scenario, with_value
from planner.switches import profile, winners_by_memory

NOTHING = "nothing is feasible"
FIRST, MEETS, BREAKS, ELSEWHERE = "first", "meets every limit", "breaks a limit", "cannot be launched here"
_KIB_IN_GIB = 1 << 20
Column = list[tuple[float, str]]
"""(GiB, winner from it on) at one output length, ascending."""
_SAMPLES = {True: 72, False: 20}  # lengths of a map: named candidates are cheap, a space is not


@dataclass(frozen=True)
class Limits:
    """The feasible region: memory in GiB with its name, the deadline of the whole answer in seconds where one is set."""

    memory_gib: float
    memory_name: str
    deadline_s: float | None


@dataclass(frozen=True)
class SwitchMap:
    """Rectangles of one winner each: ``{from_tokens, to_tokens, from_gib, to_gib, winner}``, and where the scenario stands."""

    cells: list[dict[str, Any]]
    path: str
    tokens: int
    memory_gib: float
    most_gib: float
    sampled: bool  # a space is sampled along both axes; named candidates are exact at every boundary


def limits_of(case: Case) -> Limits:
    """The two limits of the chapter's figure 8-35."""
    deadline = case.request.slo.e2e
    budget = case.scenario.hardware.kv_budget
    name = "KV and buffers" if budget is not None else "device memory"
    limit = budget if budget is not None else case.memory_limit
    return Limits(limit / GIB, name, deadline.limit if deadline else None)


def points(answer: Answer) -> list[dict[str, Any]]:
    """One row for each configuration: memory that the limit counts, time, 90 % interval, how it stands."""
    rows = []
    for one in answer.configurations:
        low, high = one.intervals.get("e2e_s", (one.time.makespan_s, one.time.makespan_s))
        used = one.memory.pool_bytes if one.memory.pool_limit_bytes is not None else one.memory.total_bytes
        settings = ", ".join(f"{name} {value}" for name, value in one.settings.items() if value not in (None, []))
        row = {"id": one.id, "gib": used / GIB, "seconds": one.time.makespan_s, "low": low, "high": high}
        rows.append(row | {"standing": _standing(answer, one), "settings": settings})
    return rows


def _standing(answer: Answer, one: Ranked) -> str:
    if one.launchable.get(answer.engine.split()[0]) is not True:
        return ELSEWHERE
    if not one.feasible:
        return BREAKS
    return FIRST if one.rank == 1 else MEETS


def labelled(rows: list[dict[str, Any]], right: float, top: float, size: tuple[int, int]) -> list[dict[str, Any]]:
    """Rows that carry a label (``label, dx, dy, align``); ``right`` and ``top`` end the axes, ``size`` is the drawing in pixels."""
    across, up = size[0] / right, size[1] / top
    labels = placed([(str(row["id"]), row["gib"] * across, row["seconds"] * up) for row in rows])
    return [{**rows[one.row], "gib": one.x / across, **one.mark} for one in labels]


def switch_map(
    raw: Mapping[str, Any], answer: Answer, case: Case, stored: CalibrationLookup | None, step: Callable[[float], None]
) -> SwitchMap:  # fmt: skip
    """Winners from one output token to four times the scenario's; ``step`` hears the share that is done."""
    path = f"workload.{case.class_name}.output_tokens"
    tokens = case.request.output_tokens
    known = {int(point.value) for point in answer.explanation.switch_points if point.path == path}
    count = _SAMPLES[case.scenario.candidates is not None]
    lengths = sorted({int(n) for n in np.geomspace(1, 4 * tokens, count).round()} | known | {tokens})
    columns: dict[int, Column] = {}

    def at(length: int) -> Column:
        if length not in columns:
            columns[length] = _column(with_value(raw, path, length), stored)
        return columns[length]

    for i, length in enumerate(lengths):
        at(length)
        step((i + 1) / len(lengths))
    if case.scenario.candidates is not None:
        for low, high in pairwise(lengths):
            _boundaries(low, high, at)
    limit = limits_of(case).memory_gib
    most = max([limit * 1.3, *(start * 1.08 for column in columns.values() for start, _ in column)])
    return SwitchMap(_merged(_cells(dict(sorted(columns.items())), most)), path, tokens, limit, most, case.scenario.candidates is None)


def _boundaries(low: int, high: int, at: Callable[[int], Column]) -> None:
    """Evaluate the lengths on both sides of every change of winners in (low, high], by halving."""
    if high - low <= 1 or _names(at(low)) == _names(at(high)):
        return
    middle = (low + high) // 2
    _boundaries(low, middle, at)
    _boundaries(middle, high, at)


def _names(column: Column) -> list[str]:
    return [winner for _, winner in column]


def _column(changed: Mapping[str, Any], stored: CalibrationLookup | None) -> Column:
    try:
        found = winners_by_memory(profile(resolve(parse_scenario(changed), stored)))
    except GoodputError:  # longer than the model's window, for one: nothing is feasible there
        found = []
    return [(0.0, NOTHING), *((max(need / _KIB_IN_GIB, 0.0), label) for need, label in found)]


def _cells(columns: Mapping[int, Column], most: float) -> list[dict[str, Any]]:
    edges = [*columns, max(columns) + 1]
    cells: list[dict[str, Any]] = []
    for (left, right), column in zip(pairwise(edges), columns.values(), strict=True):
        starts = [start for start, _ in column]
        for (low, winner), high in zip(column, [*starts[1:], most], strict=True):
            if high > low:
                cells.append({"from_tokens": left, "to_tokens": right, "from_gib": low, "to_gib": high, "winner": winner})
    return cells


def _merged(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbours along length with the same winner and memory become one rectangle."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    merged: list[dict[str, Any]] = []
    for cell in cells:
        key = (cell["from_gib"], cell["to_gib"], cell["winner"])
        before = found.get(key)
        if before is not None and before["to_tokens"] == cell["from_tokens"]:
            before["to_tokens"] = cell["to_tokens"]
        else:
            found[key] = cell
            merged.append(cell)
    return merged


def name_places(cells: list[dict[str, Any]], width: int) -> list[dict[str, Any]]:
    """Where each winner's name fits into its own area: the middle of its widest stretch; ``width`` is the drawing in pixels."""
    longest = max(cell["to_tokens"] for cell in cells)
    places = []
    for winner in dict.fromkeys(cell["winner"] for cell in cells):
        own = [cell for cell in cells if cell["winner"] == winner]
        heights = {
            (cell["from_gib"] + cell["to_gib"]) / 2 for cell in own if cell["to_gib"] - cell["from_gib"] > 0.06 * cells[-1]["to_gib"]
        }
        runs = [(run, at) for at in heights for run in _runs([c for c in own if c["from_gib"] < at < c["to_gib"]])]
        if runs:
            (left, right), at = max(runs, key=lambda run: run[0][1] / run[0][0])
            if math.log(right / left) / math.log(longest) * width > 9 * len(winner):
                places.append({"winner": winner, "tokens": math.sqrt(left * right), "gib": at})
    return places


def _runs(cells: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Unbroken stretches of length covered by ``cells``."""
    runs: list[tuple[float, float]] = []
    for cell in sorted(cells, key=lambda c: float(c["from_tokens"])):
        if runs and runs[-1][1] == cell["from_tokens"]:
            runs[-1] = (runs[-1][0], cell["to_tokens"])
        else:
            runs.append((cell["from_tokens"], cell["to_tokens"]))
    return runs


def shared_words(names: list[str]) -> tuple[str, dict[str, str]]:
    """What all of several comma-separated names have in common, and each name without it."""
    split = [name.split(", ") for name in names]
    common = [word for word in split[0] if all(word in other for other in split)] if len(split) > 1 else []
    return ", ".join(common), {
        name: ", ".join(w for w in words if w not in common) or name for name, words in zip(names, split, strict=True)
    }
