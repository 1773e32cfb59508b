"""llama.cpp's cache: as large as the context that was asked for, whatever is free; it fails where that does not fit.

n_ctx padded to 256; each of n sequences has n_ctx / n padded to 256 (unified: all share n_ctx)
cells of a windowed layer: min(context of a sequence, window x (n where unified) + ubatch), padded to 256; times n unless unified
compute buffer: ubatch x vocabulary x 4 bytes of logits; without flash attention also heads x context x ubatch x 4 bytes
"""

from __future__ import annotations

from models.capacity.layers import cache_layers
from models.capacity.settings import Settings
from models.capacity.sized import Sized
from models.catalog.pool_rules import PoolRules
from models.describe.architecture import Architecture
from models.facts.formats import kv_format

_CELL_PADDING = 256


def sized(arch: Architecture, settings: Settings, rules: PoolRules, available: int | None) -> Sized:
    """The cache for ``max_model_len`` tokens of all sequences together, against ``available`` bytes where they are known."""
    name = "fp16" if settings.kv_cache_dtype == "auto" else kv_format(settings.kv_cache_dtype).name
    layers = cache_layers(arch, settings, name, 1, windows=rules.windows)
    n = settings.parallel
    total = _padded(settings.context(arch), rules.context_padding)
    one = total if settings.unified_kv else _padded(total // n, rules.context_padding)
    streams = 1 if settings.unified_kv else n
    total = one * streams
    growing = sum(layer.count * layer.token_bytes for layer in layers if layer.window is None)
    size = total * growing
    window_cells = None
    for layer in layers:
        if layer.window is not None:
            cells = min(one, layer.window * (n if settings.unified_kv else 1) + settings.micro_batch)
            window_cells = _padded(cells, _CELL_PADDING) * streams
            size += layer.count * layer.token_bytes * window_cells
    size += n * sum(layer.count * layer.page for layer in layers if layer.kind == "state")
    refusal = ""
    if available is not None and size > available:
        refusal = f"failed to allocate a KV cache of {total} cells"
    longest = None if not refusal or available is None or not growing else max(int(available - (size - total * growing)), 0) // growing
    return Sized(
        blocks=total, tokens=total, block_tokens=1, block_bytes=growing, concurrency=float(n), request_blocks=one,
        refusal=refusal, needed=size if refusal else None, longest=longest, pool_bytes=size, window_tokens=window_cells,
    )  # fmt: skip


def compute_bytes(arch: Architecture, settings: Settings) -> int:
    """Compute buffer on the device: the logits of a micro-batch, and the scores of all heads where flash attention is off."""
    scores = 0 if settings.flash_attention else arch.heads * settings.context(arch) * settings.micro_batch * 4
    return settings.micro_batch * arch.vocabulary * 4 + scores


def _padded(tokens: int, padding: int) -> int:
    return -(-tokens // padding) * padding
