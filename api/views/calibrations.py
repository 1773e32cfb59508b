"""Calibrations as tables and documents: parameters with their spread, residuals, outliers, what was not used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from api.views import parts
from models.describe.calibration import Calibration
from planner.ports import StoredCalibration
from planner.recalibrate import Fitted

_SECONDS = ("host_s", "host_per_sequence_s", "collective_s", "request_s")


def shipped_row(one: Calibration) -> dict[str, Any]:
    """A calibration of the catalogue."""
    return _row(one.model_dump(mode="json"), one.name, one.version, None, "goodput")


def stored_row(stored: StoredCalibration) -> dict[str, Any]:
    """A stored version."""
    return _row(stored.document["calibration"], stored.name, str(stored.version), len(stored.run_ids), stored.created_at[:10])


def _row(described: dict[str, Any], name: str, version: str, runs: int | None, since: str) -> dict[str, Any]:
    spread = described["uncertainty"]
    return {
        "name": name, "version": version, "device": described["device"], "engine": described["engine"], "model": described["model"],
        "tp": described.get("tensor_parallel"), "prefill": f"{spread['prefill_log_sd']:.1%}",
        "decode": f"{spread['decode_log_sd']:.1%}",
        "runs": runs, "from": since,
    }  # fmt: skip


def calibrations_view(rows: Sequence[dict[str, Any]]) -> list[Any]:
    """Everything that ``goodput calibrations`` prints."""
    shown: list[tuple[str | Text, str | Text]] = []
    for row in rows:
        scope = parts.scope_words(row["model"], row["engine"], row["device"], row["tp"])
        since = f"{row['runs']} runs, {row['from']}" if row["runs"] is not None else "ships with goodput"
        spread = f"prefill ± {row['prefill']}, decode ± {row['decode']}"
        shown.append((f"{row['name']}@{row['version']}", f"{scope}; {spread}; {since}"))
    return [parts.listing(shown)]


def fitted_document(stored: StoredCalibration, fitted: Fitted, *, new: bool) -> dict[str, Any]:
    """A fit as JSON; ``new``: it was just stored, else it repeats the stored version."""
    return {"name": stored.name, "version": str(stored.version), "new": new, "created_at": stored.created_at, "runs": list(stored.run_ids),
            "for": str(fitted.key), **fitted.document}  # fmt: skip


def fitted_view(document: dict[str, Any]) -> list[Any]:
    """What ``goodput calibrate`` prints of one fit."""
    same = Text(f"nothing changed: {document['name']}@{document['version']} stays, no version is stored")
    return one_view(document) if document["new"] else [*one_view(document), same]


def one_view(document: dict[str, Any]) -> list[Any]:
    """One calibration, stored or shipped."""
    described, fit = document["calibration"], document.get("fit")
    spread = described["uncertainty"]
    scope = document.get("for") or " / ".join(str(described[n]) for n in ("model", "engine", "device") if described[n])
    title = f"{document['name']}@{document['version']}"
    shown: list[Any] = [Text.assemble((title, parts.HEAD), f"  {scope or 'any device and model'}")]
    rows = [
        ("prefill", f"± {spread['prefill_log_sd']:.1%} (one standard deviation of the log)"),
        ("decode", f"± {spread['decode_log_sd']:.1%}"),
        ("because", spread["source"]),
    ]
    shown += parts.section("Spread", parts.listing(rows))
    if fit is not None:
        shown += parts.section("Parameters", _parameters(fit))
        shown += parts.section("Residuals", parts.listing(_residuals(document)))
    if document.get("borrowed_from"):
        shown += parts.section("Prior from", parts.listing(("", one) for one in document["borrowed_from"]))
    if document.get("unused"):
        shown += parts.section("Not used", parts.listing(_unused(document["unused"])))
    if described.get("notes"):
        shown += parts.section("Mind", parts.listing((Text("!", "yellow"), note) for note in described["notes"]))
    notes = [f"{s['what']}: {s['reference']}, {s['date']}" for s in described["sources"][:12]]
    return [*shown, *parts.section("Sources", parts.listing(("", n) for n in notes)), Text()]


def _unused(unused: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Runs and why they were left out, a reason that many share only once."""
    runs: dict[str, list[int]] = {}
    for one in unused:
        runs.setdefault(str(one["reason"]).removeprefix(f"run {one['run']}: "), []).append(one["run"])
    return [(f"run {ids[0]}" if len(ids) == 1 else f"{len(ids)} runs", reason) for reason, ids in runs.items()][:20]


def _parameters(fit: dict[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2), pad_edge=False)
    for name, mean, row in zip(fit["names"], fit["mean"], range(len(fit["names"])), strict=True):
        sd = math.sqrt(fit["covariance"][row][row])
        value = parts.seconds(math.exp(mean)) if name in _SECONDS else parts.figure(math.exp(mean))
        low, high = math.exp(mean - 1.645 * sd), math.exp(mean + 1.645 * sd)
        most = fit["most"][row]
        high = high if most is None else min(high, math.exp(most))
        ends = (parts.seconds(low), parts.seconds(high)) if name in _SECONDS else (parts.figure(low), parts.figure(high))
        table.add_row(name.removesuffix("_s").replace("_", " "), value, f"({ends[0]} to {ends[1]})")
    return table


def _residuals(document: dict[str, Any]) -> list[tuple[str | Text, str | Text]]:
    points, fit = document["points"], document["fit"]
    errors = sorted(abs(math.expm1(-p[3])) for p in points)
    rows: list[tuple[str | Text, str | Text]] = [
        ("median", f"{errors[len(errors) // 2]:.1%} of {len(points)} measurements, worst {errors[-1]:.1%}"),
        ("noise", f"{fit['noise_sd']:.1%} (one standard deviation of a measurement)"),
    ]
    if fit["outliers"]:
        named = {p[0]: p for p in points}
        words = [f"{n} (measured {parts.seconds(named[n][1])}, predicted {parts.seconds(named[n][2])})" for n in fit["outliers"][:8]]
        rows.append((Text("outliers", parts.BAD), ", ".join(words)))
    return rows
