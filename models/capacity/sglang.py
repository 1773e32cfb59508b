"""SGLang's pool: what the static fraction f leaves beside the weights; its "GB" are GiB.

rest = free after load - free before load x (1 - f)
tokens = floor(rest / cell), cell = token bytes of all attention layers (by version with indexer keys and a latent's scales), whole pages
windows of their own: full = rest / (F + r S), window pool = r full, r = swa_full_tokens_ratio (0.8)
recurrent layers: a share q / (1 + q) of rest goes to whole states, q = mamba_full_memory_ratio (0.9)
AITER's workspace comes out of rest first: clamp(512 tokens / L, 2048, 4096) x heads x ceil(L / 256) x (4 d + 8) bytes
"""

from __future__ import annotations

from models.capacity.layers import CacheLayer, cache_layers, default_block, index_bytes
from models.capacity.settings import Settings
from models.capacity.sized import Sized
from models.capacity.vllm import kv_cache_format
from models.catalog.pool_rules import PoolRules
from models.describe.architecture import Architecture
from models.facts.kv import layer_kv_bytes

NOT_ENOUGH = "Not enough memory. Please try to increase --mem-fraction-static."
_REQUESTS = (512, 2048, 4096)  # per context of pool, least, most: max_running_requests
_PARTITION = 256  # tokens of one partition of AITER's paged attention


def sized(arch: Architecture, settings: Settings, rules: PoolRules, rest: int, *, given: bool) -> Sized:
    """The pool in ``rest`` bytes; ``given``: that is the logged size of the cache (without indexer keys where the version logs none)."""
    page = default_block(arch, settings, rules)
    layers = cache_layers(arch, settings, kv_cache_format(arch, settings, rules), page, windows=rules.windows)
    stored = _per_token(layers, settings, "full") + _per_token(layers, settings, "window", "chunk")
    cell = stored if rules.indexer_in_cell else stored - _indexer(arch, settings)
    if not given and not rules.latent_scales_in_cell and kv_cache_format(arch, settings, rules) == "fp8_ds_mla":
        cell -= _latent_scales(arch, settings)
    states, left = _states(layers, rules, rest, given=given)
    if settings.attention_backend == "aiter" and not given:
        left -= _workspace(arch, settings, left, cell)
    window = _per_token(layers, settings, "window", "chunk")
    saved = window * (1 - rules.window_ratio)  # bytes a token that the window pool spares
    tokens = max(int(left // (cell - saved)), 0) // page * page
    context = settings.context(arch)
    return Sized(
        blocks=tokens // page, tokens=tokens, block_tokens=page, block_bytes=int(page * (stored - saved)), concurrency=tokens / context,
        request_blocks=-(-context // page), refusal="" if tokens > 0 else NOT_ENOUGH,
        pool_bytes=int(tokens * (stored - saved)),
        window_tokens=int(tokens * rules.window_ratio) // page * page if window else None, states=states,
    )  # fmt: skip


def _per_token(layers: tuple[CacheLayer, ...], settings: Settings, *kinds: str) -> int:
    return sum(-(-layer.count // settings.pp) * layer.token_bytes for layer in layers if layer.kind in kinds)


def _indexer(arch: Architecture, settings: Settings) -> int:
    count = sum(g.count * index_bytes(g.attention) for g in arch.layers if g.attention)
    return -(-count // settings.pp)


def _latent_scales(arch: Architecture, settings: Settings) -> int:
    """Bytes a token that the pool stores beyond one an element of the latents."""
    latents = [(g.count, g.attention) for g in arch.layers if g.attention and g.attention.kind == "latent"]
    return -(-sum(n * (layer_kv_bytes(a, "fp8_ds_mla") - a.latent_dim - a.rope_dim) for n, a in latents) // settings.pp)


def _states(layers: tuple[CacheLayer, ...], rules: PoolRules, rest: int, *, given: bool) -> tuple[int | None, int]:
    """(states that have a place, bytes left for the attention layers)."""
    each = sum(layer.count * layer.page for layer in layers if layer.kind == "state")
    if each == 0 or given:
        return None, rest
    count = int(rest * rules.state_ratio / (1 + rules.state_ratio)) // each
    return count, rest - count * each


def _workspace(arch: Architecture, settings: Settings, left: int, cell: int) -> int:
    context = settings.context(arch)
    heads = -(-arch.heads // settings.attention_tp)
    width = max(g.attention.value_dim for g in arch.layers if g.attention)
    partitions = -(-context // _PARTITION)
    each = heads * partitions * (4 * width + 8)
    per_pool, least, most = _REQUESTS
    share = per_pool / context * each  # workspace bytes of one pool token while the number of requests follows the pool
    tokens = left / (cell + share)
    requests = min(max(int(tokens * per_pool / context), least), most)
    return requests * each
