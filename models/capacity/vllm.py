"""vLLM's pool from the bytes that are left for it. V0: blocks over all layers; V1: groups of layers over one pool (``groups``).

V0   blocks = floor(available / (p x sum of token bytes)), concurrency = blocks p / L, refused where L > blocks p
V1   refused where needed(L) > available (less one block from 0.33 on), tokens = floor(blocks / groups) p, from 0.20.2 on
     int(concurrency x L); a model with recurrent state is refused where max_num_seqs > blocks
"""

from __future__ import annotations

from dataclasses import replace

from models.capacity.groups import Pool, Request, pool_of
from models.capacity.layers import CacheLayer, cache_layers, default_block
from models.capacity.settings import Settings
from models.capacity.sized import NO_MEMORY, Sized
from models.catalog.pool_rules import PoolRules
from models.describe.architecture import Architecture
from models.errors import NotCoveredError
from models.facts.formats import kv_format
from models.units import GIB


def sized(arch: Architecture, settings: Settings, rules: PoolRules, available: int, budget: int, seqs: int) -> Sized:
    """The pool in ``available`` bytes; ``budget`` tokens of a step, ``seqs`` requests at most."""
    block = default_block(arch, settings, rules)
    kept = {g.state.kind for g in arch.layers if g.state} & set(rules.states_by_block)
    if kept and settings.enable_prefix_caching:
        raise NotCoveredError(
            f"{rules.title} {rules.version} keeps a {min(kept)} state for every block of a cached prefix, in blocks of the kernel's chunk",
            path="enable_prefix_caching", value=True, way_out="leave it off, or take 0.28 or later",
        )  # fmt: skip
    windows = _own_windows(rules, settings)
    layers = cache_layers(arch, settings, kv_cache_format(arch, settings, rules), block, windows=windows)
    if rules.scheme == "uniform_blocks":
        return _blocks_over_all_layers(layers, settings, settings.context(arch), available, block)
    latent = any(g.attention and g.attention.kind == "latent" for g in arch.layers)
    alignment = rules.latent_alignment if latent else rules.state_alignment
    pool = pool_of(layers, rules, max(alignment, settings.block_size or 0), settings.pp)
    states = [layer.page for layer in layers if layer.kind == "state"]
    request = _request(settings, rules, budget, settings.context(arch))
    found = grouped(pool, request, rules, available)
    if states and not found.refusal and seqs > found.blocks:
        found = replace(found, refusal=f"max_num_seqs ({seqs}) exceeds available Mamba cache blocks ({found.blocks})")
    return replace(found, padding=pool.layers[0].page / max(states) - 1 if states else 0.0)


def kv_cache_format(arch: Architecture, settings: Settings, rules: PoolRules) -> str:
    """The cache's number format: the flag's; ``auto``: the checkpoint's own, else the model's 16 bits. Checked by name."""
    asked = settings.kv_cache_dtype
    if asked == "auto":
        asked = arch.kv_format if arch.kv_format not in ("auto", "") else "bf16"
        if rules.indexed_auto_kv and any(g.attention and g.attention.indexer for g in arch.layers):
            asked = rules.indexed_auto_kv
    indexed = any(g.attention and g.attention.indexer and g.attention.kind == "latent" for g in arch.layers)
    name = kv_format(asked).name
    return "fp8_ds_mla" if indexed and name.startswith("fp8_e4m3") else name


def _own_windows(rules: PoolRules, settings: Settings) -> str:
    """Which layers keep less than every token: none, those with a window, or those with chunks too (not beside an EAGLE head)."""
    if not settings.hybrid_manager or rules.windows == "full":
        return "full"
    return "own" if rules.chunks == "own" and settings.draft != "eagle" else "window"


def _request(settings: Settings, rules: PoolRules, budget: int, tokens: int) -> Request:
    flight = 1
    if rules.batches_in_flight == "asynchronous":
        flight = settings.pp + 1 if settings.asynchronous else settings.pp
    if rules.state_pages == "by_caching":
        caching = settings.enable_prefix_caching
        pages = (2 if (rules.hybrid_prefix_caching if caching is None else caching) else 1) + settings.draft_tokens
    else:
        pages = 1
    return Request(tokens, flight * budget, pages)


def grouped(pool: Pool, request: Request, rules: PoolRules, available: int) -> Sized:
    """What V1 prints for ``available`` bytes over the groups of ``pool``."""
    blocks = max(available // pool.block_bytes, 0)
    each = pool.request_blocks(request)
    concurrency = blocks / each
    tokens = int(concurrency * request.tokens)
    if rules.prints == "tokens_of_blocks":
        tokens = blocks // (1 if pool.uniform else sum(pool.groups)) * pool.block_tokens
    found = Sized(blocks, tokens, pool.attention_block, pool.block_bytes, concurrency, each)
    if available <= 0:
        return replace(found, refusal=NO_MEMORY, needed=pool.needed(request, rules.needs))
    usable = available - (pool.block_bytes if rules.null_block else 0)
    needed = pool.needed(request, rules.needs)
    if needed <= usable:
        return found
    longest = _longest(pool, request, rules, usable)
    refusal = (
        f"To serve at least one request with the model's max seq len ({request.tokens}), ({needed / GIB:.2f} GiB KV cache is needed, which "
        f"is larger than the available KV cache memory ({usable / GIB:.2f} GiB)"
    )
    hint = f". Based on the available memory, the estimated maximum model length is {longest}" if longest else ""
    return replace(found, refusal=refusal + hint, needed=needed, longest=longest)


def _longest(pool: Pool, request: Request, rules: PoolRules, usable: int) -> int:
    """Largest length whose need fits, by bisection as the engine finds it; 0 where one token does not."""
    low, high = 0, request.tokens
    while low < high:
        middle = (low + high + 1) // 2
        if pool.needed(replace(request, tokens=middle), rules.needs) <= usable:
            low = middle
        else:
            high = middle - 1
    return low


def _blocks_over_all_layers(layers: tuple[CacheLayer, ...], settings: Settings, context: int, available: int, block: int) -> Sized:
    per_token = sum(-(-layer.count // settings.pp) * layer.token_bytes for layer in layers)
    states = sum(layer.count * layer.page for layer in layers if layer.kind == "state")
    size = block * per_token + states
    blocks = max(available // size, 0)
    tokens = blocks * block
    found = Sized(blocks, tokens, block, size, tokens / context, -(-context // block))
    if available <= 0:
        return replace(found, refusal=NO_MEMORY, needed=found.request_blocks * size)
    if context > tokens:
        refusal = (
            f"The model's max seq len ({context}) is larger than the maximum number of tokens that can be stored in KV cache ({tokens})"
        )
        return replace(found, refusal=refusal, needed=found.request_blocks * size, longest=tokens)
    return found
