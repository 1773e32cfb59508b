"""What one device holds: weights, KV in blocks, draft, activations, graphs (sections 8.1.2, 8.3, 8.4).

Notation
    p        tokens of a KV block
    L, G     prompt and output tokens; the last output token is never written, so L + G - 1 tokens are stored
    S        shared prefix in full blocks: floor(shared / p) p tokens, held once
    b        requests resident
KV of b requests = shared(S) + b private, private = ceil((L + G - 1 - S) / p) p tokens (and windows, recurrent state).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models import facts
from models.catalog.estimates_catalog import estimates
from models.describe.architecture import Architecture
from models.units import KIB


def blocks(tokens: int, block_tokens: int) -> int:
    """Blocks that hold ``tokens``: ceil(t / p)."""
    return -(-tokens // block_tokens)


def full_blocks(tokens: int, block_tokens: int) -> int:
    """Tokens of a prefix that can be shared: only full, read-only blocks."""
    return tokens // block_tokens * block_tokens


@dataclass(frozen=True)
class Paging:
    """Blocks of some sequences, the tokens they can hold and how many of those hold nothing (section 8.3.1)."""

    blocks: int
    tokens: int
    unused: int


def paging(lengths: Sequence[int], block_tokens: int, shared_blocks: int = 0) -> Paging:
    """Each sequence in blocks of its own, ``shared_blocks`` of which are the same as another sequence's."""
    count = sum(blocks(length, block_tokens) for length in lengths) - shared_blocks
    stored = sum(lengths) - shared_blocks * block_tokens
    return Paging(count, count * block_tokens, count * block_tokens - stored)


@dataclass(frozen=True)
class KvLayout:
    """KV bytes on one device: ``shared`` once, ``private`` for each request, ``state`` included in private."""

    shared: int
    private: int

    def total(self, requests: int) -> int:
        """Bytes of ``requests`` resident requests."""
        return self.shared + requests * self.private

    def capacity(self, budget: int) -> int:
        """Most requests whose complete KV fits ``budget`` bytes."""
        return max(0, (budget - self.shared) // self.private)


def kv_layout(
    arch: Architecture, kv_format: str, *, stored_tokens: int, shared_tokens: int = 0, prompt_tokens: int | None = None,
    samples: int = 1, block_tokens: int = 16, tp: int = 1,
) -> KvLayout:  # fmt: skip
    """KV of requests that store ``stored_tokens`` each, the first ``shared_tokens`` in common.

    ``samples`` branches of one prompt share its full blocks (copy-on-write from the tail on) where a prefix is shared at all.
    """
    prefix = full_blocks(shared_tokens, block_tokens)
    if samples == 1 or prompt_tokens is None:
        private = _growing(arch, kv_format, blocks(stored_tokens - prefix, block_tokens) * block_tokens, tp)
        windows = _bounded(arch, kv_format, blocks(stored_tokens, block_tokens) * block_tokens, tp)
        return KvLayout(_growing(arch, kv_format, prefix, tp), samples * (private + windows))
    trunk = full_blocks(prompt_tokens, block_tokens) - prefix
    branch = _growing(arch, kv_format, blocks(stored_tokens - prefix - trunk, block_tokens) * block_tokens, tp)
    windows = _bounded(arch, kv_format, blocks(stored_tokens, block_tokens) * block_tokens, tp)
    return KvLayout(_growing(arch, kv_format, prefix, tp), _growing(arch, kv_format, trunk, tp) + samples * (branch + windows))


def _growing(arch: Architecture, kv_format: str, tokens: int, tp: int) -> int:
    return tokens * (facts.kv_bytes_per_token(arch, kv_format, tp) + facts.indexer_bytes_per_token(arch))


def _bounded(arch: Architecture, kv_format: str, tokens: int, tp: int) -> int:
    """Windows, compressed entries and state of one sequence: everything that is not a plain growing token."""
    return facts.kv_bytes(arch, tokens, kv_format, tp) - _growing(arch, kv_format, tokens, tp)


def activation_bytes_per_token(arch: Architecture, tp: int) -> int:
    """Peak workspace a token of the step, where an FFN ends: residual, its normed copy and the output, gate, up and product (BF16).

    2 (3 h + 3 w / tp) bytes (2 w where no gate multiplies), w the widest FFN or all chosen experts: within 1 % of the peaks that an eager
    engine logged (catalogue ``estimates``, with the spread).
    """
    widths = (
        max((3 if g.ffn.gated else 2) * g.ffn.width, 3 * (g.ffn.top_k * g.ffn.expert_width + g.ffn.shared_width))
        for g in arch.layers
        if g.ffn
    )
    return 2 * (3 * arch.hidden + -(-max(widths, default=0) // tp))


def logits_bytes_per_row(arch: Architecture, tp: int) -> int:
    """Logits of one row in BF16 and their FP32 copy for sampling."""
    return 6 * -(-arch.vocabulary // tp)


def graph_bytes(arch: Architecture, sizes: tuple[int, ...], tp: int) -> int:
    """Buffers of captured graphs: each keeps its launches, and all share one pool as large as the largest shape's activations."""
    if not sizes:
        return 0
    estimate = estimates()["graph"]
    pool = sizes[-1] * activation_bytes_per_token(arch, tp)
    return int(pool + len(sizes) * arch.layer_count * estimate["bytes_per_layer_and_size"])


def lora_bytes(arch: Architecture, rank: int, element_bytes: int = 2) -> int:
    """One adapter on the query and value projections of every layer: r (inputs + outputs) elements each (section 8.2.1)."""
    total = 0
    for group in arch.layers:
        a = group.attention
        if a is not None and a.kind == "grouped":
            query, value = a.heads * a.key_dim, a.kv_heads * a.value_dim
            total += group.count * rank * (arch.hidden + query + arch.hidden + value)
    return total * element_bytes


def kib(count: float) -> int:
    """Whole KiB that hold ``count`` bytes: the unit in which every constraint on memory is checked."""
    return int(-(-count // KIB))
