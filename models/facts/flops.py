"""Matrix FLOPs of an architecture (2 for each multiply-add), section 8.2.3.

Notation: n new tokens after c cached ones; pairs q = sum over new tokens of visible keys: n c + n (n + 1) / 2, cut at a window or an
indexer's top-k. A pair costs 2 (key_dim + value_dim) FLOPs a head (4 x head_dim where both are equal). Recurrent updates and convolutions
are not matrix products with the weights and are left out. Chunked layers (Llama 4) are counted as windows, an upper bound.
"""

from __future__ import annotations

from models.describe.architecture import Architecture, Attention
from models.errors import ContradictionError
from models.facts.weights import linear_parameters


def flops_per_token(arch: Architecture) -> int:
    """2 x the linear parameters that one row passes (head apart, top-k of the experts)."""
    return 2 * linear_parameters(arch)


def flops_per_logit_row(arch: Architecture) -> int:
    """2 x hidden x vocabulary: one row through the head."""
    return 2 * arch.hidden * arch.vocabulary


def _pair_flops(attention: Attention) -> int:
    return 2 * attention.heads * (attention.key_dim + attention.value_dim)


def _limit(attention: Attention) -> int | None:
    """Most keys that one query reads, None = all."""
    chosen = attention.indexer.top_k if attention.indexer else None
    if attention.window is not None:
        return attention.window + (chosen or 0)
    return chosen


def flops_per_pair(arch: Architecture) -> int:
    """FLOPs of one (query, key) pair over the layers whose visible keys grow without end."""
    found = sum(g.count * _pair_flops(g.attention) for g in arch.layers if g.attention and _limit(g.attention) is None)
    compressed = ((g.count, g.attention) for g in arch.layers if g.attention and g.attention.compress_ratio and not g.attention.indexer)
    return found + sum(count * _pair_flops(a) // a.compress_ratio for count, a in compressed)  # one key for each group of older tokens


def flops_per_index_pair(arch: Architecture) -> int:
    """FLOPs of scoring one key by the indexers (2 x heads x dim a layer that scores)."""
    chosen = ((g.count, g.attention.indexer) for g in arch.layers if g.attention)
    return sum(count * 2 * x.heads * x.dim // x.tokens_per_key for count, x in chosen if x and x.stores_keys)


def flops_per_limited_pair(arch: Architecture) -> dict[int, int]:
    """{most keys a query reads: FLOPs of a pair} over the windowed and the indexed layers."""
    found: dict[int, int] = {}
    for group in arch.layers:
        limit = _limit(group.attention) if group.attention else None
        if group.attention and limit is not None:
            found[limit] = found.get(limit, 0) + group.count * _pair_flops(group.attention)
    return found


def attention_pairs(new: int, cached: int, limit: int | None = None) -> int:
    """Causal pairs of ``new`` tokens after ``cached`` ones; token i sees min(cached + i, limit) keys, itself included."""
    if limit is None or cached + new <= limit:
        return new * cached + new * (new + 1) // 2
    before = max(0, limit - cached)  # tokens that still see everything
    return before * cached + before * (before + 1) // 2 + (new - before) * limit


def prefill_flops(arch: Architecture, new: int, cached: int = 0) -> int:
    """FLOPs of prefilling ``new`` tokens after ``cached`` ones, with one row through the head."""
    if new < 1 or cached < 0:
        raise ContradictionError("a prefill needs at least one new token and no negative cache", path="new, cached", value=(new, cached))
    pairs = attention_pairs(new, cached)
    found = flops_per_token(arch) * new + flops_per_logit_row(arch)
    found += (flops_per_pair(arch) + flops_per_index_pair(arch)) * pairs
    return found + sum(f * attention_pairs(new, cached, limit) for limit, f in flops_per_limited_pair(arch).items())
