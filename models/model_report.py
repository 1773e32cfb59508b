"""Everything that `goodput model` prints about one model: a pure function from an architecture to named numbers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from models import facts
from models.describe.architecture import Architecture
from models.errors import InputError

_COUNTED = ("total", "embedding", "head", "experts", "shared_experts", "vision", "active")


def model_report(
    arch: Architecture, *, tokens: int = 8192, rows: int = 1, tp: int = 1, new: int | None = None, cached: int = 0, kv_format: str = "bf16"
) -> dict[str, Any]:
    """Parameters, bytes and FLOPs. ``tokens`` of a sequence, ``rows`` of a step, ``tp`` ranks, ``new`` tokens after ``cached``.

    Bytes are exact integers; only the bytes of routed experts that ``rows`` touch are an expectation, rounded. ``kv_bytes`` is all that
    a sequence of ``tokens`` holds: KV, indexer keys and state ``per_rank`` repeats what ranks share.
    """
    for name, value, least in (("tokens", tokens, 0), ("rows", rows, 1), ("tp", tp, 1), ("cached", cached, 0)):
        if value < least or value > 1 << 40:
            raise InputError(f"must be between {least} and 2^40", path=f"--{name}", value=value)
    chunk = max(tokens, 1) if new is None else new
    counted = asdict(facts.parameters(arch))
    return {
        "model": arch.name,
        "family": arch.family,
        "parameters": {name: counted[name] for name in _COUNTED},
        "mtp_parameters": counted["mtp"],
        "weight_bytes": facts.checkpoint_bytes(arch),
        "weight_bytes_by_precision": facts.weight_bytes_by_precision(arch, mtp=True),
        **_rank(arch, tokens, rows, 1, kv_format),
        "prefill_flops": facts.prefill_flops(arch, chunk, cached),
        "per_rank": {
            "weight_bytes": facts.weight_bytes(arch, tp=tp, mtp=True),
            "weight_bytes_by_precision": facts.weight_bytes_by_precision(arch, tp=tp, mtp=True),
            **_rank(arch, tokens, rows, tp, kv_format),
        },
        "asked": {"tokens": tokens, "rows": rows, "tp": tp, "new": chunk, "cached": cached, "kv_format": kv_format},
        "notes": list(arch.notes),
    }


def _rank(arch: Architecture, tokens: int, rows: int, tp: int, kv_format: str) -> dict[str, Any]:
    """What one of ``tp`` ranks reads and holds."""
    return {
        "read_bytes_per_step": round(facts.weight_read(arch, tp=tp).bytes_for(rows)),
        "kv_bytes_per_token": facts.kv_bytes_per_token(arch, kv_format, tp),
        "kv_bytes_per_token_below_window": facts.kv_bytes_per_token_below_window(arch, kv_format, tp),
        "indexer_bytes_per_token": facts.indexer_bytes_per_token(arch),
        "state_bytes_per_sequence": facts.state_bytes_per_sequence(arch, tp),
        "kv_bytes": facts.kv_bytes(arch, tokens, kv_format, tp),
        "windows": [asdict(window) for window in facts.windowed_kv(arch, kv_format, tp)],
    }
