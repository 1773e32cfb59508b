"""Stored runs and what an import did, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any

from rich.text import Text

from api.views import parts
from planner.import_runs import Imported
from planner.ports import StoredRun
from planner.recalibrate import Drifted
from planner.records import Duplicate, Refusal
from planner.run_spool import StoredRuns

_SHOWN = 20


def run_row(run: StoredRun) -> dict[str, Any]:
    """One run in plain values."""
    record = run.record
    setup = record.setup
    return {
        "id": run.id, "added_at": run.added_at, "model": setup.model, "device": setup.device, "engine": setup.engine,
        "engine_version": setup.engine_version, "tp": setup.tensor_parallel, "format": record.format, "steps": len(record.steps),
        "serving": len(record.serving), "memory": len(record.memory), "file": record.source.file, "line": record.source.line,
        "content_hash": record.content_hash, "warnings": list(record.warnings),
    }  # fmt: skip


def runs_view(rows: Sequence[dict[str, Any]]) -> list[Any]:
    """Everything that ``goodput runs`` prints."""
    if not rows:
        return [Text("no run is stored; goodput import PATHS... stores some")]
    shown: list[tuple[str | Text, str | Text]] = []
    for row in rows:
        scope = parts.scope_words(row["model"], row["engine"], row["device"], row["tp"])
        seen = ", ".join(f"{row[n]} {word}" for n, word in (("steps", "steps"), ("serving", "loads"), ("memory", "memory")) if row[n])
        place = f"{row['file'].rsplit('/', maxsplit=1)[-1]}{':' + str(row['line']) if row['line'] else ''}"
        shown.append((str(row["id"]), f"{scope}; {row['format']}: {seen}; {place}"))
    return [parts.listing(shown)]


def drift_document(found: Drifted) -> dict[str, Any]:
    """Drift in plain values."""
    seen = found.found
    return {
        "calibration": found.name, "version": found.version, "runs": list(found.runs), "outside": list(seen.outside),
        "expected_outside": seen.expected, "bias": seen.bias, "drifted": seen.drifted,
    }  # fmt: skip


def drift_words(found: Drifted) -> str:
    """Drift in one sentence."""
    seen = found.found
    what = "have drifted from" if seen.drifted else "agree with"
    return (
        f"{len(found.runs)} new runs {what} {found.name}@{found.version}: {len(seen.outside)} outside the 90 % interval "
        f"({seen.expected:.1f} expected), median {seen.bias:+.1%} against the prediction"
        + (f"; outside: {', '.join(seen.outside[:6])}; goodput calibrate fits anew" if seen.drifted else "")
    )


class _Rows(list[dict[str, Any]]):
    """Rows that are made while JSON is written from them: a million at once would not fit."""

    def __init__(self, runs: StoredRuns) -> None:
        super().__init__()
        self._runs = runs

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(run_row, self._runs)


def import_document(found: Imported) -> dict[str, Any]:
    """What an import did, as JSON; ``counts`` also of those beyond the ones that are named."""
    counted: dict[str, Sized] = {"stored": found.stored, "incomplete": found.incomplete, "refused": found.refused, "ignored": found.ignored,
               "duplicates": found.duplicates}  # fmt: skip
    return {
        "counts": {name: len(some) for name, some in counted.items()}, "stored": _Rows(found.stored),
        "missing": [ask.model_dump() for ask in found.asks],
        "incomplete": [{"file": one.file, "line": one.line, "missing": list(one.missing)} for one in found.incomplete],
        "refused": [r.model_dump() for r in found.refused], "ignored": [r.model_dump() for r in found.ignored],
        "duplicates": [d.model_dump() for d in found.duplicates], "drift": [drift_document(d) for d in found.drifted],
    }  # fmt: skip


def import_view(found: Imported) -> list[Any]:
    """Everything that ``goodput import`` prints."""
    counts = [f"{len(found.stored)} stored", f"{len(found.duplicates)} known already", f"{len(found.refused)} refused"]
    counts += [f"{len(found.incomplete)} incomplete"] if found.incomplete else []
    counts += [f"{len(found.ignored)} set aside"] if found.ignored else []
    shown: list[Any] = [Text(", ".join(counts), parts.HEAD)]
    if found.asks:
        rows = [(ask.option, f"{ask.runs} runs do not say it, such as those of {ask.example_file}") for ask in found.asks]
        shown += parts.section("Missing: import again with", parts.listing(rows))
    shown += _listed("Refused", _grouped([(_place(r), r.reason) for r in found.refused]))
    seen = [(_place(d), "stored already" if d.first_seen == "stored" else f"first seen in {d.first_seen}") for d in found.duplicates]
    shown += _listed("Known already", _grouped(seen))
    shown += _listed("Mind", [f"run {number}: {warning}" for number, warning in found.warned])
    return shown + _listed("Against stored calibrations", [drift_words(d) for d in found.drifted])


def _place(one: Refusal | Duplicate) -> str:
    return f"{one.file}{f':{one.line}' if one.line else ''}{f' {one.where}' if one.where else ''}"


def _grouped(found: Sequence[tuple[str, str]]) -> list[str]:
    """Places and what was said of each; what many share stands once, with the first and the last place."""
    places: dict[str, list[str]] = {}
    for place, reason in found:
        places.setdefault(reason, []).append(place)
    return [f"{p[0]}{f' to {p[-1]} ({len(p)} of them)' if len(p) > 1 else ''}: {reason}" for reason, p in places.items()]


def _listed(title: str, lines: Sequence[str]) -> list[Any]:
    if not lines:
        return []
    more = [("", f"… and {len(lines) - _SHOWN} more (--json lists all)")] if len(lines) > _SHOWN else []
    return parts.section(title, parts.listing([*(("", line) for line in lines[:_SHOWN]), *more]))
