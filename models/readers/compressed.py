"""DeepSeek-V4 layers: one shared key-value vector, a window, and compressed older tokens (4-fold and indexed, or 128-fold)."""

from __future__ import annotations

from models.describe.architecture import FP32, Attention, Indexer, Tensor
from models.readers.keys import Keys
from models.readers.plan import Slot
from models.readers.tensors import Tensors, linear, norm, vector

INDEXED_RATIO = 4


def compressed_attention(config: Keys, slot: Slot) -> tuple[Attention, Tensors]:
    """Low-rank query, one KV vector for all heads (key = value), grouped low-rank output, a sink a head."""
    hidden, heads, d, p = config.number("hidden"), config.number("heads"), config.number("head_dim"), "attn"
    rank, groups, out_rank = config.number("q_lora_rank"), config.number("o_groups"), config.number("o_lora_rank")
    found = linear(f"{p}.wq_a", rank, hidden, "attention", "none") + norm(f"{p}.q_norm", rank)
    found += linear(f"{p}.wq_b", heads * d, rank, "attention", units=heads)
    found += linear(f"{p}.wkv", d, hidden, "attention", "none") + norm(f"{p}.kv_norm", d)
    found += linear(f"{p}.wo_a", groups * out_rank, heads * d // groups, "attention", units=groups)
    found += linear(f"{p}.wo_b", hidden, groups * out_rank, "attention", "cols") + vector(f"{p}.attn_sink", heads, "norm", "rows", FP32)
    indexer = None
    if slot.compress:
        width = 2 * d if slot.compress == INDEXED_RATIO else d  # the 4-fold compressor overlaps its blocks
        found += _compressor(f"{p}.compressor", width, d, hidden, slot.compress)
    if slot.compress == INDEXED_RATIO:
        indexer = Indexer(
            config.number("index_n_heads"), config.number("index_head_dim"), config.number("index_topk"), tokens_per_key=slot.compress
        )
        found += _compressor(f"{p}.indexer.compressor", 2 * indexer.dim, indexer.dim, hidden, slot.compress)
        found += linear(f"{p}.indexer.wq_b", indexer.heads * indexer.dim, rank, "attention", "none")
        found += linear(f"{p}.indexer.weights_proj", indexer.heads, hidden, "control", "none")
    shape = Attention("compressed", heads, 1, d, d, config.number("window"), latent_dim=d, compress_ratio=slot.compress, indexer=indexer)
    return shape, found


def _compressor(prefix: str, width: int, dim: int, hidden: int, ratio: int) -> Tensors:
    found = linear(f"{prefix}.wkv", width, hidden, "attention", "none") + linear(f"{prefix}.wgate", width, hidden, "attention", "none")
    return found + vector(f"{prefix}.ape", ratio * width, "norm", "none", FP32) + norm(f"{prefix}.norm", dim)


def hyper_connections(config: Keys, names: tuple[str, ...]) -> Tensors:
    """Mixing weights of the residual streams: (2 + m) m outputs over m x hidden inputs, with bases and three scales."""
    m, hidden = config.number("hc_mult"), config.number("hidden")
    found: Tensors = ()
    for name in names:
        found += (Tensor(f"{name}_fn", (2 + m) * m, m * hidden, "ffn", linear=True, format=FP32),)
        found += vector(f"{name}_base", (2 + m) * m, "norm", "none", FP32) + vector(f"{name}_scale", 3, "norm", "none", FP32)
    return found


def hyper_head(config: Keys) -> Tensors:
    """Mixing of the streams before the output head."""
    m, hidden = config.number("hc_mult"), config.number("hidden")
    found: Tensors = (Tensor("hc_head_fn", m, m * hidden, "ffn", linear=True, format=FP32),)
    return found + vector("hc_head_base", m, "norm", "none", FP32) + vector("hc_head_scale", 1, "norm", "none", FP32)
