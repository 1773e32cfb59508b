"""KV cache, indexer keys and recurrent state of an architecture: exact bytes for one sequence on one rank.

Notation: t tokens of a sequence, w the window of a layer, r a compression ratio. Stored tokens of a layer: t (grows), min(t, w) (windowed),
min(t, w) + floor(t / r) (compressed). Grouped heads are cut over the ranks down to one whole head a rank; latents are replicated.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.describe.architecture import Architecture, Attention, RecurrentState
from models.facts.formats import KvFormat, kv_format, require_latent
from models.facts.weights import check_tensor_parallel


@dataclass(frozen=True, slots=True)
class WindowedKv:
    """Layers of one window: ``bytes_per_token`` of all of them together, for at most ``window`` tokens."""

    window: int
    layers: int
    bytes_per_token: int
    compress_ratio: int = 0
    compressed_bytes_per_entry: int = 0


def _layer_token_bytes(attention: Attention, stored: KvFormat, tp: int) -> int:
    """Bytes that one layer caches for one token on one rank."""
    if attention.shares_kv:
        return 0
    require_latent(stored, latent=attention.kind == "latent")
    if attention.kind != "grouped":
        rope = attention.rope_dim
        if stored.latent_only or stored.group:  # scales cover the latent; the rotary part stays 16 bits where blocks do not divide it
            return stored.vector_bytes(attention.latent_dim) + (2 * rope if stored.latent_only else stored.vector_bytes(rope))
        return stored.vector_bytes(attention.latent_dim + rope)
    heads = max(1, attention.kv_heads // tp)
    return heads * (stored.vector_bytes(attention.key_dim) + stored.vector_bytes(attention.value_dim))


def layer_kv_bytes(attention: Attention, kv_format_name: str = "bf16", tp: int = 1) -> int:
    """Bytes that one layer of this kind caches for one token on one rank (indexer keys apart)."""
    return _layer_token_bytes(attention, kv_format(kv_format_name), tp)


def grows(attention: Attention) -> bool:
    """Stores one entry for each token without end."""
    return attention.window is None and not attention.shares_kv


def kv_bytes_per_token(arch: Architecture, kv_format_name: str = "bf16", tp: int = 1) -> int:
    """Bytes a token of the layers that keep growing (windowed layers, indexer and state apart; one of r where a layer compresses)."""
    compressed = sum(w.compressed_bytes_per_entry // w.compress_ratio for w in windowed_kv(arch, kv_format_name, tp) if w.compress_ratio)
    return _growing_bytes(arch, kv_format(kv_format_name), tp) + compressed


def _growing_bytes(arch: Architecture, stored: KvFormat, tp: int) -> int:
    check_tensor_parallel(arch, tp)
    return sum(g.count * _layer_token_bytes(g.attention, stored, tp) for g in arch.layers if g.attention and grows(g.attention))


def windowed_kv(arch: Architecture, kv_format_name: str = "bf16", tp: int = 1) -> tuple[WindowedKv, ...]:
    """The windowed layers, one entry for each (window, compression ratio)."""
    check_tensor_parallel(arch, tp)
    stored = kv_format(kv_format_name)
    found: dict[tuple[int, int], tuple[int, int, int]] = {}
    for group in arch.layers:
        a = group.attention
        if a is None or a.window is None or a.shares_kv:
            continue
        layers, size, entry = found.get((a.window, a.compress_ratio), (0, 0, 0))
        token = group.count * _layer_token_bytes(a, stored, tp)
        found[a.window, a.compress_ratio] = (layers + group.count, size + token, entry + (token if a.compress_ratio else 0))
    return tuple(WindowedKv(w, n, size, r, entry) for (w, r), (n, size, entry) in sorted(found.items()))


def kv_bytes_per_token_below_window(arch: Architecture, kv_format_name: str = "bf16", tp: int = 1) -> int:
    """Bytes a token of all layers with KV, while the sequence is shorter than every window."""
    return kv_bytes_per_token(arch, kv_format_name, tp) + sum(w.bytes_per_token for w in windowed_kv(arch, kv_format_name, tp))


def _indexer_keys(arch: Architecture, indexer_format: str) -> dict[int, int]:
    """{tokens of one key: bytes of one key over all layers that keep keys}."""
    found: dict[int, int] = {}
    for group in arch.layers:
        indexer = group.attention.indexer if group.attention else None
        if indexer and indexer.stores_keys:
            size = (
                indexer.dim + 4 * -(-indexer.dim // 128) if indexer_format == "fp8" else kv_format(indexer_format).vector_bytes(indexer.dim)
            )
            found[indexer.tokens_per_key] = found.get(indexer.tokens_per_key, 0) + group.count * size
    return found


def indexer_bytes_per_token(arch: Architecture, indexer_format: str = "bf16") -> int:
    """Indexer keys a token (replicated on every rank). ``fp8``: one byte an element and an FP32 scale for each 128 (DeepSeek-V3.2)."""
    return sum(size // tokens for tokens, size in _indexer_keys(arch, indexer_format).items())


def _state_bytes(state: RecurrentState, tp: int) -> int:
    bits = state.recurrent_elements * state.recurrent_bits + state.convolution_elements * state.convolution_bits
    return bits // 8 // tp


def state_bytes_per_sequence(arch: Architecture, tp: int = 1) -> int:
    """Recurrent and convolution state of one sequence on one rank, whatever its length."""
    check_tensor_parallel(arch, tp)
    return sum(g.count * _state_bytes(g.state, tp) for g in arch.layers if g.state)


def kv_bytes(arch: Architecture, tokens: int, kv_format_name: str = "bf16", tp: int = 1) -> int:
    """Everything that one sequence of ``tokens`` tokens holds on one rank: KV, indexer keys and state."""
    found = tokens * _growing_bytes(arch, kv_format(kv_format_name), tp) + state_bytes_per_sequence(arch, tp)
    found += sum(tokens // each * size for each, size in _indexer_keys(arch, "bf16").items())
    for w in windowed_kv(arch, kv_format_name, tp):
        found += min(tokens, w.window) * w.bytes_per_token
        found += (tokens // w.compress_ratio) * w.compressed_bytes_per_entry if w.compress_ratio else 0
    return found
