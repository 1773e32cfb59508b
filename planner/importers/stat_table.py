"""The CSV of AIPerf and genai-perf: ``Metric,avg,min,…`` and below it ``Metric,Value``, the unit in brackets behind the metric's name.

It is read into the same mapping as their JSON. It says neither model nor load.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from planner.importers import aiperf
from planner.importers.common import Draft, Origin

_NAME = re.compile(r"^(.+?)(?: \(([^()]*)\))?$")
_THOUSANDS = re.compile(r"^\d{1,3}(,\d{3})+(\.\d+)?$")


def matches(header: Sequence[str]) -> bool:
    """A column of metrics, and one of their mean or value."""
    return header[0] == "Metric" and bool({"avg", "Value"} & set(header))


def draft(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Draft:
    """The one run of the table; sections that describe something else (GPU telemetry) are skipped."""
    metrics: dict[str, Any] = {}
    columns = [*header]
    for row in rows:
        if row[0] == "Metric":
            columns = [*row]
        elif len(row) == len(columns) and (found := _NAME.match(row[0])):
            unit = (found.group(2) or "").replace("per sec", "1/sec")
            cells = dict(zip(columns[1:], map(_plain, row[1:]), strict=True))
            cells["avg"] = cells.get("avg", cells.pop("Value", None))
            metrics.setdefault(found.group(1).strip().lower().replace(" ", "_"), {"unit": unit, **cells})
        else:
            columns = []
    return next(aiperf.drafts(metrics, Origin("", "")))


def _plain(cell: str) -> str | None:
    """Without the commas that genai-perf puts between thousands; None for what was not measured."""
    cell = cell.strip()
    if cell in {"", "N/A"}:
        return None
    return cell.replace(",", "") if _THOUSANDS.match(cell) else cell
