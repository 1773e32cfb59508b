"""Softmax attention layers as tensors: grouped (GQA, MQA, MHA), latent (MLA) and the indexers beside them."""

from __future__ import annotations

from dataclasses import dataclass

from models.describe.architecture import Attention, Indexer
from models.readers.tensors import Tensors, linear, norm, vector


@dataclass(frozen=True, slots=True)
class Grouped:
    """One grouped-query attention layer. ``qk_norm``: none, one weight for each element of a head, or of all heads."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int = 0  # 0 = head_dim
    window: int | None = None
    chunked: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: str = "none"
    qk_norm_bias: bool = False
    output_gate: str = "none"  # "query": q_proj is twice as wide; "head": one gate a head
    sinks: bool = False
    shares_kv: bool = False
    value_is_key: bool = False
    prefix: str = "self_attn"
    out: str = "o_proj"
    fused_qkv: str = ""


def grouped_attention(a: Grouped, hidden: int) -> tuple[Attention, Tensors]:
    """q, k, v, o projections with their biases and norms."""
    value_dim = a.value_dim or a.head_dim
    query, key, value = a.heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * value_dim
    p = a.prefix
    found: Tensors = ()
    if a.fused_qkv:
        found += linear(f"{p}.{a.fused_qkv}", query + key + value, hidden, "attention", bias=a.qkv_bias)
    else:
        wide = 2 if a.output_gate == "query" else 1
        found += linear(f"{p}.q_proj", query * wide, hidden, "attention", bias=a.qkv_bias, units=a.heads)
        if not a.shares_kv:
            found += linear(f"{p}.k_proj", key, hidden, "attention", bias=a.qkv_bias, units=a.kv_heads)
            found += () if a.value_is_key else linear(f"{p}.v_proj", value, hidden, "attention", bias=a.qkv_bias, units=a.kv_heads)
    found += linear(f"{p}.{a.out}", hidden, a.heads * value_dim, "attention", "cols", bias=a.out_bias)
    found += _qk_norms(a, query, key)
    if a.output_gate == "head":
        found += linear(f"{p}.g_proj", a.heads, hidden, "attention")
    found += vector(f"{p}.sinks", a.heads, split="rows") if a.sinks else ()
    shape = Attention("grouped", a.heads, a.kv_heads, a.head_dim, value_dim, a.window, a.chunked, shares_kv=a.shares_kv)
    return shape, found


def _qk_norms(a: Grouped, query: int, key: int) -> Tensors:
    if a.qk_norm == "none":
        return ()
    sizes = (a.head_dim, a.head_dim) if a.qk_norm == "head" else (query, key)
    found = norm(f"{a.prefix}.q_norm", sizes[0], bias=a.qk_norm_bias)
    return found + (() if a.shares_kv else norm(f"{a.prefix}.k_norm", sizes[1], bias=a.qk_norm_bias))


@dataclass(frozen=True, slots=True)
class Latent:
    """One multi-head latent attention layer (DeepSeek-V2): ranks of the compressed query (0 = none) and of the cached latent."""

    heads: int
    query_rank: int
    latent: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    bias: bool = False
    output_gate: bool = False
    indexer: Indexer | None = None
    prefix: str = "self_attn"


def latent_attention(a: Latent, hidden: int) -> tuple[Attention, Tensors]:
    """Down-projections are replicated on every rank, up-projections are cut by head."""
    p, key_dim = a.prefix, a.nope_dim + a.rope_dim
    if a.query_rank:
        found = linear(f"{p}.q_a_proj", a.query_rank, hidden, "attention", "none", bias=a.bias) + norm(f"{p}.q_a_layernorm", a.query_rank)
        found += linear(f"{p}.q_b_proj", a.heads * key_dim, a.query_rank, "attention", units=a.heads)
    else:
        found = linear(f"{p}.q_proj", a.heads * key_dim, hidden, "attention", units=a.heads)
    found += linear(f"{p}.kv_a_proj_with_mqa", a.latent + a.rope_dim, hidden, "attention", "none", bias=a.bias)
    found += norm(f"{p}.kv_a_layernorm", a.latent)
    found += linear(f"{p}.kv_b_proj", a.heads * (a.nope_dim + a.value_dim), a.latent, "attention", units=a.heads)
    found += linear(f"{p}.o_proj", hidden, a.heads * a.value_dim, "attention", "cols", bias=a.bias)
    if a.output_gate:
        found += linear(f"{p}.g_proj", a.heads * a.value_dim, hidden, "attention", units=a.heads)
    if a.indexer and a.indexer.stores_keys:
        found += latent_indexer(a.indexer, a.query_rank, hidden, f"{p}.indexer")
    shape = Attention("latent", a.heads, 1, key_dim, a.value_dim, latent_dim=a.latent, rope_dim=a.rope_dim, indexer=a.indexer)
    return shape, found


def latent_indexer(indexer: Indexer, query_rank: int, hidden: int, prefix: str) -> Tensors:
    """DeepSeek sparse attention: queries from the compressed query, one shared key a token, one weight a head. Replicated."""
    found = linear(f"{prefix}.wq_b", indexer.heads * indexer.dim, query_rank, "attention", "none")
    found += linear(f"{prefix}.wk", indexer.dim, hidden, "attention", "none")
    found += norm(f"{prefix}.k_norm", indexer.dim, bias=True)
    return found + linear(f"{prefix}.weights_proj", indexer.heads, hidden, "control", "none")
