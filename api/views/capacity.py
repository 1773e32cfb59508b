"""The pool of one engine process in figures, and where the rest of the memory goes."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from api.views import parts
from models.units import GIB, format_bytes

_PARTS = ("total", "requested", "weights", "non_torch", "activation", "graph", "available")


def capacity_view(report: dict[str, Any]) -> list[Any]:
    """Everything that ``goodput capacity`` prints."""
    where = f" on {report['device']}" if report["device"] else ""
    shown: list[Any] = [
        Text.assemble((report["model"], parts.HEAD), f" in {report['engine']} {report['engine_version']}{where}"),
        Text("starts", parts.GOOD) if report["fits"] else Text(f"refuses to start: {report['refusal']['reason']}", parts.BAD),
    ]
    shown += parts.section("KV pool of a rank", parts.listing(_pool(report)))
    if report["breakdown"] is not None:
        rows = [(name.replace("_", " "), _part(report["breakdown"][name])) for name in _PARTS]
        shown += parts.section("Memory of a rank", parts.listing(rows))
    shown += parts.section("The engine's own lines", parts.listing(("", line) for line in report["printed"]))
    notes = [*report["warnings"], *report["assumptions"]]
    if notes:
        shown += parts.section("Mind", parts.listing((Text("!", "yellow"), note) for note in notes))
    return shown


def _pool(report: dict[str, Any]) -> list[tuple[str, str]]:
    low, high = report["interval"]["kv_tokens"]
    rows = [
        ("available", f"{_signed(report['available_kv_bytes'])}  ({report['available_source']})"),
        ("tokens", f"{report['kv_tokens']:,}" + (f"  ({low:,} to {high:,}: {report['interval']['meaning']})" if low != high else "")),
        ("blocks", f"{report['blocks']:,} of {report['block_size']:,} tokens, {format_bytes(report['block_bytes'])} each"),
        ("concurrency", f"{report['max_concurrency']:.2f} requests of the longest context"),
    ]
    if report["window_tokens"] is not None:
        rows.append(("windowed layers", f"{report['window_tokens']:,} tokens of their own"))
    refusal = report["refusal"]
    if refusal and refusal["needed_bytes"] is not None:
        rows.append(("needed", f"{format_bytes(refusal['needed_bytes'])} against {_signed(refusal['available_bytes'])}"))
    if refusal and refusal["estimated_max_model_len"]:
        rows.append(("longest that fits", f"{refusal['estimated_max_model_len']:,} tokens"))
    return rows


def _part(of: dict[str, Any]) -> str:
    spread = f" ± {format_bytes(of['sd'])}" if of["sd"] else ""
    return f"{_signed(of['bytes'])}{spread}  ({of['source']})"


def _signed(size: int) -> str:
    return format_bytes(size) if size >= 0 else f"{size / GIB:.2f} GiB"
