"""One model in figures: what it holds, what a step reads, what a sequence costs."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from api.views import parts
from models.units import format_bytes


def model_view(report: dict[str, Any]) -> list[Any]:
    """Everything that ``goodput model`` prints."""
    asked, rank = report["asked"], report["per_rank"]
    shown: list[Any] = [Text.assemble((report["model"], parts.HEAD), f" ({report['family']})")]
    counted = [(name.replace("_", " "), _count(value)) for name, value in report["parameters"].items() if value]
    shown += parts.section("Parameters", parts.listing(counted))
    weights = [("all", _exact(report["weight_bytes"]))]
    weights += [(name, _exact(size)) for name, size in report["weight_bytes_by_precision"].items()]
    shown += parts.section("Weights", parts.listing(weights))
    shown += parts.section(
        f"A decode step of {asked['rows']} rows", parts.listing([("weights read", _exact(report["read_bytes_per_step"]))])
    )
    shown += parts.section(f"A sequence of {asked['tokens']:,} tokens, {asked['kv_format']} KV", parts.listing(_sequence(report)))
    flops = f"{report['prefill_flops'] / 1e12:,.2f} TFLOP for {asked['new']:,} new tokens after {asked['cached']:,}"
    shown += parts.section("Prefill", parts.listing([("matrix work", flops)]))
    if asked["tp"] > 1:
        rows = [("weights", _exact(rank["weight_bytes"])), ("weights read", _exact(rank["read_bytes_per_step"])), *_sequence(rank)]
        shown += parts.section(f"Each of {asked['tp']} ranks", parts.listing(rows))
    if report["notes"]:
        shown += parts.section("Mind", parts.listing((Text("!", "yellow"), note) for note in report["notes"]))
    return shown


def _sequence(of: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("KV, state and keys", _exact(of["kv_bytes"])), ("a token adds", _exact(of["kv_bytes_per_token"]))]
    for name, words in (("indexer_bytes_per_token", "indexer keys a token"), ("state_bytes_per_sequence", "recurrent state")):
        if of[name]:
            rows.append((words, _exact(of[name])))
    if of["kv_bytes_per_token_below_window"] != of["kv_bytes_per_token"]:
        rows.append(("below the window", f"{_exact(of['kv_bytes_per_token_below_window'])} a token"))
    return rows


def _exact(size: int) -> str:
    return f"{format_bytes(size)}  ({size:,} B)" if size >= 1024 else f"{size} B"


def _count(value: int) -> str:
    for unit, scale in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if value >= scale:
            return f"{value / scale:.2f} {unit}  ({value:,})"
    return f"{value:,}"
