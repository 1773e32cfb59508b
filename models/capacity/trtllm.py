"""TensorRT-LLM's pool: a fraction of what is free after the model is loaded and the largest step was tried; windows keep every token.

blocks = floor(fraction x free / (p x token bytes of all layers)), tokens = blocks x p
"""

from __future__ import annotations

from models.capacity.layers import cache_layers, default_block
from models.capacity.settings import Settings
from models.capacity.sized import NO_MEMORY, Sized
from models.capacity.vllm import kv_cache_format
from models.catalog.pool_rules import PoolRules
from models.describe.architecture import Architecture


def sized(arch: Architecture, settings: Settings, rules: PoolRules, available: int) -> Sized:
    """The pool in ``available`` bytes (the fraction already taken)."""
    block = default_block(arch, settings, rules)
    layers = cache_layers(arch, settings, kv_cache_format(arch, settings, rules), block, windows="full")
    each = block * sum(-(-layer.count // settings.pp) * layer.token_bytes for layer in layers)
    states = (settings.max_num_seqs or rules.max_num_seqs) * sum(layer.count * layer.page for layer in layers if layer.kind == "state")
    blocks = max(available - states, 0) // each if each else 0
    context = settings.context(arch)
    return Sized(
        blocks=blocks, tokens=blocks * block, block_tokens=block, block_bytes=each, concurrency=blocks * block / context,
        request_blocks=-(-context // block), refusal="" if blocks else NO_MEMORY, needed=None if blocks else each,
    )  # fmt: skip
