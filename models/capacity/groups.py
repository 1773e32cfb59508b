"""Layers into groups that share one pool of blocks, as vLLM's V1 engine does it.

Notation: a block id stands for one page in each of ``width`` layers; n = layers of a kind, s = size of a group.
    s = least n of all kinds, or the largest n where max n < growth x min n         (kv_cache_utils: group_size)
    groups of a kind = ceil(n / s), its layers spread evenly, so the widest holds ceil(n / groups)
    bytes of a block = page x widest group;   blocks = floor(available / bytes of a block)
    blocks of a request = sum over the groups of the blocks that one request of L tokens holds in it
        full: ceil(L / p);  window w: ceil(min(w - 1 + B, L) / p) + 1;  chunk c: ceil(min(c + B, L) / p), B = tokens in flight
        state: 1 or, where prefixes are cached, 2 pages, and one more for each drafted token
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm

from models.capacity.layers import CacheLayer
from models.catalog.pool_rules import PoolRules
from models.errors import NotCoveredError


@dataclass(frozen=True, slots=True)
class Request:
    """What one request of the longest context may hold: ``tokens``, ``in_flight`` tokens beyond a window, ``state_pages``."""

    tokens: int
    in_flight: int
    state_pages: int

    def blocks(self, layer: CacheLayer) -> int:
        """Blocks in one group of such layers."""
        if layer.kind == "state":
            return self.state_pages
        if layer.window is None:
            return -(-self.tokens // layer.block)
        if layer.kind == "chunk":
            return -(-min(layer.window + self.in_flight, self.tokens) // layer.block)
        return -(-min(layer.window - 1 + self.in_flight, self.tokens) // layer.block) + 1


@dataclass(frozen=True, slots=True)
class Pool:
    """Groups over one pool: ``layers`` after pages were unified, ``groups`` of each, ``width`` layers a block spans."""

    layers: tuple[CacheLayer, ...]
    groups: tuple[int, ...]
    block_bytes: int
    uniform: bool  # one group of layers whose pages may differ

    @property
    def block_tokens(self) -> int:
        """Tokens of a block: the smallest of all groups, which the engine prints."""
        return min(layer.block for layer in self.layers)

    @property
    def attention_block(self) -> int:
        """Tokens of a block of the attention layers."""
        return min((layer.block for layer in self.layers if layer.kind != "state"), default=self.block_tokens)

    def request_blocks(self, request: Request) -> int:
        """Blocks that one request takes from the pool."""
        if self.uniform:
            return max(request.blocks(layer) for layer in self.layers)
        return sum(n * request.blocks(layer) for layer, n in zip(self.layers, self.groups, strict=True))

    def needed(self, request: Request, rule: str) -> int:
        """Bytes "needed" for one request as the engine counts them in a refusal."""
        if rule == "layers" or self.uniform:
            return sum(layer.count * layer.page * request.blocks(layer) for layer in self.layers)
        if rule == "first_group":
            return self.block_bytes * request.blocks(self.layers[0])
        return self.block_bytes * self.request_blocks(request)


def hybrid_pages(layers: tuple[CacheLayer, ...], alignment: int) -> tuple[CacheLayer, ...]:
    """Grow the attention block (a multiple of ``alignment``) until its page covers the largest state, then pad the states to it."""
    states = [layer.page for layer in layers if layer.kind == "state"]
    attention = [layer for layer in layers if layer.kind != "state"]
    if not states or not attention:
        return layers
    token = max(layer.token_bytes for layer in attention)
    unit = lcm(alignment, 16)
    grown = unit * -(-max(states) // (unit * token))
    block = max(grown, *(layer.block for layer in attention))
    page = block * token
    return tuple(replace(layer, page=page, block=block) if layer.kind == "state" else layer.with_block(block) for layer in layers)


def unify_pages(layers: tuple[CacheLayer, ...]) -> tuple[CacheLayer, ...]:
    """All pages as large as the largest: attention blocks grow where that divides, anything else is padded."""
    largest = max(layer.page for layer in layers)
    found: dict[CacheLayer, int] = {}
    for layer in layers:
        same = replace(layer, page=largest)
        if layer.kind != "state" and layer.page and largest % layer.page == 0:
            same = layer.with_block(layer.block * (largest // layer.page))
        key = replace(same, count=0, token_bytes=0)
        found[key] = found.get(key, 0) + layer.count
    return tuple(replace(key, count=count) for key, count in found.items())


def pool_of(layers: tuple[CacheLayer, ...], rules: PoolRules, alignment: int, pp: int = 1) -> Pool:
    """Group ``layers`` (of all stages) and size one block on the stage that holds the most of them."""
    if not layers:
        raise NotCoveredError("the model caches nothing", path="model", way_out="give a model with attention or state layers")
    kinds = {(layer.kind, layer.window, layer.block) for layer in layers}
    if len(kinds) == 1 and layers[0].kind != "state":
        page = sum(-(-layer.count // pp) * layer.page for layer in layers)
        return Pool(layers, tuple(1 for _ in layers), page, uniform=True)
    same = unify_pages(hybrid_pages(layers, alignment))
    counts = [layer.count for layer in same]
    size = max(counts) if max(counts) < rules.group_growth * min(counts) else min(counts)
    groups = tuple(-(-n // size) for n in counts)
    widest = max(-(-n // g) for n, g in zip(counts, groups, strict=True))
    width = -(-widest // pp)
    return Pool(same, groups, same[0].page * width, uniform=False)
