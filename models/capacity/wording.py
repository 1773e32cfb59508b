"""The lines an engine writes at start, and what is said beside a prediction."""

from __future__ import annotations

from models.capacity.settings import Settings
from models.capacity.sized import Sized
from models.catalog.pool_rules import PoolRules
from models.units import GIB

_PADDING_WORTH_SAYING = 0.05


def printed(pool: Sized, rules: PoolRules, context: int, available: int) -> list[str]:
    """Start-up lines as this engine and version word them."""
    gib = f"{available / GIB:.2f}"
    concurrency = f"Maximum concurrency for {context:,} tokens per request: {pool.concurrency:.2f}x"
    if rules.scheme == "uniform_blocks":
        return [f"# GPU blocks: {pool.blocks}", concurrency, *([pool.refusal] if pool.refusal else [])]
    if rules.scheme == "groups":
        lines = [f"Available KV cache memory: {gib} GiB"]
        if pool.refusal:
            return [*lines, pool.refusal]
        return [*lines, f"GPU KV cache size: {pool.tokens:,} tokens", concurrency]
    if rules.scheme == "static_fraction":
        return [f"max_total_num_tokens={pool.tokens}", f"KV Cache is allocated. KV size: {(pool.pool_bytes or 0) / GIB:.2f} GB"]
    if rules.scheme == "context":
        return [f"KV buffer size = {(pool.pool_bytes or 0) / (1 << 20):.2f} MiB", f"n_ctx = {pool.tokens}"]
    return [f"Max KV cache blocks {pool.blocks}, {pool.tokens} tokens"]


def warnings(rules: PoolRules, pool: Sized, asked: int | None, context: int) -> list[str]:
    """What the numbers do not show by themselves."""
    found = []
    if asked is not None and context and asked > context:
        found.append(f"{asked:,} tokens are more than the model's own context of {context:,}: the engine asks for a rope scaling")
    if pool.padding > _PADDING_WORTH_SAYING:
        found.append(f"state pages are padded by {100 * pool.padding:.1f} % to the attention page")
    if not pool.refusal and pool.concurrency < 1:
        found.append(f"{rules.title} starts, but a request of the longest context does not fit its pool")
    if pool.window_tokens is not None and rules.scheme == "static_fraction":
        found.append("windowed layers have a pool of their own")
    return found


def assumptions(rules: PoolRules, settings: Settings, *, given: bool) -> list[str]:
    """What an estimate rests on."""
    if given:
        return []
    return [*_rests_on(rules), *(["buffers of LoRA adapters are not counted"] if settings.enable_lora else [])]


def _rests_on(rules: PoolRules) -> list[str]:
    found = [
        "nothing else runs on the device",
        "the activation peak is that of the largest step and, where the model has one, of its image tower",
    ]
    if rules.scheme in ("uniform_blocks", "groups"):
        found.append("all ranks have the same free memory: the engine takes the smallest")
    return found
