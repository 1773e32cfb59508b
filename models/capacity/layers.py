"""The cache of each kind of layer as an engine lays it out on one rank: one ``CacheLayer`` for ``count`` equal layers.

Notation: e token bytes of a layer on a rank; p tokens of a block; page = p e (attention) or the whole state (recurrent layers).
Engines keep kernel - 1 columns of a convolution, and one more for each drafted token: channels (kernel - 1 + drafted).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from models.capacity.settings import Settings
from models.catalog.drafts_catalog import draft_layers
from models.catalog.pool_rules import PoolRules
from models.describe.architecture import Architecture, Attention, RecurrentState
from models.errors import NotCoveredError
from models.facts.kv import layer_kv_bytes
from models.facts.weights import check_tensor_parallel

_FLASH_LATENT = 576  # elements of a latent and its rotary part that FlashMLA is built for
Kind = Literal["full", "window", "chunk", "state"]


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """``count`` layers with the same cache. ``window``: tokens visible (None: all); ``block`` tokens make a ``page`` of bytes."""

    kind: Kind
    count: int
    token_bytes: int
    page: int
    block: int
    window: int | None = None

    def with_block(self, block: int) -> CacheLayer:
        """The same layer with blocks of ``block`` tokens."""
        return replace(self, block=block, page=block * self.token_bytes)


def default_block(arch: Architecture, settings: Settings, rules: PoolRules, *, datacentre_blackwell: bool = False) -> int:
    """Tokens of a block: the flag's, or the engine's own for this kind of attention and device."""
    if settings.block_size is not None:
        return settings.block_size
    attention = [g.attention for g in arch.layers if g.attention]
    if rules.indexed_block_tokens and any(a.indexer for a in attention):
        return rules.indexed_block_tokens
    latent = any(a.kind == "latent" and a.latent_dim + a.rope_dim == _FLASH_LATENT for a in attention)
    special = rules.latent_block_datacentre_blackwell if datacentre_blackwell else rules.latent_block_tokens
    return special if latent and special else rules.block_tokens


def cache_layers(arch: Architecture, settings: Settings, kv_format: str, block: int, *, windows: str) -> tuple[CacheLayer, ...]:
    """All caching layers of ``arch`` on one rank, before any page is unified; ``windows``: which kinds keep less than every token."""
    tp = settings.attention_tp
    check_tensor_parallel(arch, settings.tp if settings.attention_dp == 1 else tp)
    found: dict[CacheLayer, int] = {}
    for group in arch.layers:
        for layer in _of(group.attention, group.state, settings, kv_format, block, windows):
            found[layer] = found.get(layer, 0) + group.count
    for layer, count in _draft(arch, settings, kv_format, block, windows):
        found[layer] = found.get(layer, 0) + count
    return tuple(replace(layer, count=count) for layer, count in found.items())


def _of(
    attention: Attention | None, state: RecurrentState | None, settings: Settings, kv_format: str, block: int, windows: str
) -> list[CacheLayer]:
    found = []
    if attention is not None and not attention.shares_kv:
        found.append(_attention(attention, settings, kv_format, block, windows))
        index = index_bytes(attention)
        if index:
            found.append(CacheLayer("full", 0, index, index * block, block))
    if state is not None:
        size = state_bytes(state, settings.tp, settings.draft_tokens)
        found.append(CacheLayer("state", 0, 0, size, block))
    return found


def _attention(attention: Attention, settings: Settings, kv_format: str, block: int, windows: str) -> CacheLayer:
    if attention.kind == "compressed":
        raise NotCoveredError(
            "no rule for the pool of compressed attention",
            path="model",
            value=attention.kind,
            way_out="its layout is not described here, so nothing is predicted",
        )
    size = layer_kv_bytes(attention, kv_format, settings.attention_tp)
    kind: Kind = "full"
    if attention.window is not None and windows in ("own", "chunk" if attention.chunked else "window"):
        kind = "chunk" if attention.chunked else "window"
    return CacheLayer(kind, 0, size, size * block, block, attention.window if kind != "full" else None)


def index_bytes(attention: Attention) -> int:
    """Indexer keys of one layer: one FP8 key and an FP32 scale for each 128 elements, a token (DeepSeek-V3.2: 132 bytes)."""
    indexer = attention.indexer
    if indexer is None or not indexer.stores_keys:
        return 0
    return (indexer.dim + 4 * -(-indexer.dim // 128)) // indexer.tokens_per_key


def state_bytes(state: RecurrentState, tp: int, draft_tokens: int) -> int:
    """Recurrent matrix and convolution columns of one layer and sequence on one rank."""
    columns = 0
    if state.convolution_channels:
        kernel = state.convolution_elements // state.convolution_channels
        columns = state.convolution_channels * (kernel - 1 + draft_tokens)
    return (state.recurrent_elements * state.recurrent_bits // 8) // tp + (columns * state.convolution_bits // 8) // tp


def _draft(arch: Architecture, settings: Settings, kv_format: str, block: int, windows: str) -> list[tuple[CacheLayer, int]]:
    """Layers that a draft adds: its own where it is described, else full attention shaped like the model's."""
    if settings.draft_model is not None:
        groups = settings.draft_model.layers
        return [(layer, g.count) for g in groups for layer in _of(g.attention, g.state, settings, kv_format, block, windows)]
    count = draft_layers(settings.draft)
    full = [g.attention for g in arch.layers if g.attention and g.attention.window is None and not g.attention.shares_kv]
    if count == 0 or not full:
        return []
    return [(_attention(full[-1], settings, kv_format, block, "full"), count)]
