"""One layer from its slot: attention or state, feed-forward, norms. Built once for each kind of layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from models.describe.architecture import Attention, Ffn, Indexer, RecurrentState
from models.errors import ContradictionError, FileFormatError
from models.readers import plan
from models.readers.attention import Grouped, Latent, grouped_attention, latent_attention
from models.readers.compressed import compressed_attention, hyper_connections
from models.readers.families import Family, Flag
from models.readers.ffn import MlpNames, Moe, mlp, moe_layer
from models.readers.keys import Keys
from models.readers.plan import Slot
from models.readers.recurrent import recurrent_layer
from models.readers.tensors import Tensors, buffer, linear, norm


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: what it caches and computes, and its tensors."""

    attention: Attention | None
    state: RecurrentState | None
    ffn: Ffn | None
    tensors: Tensors


def build_layer(config: Keys, family: Family, slot: Slot) -> Layer:
    """The layer that stands in ``slot``."""
    hidden = config.number("hidden")
    attention: Attention | None = None
    state: RecurrentState | None = None
    tensors: Tensors = ()
    if slot.mixer == "linear" or family.both:
        state, tensors = recurrent_layer(config, family.state, family.state_prefix, split=family.split_projections)
        state = replace(state, recurrent_bits=state_bits(config))
    if slot.mixer not in ("linear", "none"):
        attention, more = build_attention(config, family, slot)
        tensors += more
    ffn, more = build_ffn(config, family, slot)
    tensors += more
    for name in layer_norms(config, family, slot):
        tensors += norm(name, hidden, bias=family.norm_bias)
    tensors += _per_layer_inputs(config, hidden)
    if family.special == "compressed":
        tensors += hyper_connections(config, ("hc_attn", "hc_ffn"))
    return Layer(attention, state, ffn, tensors)


def state_bits(config: Keys) -> int:
    """Bits of a recurrent state's element: FP32 unless the configuration asks for less."""
    kind = config.text("mamba_ssm_cache_dtype") or config.text("mamba_ssm_dtype") or "float32"
    bits = {"float32": 32, "bfloat16": 16, "float16": 16}.get(kind.removeprefix("torch."))
    if bits is None:
        raise FileFormatError("unknown dtype", path=config.where("mamba_ssm_dtype"), value=kind, way_out="float32, bfloat16 or float16")
    return bits


def layer_norms(config: Keys, family: Family, slot: Slot) -> tuple[str, ...]:
    """Norms of hidden size in one layer, as the family and the layer's parts have them."""
    if family.special == "nas":
        return tuple(n for n, present in zip(family.norms, (slot.mixer != "none", slot.ffn != "none"), strict=True) if present)
    if family.fused_qkv == "query_key_value":  # Falcon: two norms side by side, or one shared by the parallel branches
        if config.flag("new_decoder_architecture"):
            two = config.number("num_ln_in_parallel_attn", default=2) == 2
            return family.norms if two else ("input_layernorm",)
        return ("input_layernorm",) if config.flag("parallel_attn", default=True) else ("input_layernorm", "post_attention_layernorm")
    if family.parallel_moe and slot.ffn == "moe":
        return (*family.norms, "post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")
    return family.norms


def trait(config: Keys, value: Flag) -> bool:
    """A constant trait, or the flag of that name (off when absent, on for Starcoder's ``use_bias`` and OPT's ``enable_bias``)."""
    return config.flag(value, default=value in ("use_bias", "enable_bias")) if isinstance(value, str) else value


