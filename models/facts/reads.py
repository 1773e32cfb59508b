"""What one decode row reads and computes over its context: windows, sparse indexers, shared KV and recurrent state included.

Notation: t tokens of context; w the window of a layer; k the most keys that an indexer lets through; r a compression. A layer reads
min(t, w), min(t, k) or, compressed, min(t, w) + min(t / r, k) entries; a layer that shares an earlier layer's KV reads it again. A
recurrent state is read and written once a row.
"""

from __future__ import annotations

from dataclasses import replace

from models.describe.architecture import Architecture
from models.facts.flops import flops_per_index_pair, flops_per_limited_pair, flops_per_pair
from models.facts.formats import kv_format
from models.facts.kv import _layer_token_bytes, indexer_bytes_per_token, state_bytes_per_sequence


def context_read_bytes(arch: Architecture, tokens: int, kv_format_name: str = "bf16", tp: int = 1) -> int:
    """Bytes of KV and indexer keys that one row reads on one rank over ``tokens`` of context; the state is apart."""
    stored = kv_format(kv_format_name)
    found = tokens * indexer_bytes_per_token(arch)
    for group in arch.layers:
        a = group.attention
        if a is None:
            continue
        older = tokens // a.compress_ratio if a.compress_ratio else 0 if a.window is not None else tokens
        if a.indexer is not None:
            older = min(older, a.indexer.top_k)
        entries = older + (min(tokens, a.window) if a.window is not None else 0)
        found += group.count * entries * _layer_token_bytes(replace(a, shares_kv=False), stored, tp)
    return found


def state_read_bytes(arch: Architecture, tp: int = 1) -> int:
    """Bytes of recurrent state that one row reads and writes on one rank."""
    return 2 * state_bytes_per_sequence(arch, tp)


def row_attention_flops(arch: Architecture, tokens: float) -> float:
    """FLOPs of one row's attention over ``tokens`` of context, itself included."""
    growing = (flops_per_pair(arch) + flops_per_index_pair(arch)) * tokens
    return growing + sum(f * min(tokens, limit) for limit, f in flops_per_limited_pair(arch).items())