def head_dim_of(config: Keys, family: Family) -> int:
    """Declared, or hidden / heads; where that does not divide, or the family's own default differs, nothing is guessed."""
    if config.has("head_dim"):
        return config.number("head_dim")
    hidden, heads = config.number("hidden"), config.number("heads")
    if hidden % heads or (family.head_dim and family.head_dim != hidden // heads):
        why = f"missing, and hidden size {hidden} over {heads} heads does not give it"
        raise ContradictionError(why, path=config.where("head_dim"), way_out="add head_dim to the configuration")
    return hidden // heads


def _heads(config: Keys, family: Family, slot: Slot) -> tuple[int, int]:
    heads = config.number("heads")
    if slot.kv_heads:
        return heads, slot.kv_heads
    if family.fused_qkv == "query_key_value":
        return heads, _falcon_kv_heads(config, heads)
    kv_heads = config.number("kv_heads", default=heads)
    if heads % kv_heads:
        path, way_out = config.where("num_key_value_heads"), "correct one of them"
        raise ContradictionError(f"{heads} attention heads do not divide into it", path=path, value=kv_heads, way_out=way_out)
    return heads, kv_heads


def _falcon_kv_heads(config: Keys, heads: int) -> int:
    if config.flag("new_decoder_architecture"):
        return config.number("kv_heads", default=heads)
    return 1 if config.flag("multi_query", default=True) else heads


def build_attention(config: Keys, family: Family, slot: Slot) -> tuple[Attention, Tensors]:
    """Latent where the configuration has a KV rank, compressed in DeepSeek-V4, else grouped."""
    hidden = config.number("hidden")
    if family.special == "compressed":
        return compressed_attention(config, slot)
    if config.has("kv_lora_rank"):
        return latent_attention(_latent(config, family, slot), hidden)
    heads, kv_heads = _heads(config, family, slot)
    head_dim, value_dim = head_dim_of(config, family), config.number("v_head_dim", default=0, least=0)
    value_is_key = False
    if family.swap_kv == "swa_" and slot.mixer == "sliding":
        heads, kv_heads = (
            config.number("swa_num_attention_heads", default=heads),
            config.number("swa_num_key_value_heads", default=2 * kv_heads),
        )
        head_dim, value_dim = config.number("swa_head_dim", default=head_dim), config.number("swa_v_head_dim", default=value_dim, least=0)
    if family.swap_kv == "global_" and slot.mixer == "full":
        head_dim = config.number("global_head_dim", default=512)
        value_is_key = config.flag("attention_k_eq_v")
        kv_heads = config.number("num_global_key_value_heads", default=kv_heads) if value_is_key else kv_heads
    heads, kv_heads, head_dim = slot.heads or heads, slot.kv_heads or kv_heads, slot.head_dim or head_dim
    other = config.child("attention_other_setting") if slot.mixer == "sliding" else None
    if other is not None:
        heads, kv_heads = other.number("heads", default=heads), other.number("kv_heads", default=kv_heads)
    shape = Grouped(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        window=_window(config, family, slot),
        chunked=slot.mixer == "chunked",
        qkv_bias=trait(config, family.qkv_bias),
        out_bias=trait(config, family.out_bias),
        qk_norm=family.qk_norm if not family.qk_norm_key or config.flag(family.qk_norm_key, default=family.qk_norm_default) else "none",
        output_gate=family.output_gate,
        sinks=_sinks(config, family, slot),
        shares_kv=slot.reuses_kv,
        value_is_key=value_is_key,
        prefix=family.attention,
        out=family.out,
        fused_qkv=family.fused_qkv,
    )
    attention, tensors = grouped_attention(shape, hidden)
    return _with_block_indexer(config, slot, attention, tensors, hidden, family.attention)


def _window(config: Keys, family: Family, slot: Slot) -> int | None:
    if slot.mixer == "chunked":
        return config.number("attention_chunk_size")
    if slot.mixer != "sliding":
        return None
    window = plan.window_of(config, family)
    return config.number("window") if window is None else window  # a layer that is listed as windowed must name its window


def _sinks(config: Keys, family: Family, slot: Slot) -> bool:
    """GPT-OSS has sinks everywhere, MiMo-V2 in windowed layers unless its keys say otherwise."""
    windowed = slot.mixer == "sliding"
    key = "add_swa_attention_sink_bias" if windowed else "add_full_attention_sink_bias"
    return family.sinks and config.flag(key, default=windowed or not family.swap_kv)


def _latent(config: Keys, family: Family, slot: Slot) -> Latent:
    indexer = None
    if slot.indexer != "none":
        own = slot.indexer == "own"
        indexer = Indexer(config.number("index_n_heads"), config.number("index_head_dim"), config.number("index_topk"), stores_keys=own)
    return Latent(
        heads=config.number("heads"),
        query_rank=config.number("q_lora_rank", default=0, least=0),
        latent=config.number("kv_lora_rank"),
        nope_dim=config.number("qk_nope_head_dim"),
        rope_dim=config.number("qk_rope_head_dim"),
        value_dim=config.number("v_head_dim"),
        bias=trait(config, family.qkv_bias),
        output_gate=config.flag("mla_use_output_gate"),
        indexer=indexer,
        prefix=family.attention,
    )


def _with_block_indexer(
    config: Keys, slot: Slot, attention: Attention, tensors: Tensors, hidden: int, prefix: str
) -> tuple[Attention, Tensors]:
    """MiniMax-M3: an index head for each KV head picks blocks of keys; one shared index key a token is cached."""
    block = config.child("sparse_attention_config")
    if slot.indexer == "none" or block is None:
        return attention, tensors
    heads, dim = block.number("sparse_num_index_heads"), block.number("sparse_index_dim")
    top_k = block.number("sparse_topk_blocks") * block.number("sparse_block_size")
    tensors += linear(f"{prefix}.index_q_proj", heads * dim, hidden, "attention", "none")
    tensors += linear(f"{prefix}.index_k_proj", dim, hidden, "attention", "none")
    tensors += norm(f"{prefix}.index_q_norm", dim) + norm(f"{prefix}.index_k_norm", dim)
    shape = Attention(
        attention.kind, attention.heads, attention.kv_heads, attention.key_dim, attention.value_dim, indexer=Indexer(heads, dim, top_k)
    )
    return shape, tensors


def build_ffn(config: Keys, family: Family, slot: Slot) -> tuple[Ffn | None, Tensors]:
    """Dense, experts, or (Gemma 4) both side by side."""
    hidden = config.number("hidden")
    if slot.ffn == "none":
        return None, ()
    if slot.ffn == "dense" or family.parallel_moe:
        width = slot.width or _dense_width(config, family)
        width *= 2 if slot.reuses_kv and config.flag("use_double_wide_mlp") else 1
        ffn, tensors = _dense(config, family, width, hidden)
        if slot.ffn == "dense":
            return ffn, tensors
        routed, more = moe_layer(_moe(config, family, slot), hidden)
        return Ffn(width, routed.gated, routed.experts, routed.top_k, routed.expert_width, routed.shared_width), tensors + more
    found, tensors = moe_layer(_moe(config, family, slot), hidden)
    if slot.hashed_router:
        tensors += buffer(f"{family.moe}.gate.tid2eid", 2 * config.number("vocabulary") * config.number("top_k"))  # 64-bit
    return found, tensors


def _dense_width(config: Keys, family: Family) -> int:
    for key in family.dense_width:
        if config.has(key):
            return config.number(key)
    if family.fused_qkv == "query_key_value":  # Falcon: 4 x hidden unless told
        return 4 * config.number("hidden")
    return config.number(family.dense_width[0])


def _dense(config: Keys, family: Family, width: int, hidden: int) -> tuple[Ffn, Tensors]:
    bias = trait(config, family.mlp_bias)
    gate, up, down = family.mlp_names
    if family.fused_gate_up:
        fused = linear(f"{family.mlp}.{gate}", 2 * width, hidden, "ffn") + linear(f"{family.mlp}.{down}", hidden, width, "ffn", "cols")
        return Ffn(width), fused
    return Ffn(width, family.gated), mlp(family.mlp, hidden, width, gated=family.gated, bias=bias, names=MlpNames(gate, up, down))


def _moe(config: Keys, family: Family, slot: Slot) -> Moe:
    experts, top_k = config.number("experts"), config.number("top_k")
    if top_k > experts:
        raise ContradictionError(f"more experts chosen than the {experts} there are", path=config.where("num_experts_per_tok"), value=top_k)
    width = next((config.number(key) for key in family.expert_width if config.has(key)), 0) or config.number(family.expert_width[0])
    latent = config.number("moe_latent_size", default=config.number("routed_expert_hidden_size", default=0, least=0), least=0)
    return Moe(
        experts=experts,
        top_k=top_k,
        width=width,
        shared_width=_shared_width(config, family, width),
        shared_gate=family.shared_gate,
        shared_bias=family.special == "blocks" and trait(config, family.mlp_bias),
        gated=family.gated,
        bias=family.expert_bias,
        router_bias=family.router_bias,
        correction_bias=family.correction_bias and not slot.hashed_router,
        correction_native=family.correction_native,
        latent=latent,
        latent_norm=bool(latent) and config.flag("latent_moe_use_norm"),
        prefix=family.moe,
        router=family.router,
        shared=family.shared,
        names=MlpNames(*family.expert_names),
        extra_vectors=(("router.scale", config.number("hidden")), ("router.per_expert_scale", experts)) if family.parallel_moe else (),
    )


def _shared_width(config: Keys, family: Family, width: int) -> int:
    """Width of all shared experts together; a width key wins, then a count of routed-sized ones."""
    for key in ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim"):
        if config.has(key):
            return config.number(key, least=0)
    if family.shared_is_width:
        return width
    return config.number("shared_experts", default=0, least=0) * width


def _per_layer_inputs(config: Keys, hidden: int) -> Tensors:
    """Gemma 3n / 4: a gate and a projection of the per-layer embedding."""
    size = config.number("hidden_size_per_layer_input", default=0, least=0)
    if not size:
        return ()
    found = linear("per_layer_input_gate", size, hidden, "ffn", "none") + linear("per_layer_projection", hidden, size, "ffn", "none")
    return found + norm("post_per_layer_input_norm", hidden)
