"""What a configuration file leaves unsaid: one row of traits for each ``model_type``.

A trait is a constant of the family's published implementation (where the biases are, which norms exist, whether embeddings are tied when
the key is absent, how modules are called). Everything with a key in the configuration is read from there. A family that is not in this
table is an error, never a guess. Sources: the families' modelling code in transformers 5.24 and the checkpoints' tensor names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Window = Literal["none", "all", "alternate", "every", "qwen"]
Flag = bool | str  # a constant, or the configuration key that tells

_TWO_NORMS = ("input_layernorm", "post_attention_layernorm")
_FOUR_NORMS = (*_TWO_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")
_W123 = ("w1", "w3", "w2")


@dataclass(frozen=True, slots=True)
class Family:
    """Traits of one ``model_type``."""

    # attention
    qkv_bias: Flag = False
    out_bias: Flag = False
    qk_norm: str = "none"  # none; head: one weight an element of a head; full: one for each element of all heads
    qk_norm_key: str = ""  # the flag that switches qk_norm
    qk_norm_default: bool = False
    qk_norm_bias: bool = False
    head_dim: int = 0  # the implementation's own default, 0 = hidden / heads
    window: Window = "none"
    last_is_full: bool = False  # the last layer sees everything whatever the list says (Gemma 4)
    every: int = 0  # "every": one full layer in so many
    window_may_exceed_context: bool = False
    output_gate: str = "none"
    sinks: bool = False
    attention: str = "self_attn"
    out: str = "o_proj"
    fused_qkv: str = ""
    swap_kv: str = ""  # prefix of the keys that describe windowed layers apart
    latent_rank_required: bool = False
    # recurrent layers
    state: str = ""  # kind of the linear layers
    state_prefix: str = "linear_attn"
    split_projections: bool = False
    both: bool = False  # every layer has attention and state
    # feed-forward
    mlp_bias: Flag = False
    gated: bool = True
    mlp: str = "mlp"
    mlp_names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    fused_gate_up: bool = False
    moe: str = "mlp"
    router: str = "gate"
    experts: str = "experts"
    shared: str = "shared_experts"
    shared_gate: bool = False
    expert_names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    expert_bias: bool = False
    router_bias: bool = False
    correction_bias: bool = False
    correction_native: bool = False  # correction bias stored in the model's dtype instead of FP32
    dense_width: tuple[str, ...] = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")
    expert_width: tuple[str, ...] = ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size")
    shared_is_width: bool = False  # a shared expert as wide as a routed one, without a key (Llama 4)
    parallel_moe: bool = False  # dense FFN and experts side by side (Gemma 4)
    # the rest
    norms: tuple[str, ...] = _TWO_NORMS
    norm_bias: bool = False
    tied: bool = False
    head_bias: Flag = False
    embedding: str = "embed_tokens"
    final_norm: str = "norm"
    positions: int = -1  # learned position table: context + this many rows, -1 = none
    scale: str = "fp32"  # dtype of FP8 block scales in the family's own checkpoints
    mtp: str = ""  # layout of the prediction layers, "" = not known
    defaults: tuple[tuple[str, int], ...] = ()  # keys that published files of the family leave to the implementation
    special: str = ""  # layers that no trait describes: "compressed" (DeepSeek-V4), "nas" (Nemotron NAS), "blocks" (Nemotron-H)


LLAMA = Family(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")
MISTRAL = Family(window="all")
QWEN2 = Family(qkv_bias=True, window="qwen")
QWEN3 = Family(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head", head_dim=128, window="qwen", scale="bf16")
QWEN3_MOE = replace(QWEN3, head_dim=0)
QWEN3_NEXT = replace(
    QWEN3_MOE,
    head_dim=256,
    window="none",
    output_gate="query",
    state="gated_delta",
    shared="shared_expert",
    shared_gate=True,
    mtp="qwen",
)
QWEN3_5 = replace(QWEN3_NEXT, split_projections=True)
GEMMA2 = Family(qkv_bias="attention_bias", out_bias="attention_bias", tied=True, head_dim=256, window="alternate", norms=_FOUR_NORMS)
GEMMA3 = replace(GEMMA2, qk_norm="head", window="every", every=6)
GEMMA4 = replace(GEMMA3, parallel_moe=True, moe="", router="router.proj", swap_kv="global_", last_is_full=True)
DEEPSEEK = Family(qkv_bias="attention_bias", correction_bias=True, mtp="deepseek", latent_rank_required=True)
GLM4_MOE = Family(qkv_bias="attention_bias", qk_norm="head", qk_norm_key="use_qk_norm", head_dim=128, correction_bias=True, mtp="deepseek")
KIMI_LINEAR = replace(
    DEEPSEEK, state="kimi_delta", state_prefix="self_attn", moe="block_sparse_moe", expert_names=_W123, mtp="", correction_native=True
)
MINIMAX_M2 = Family(
    qk_norm="full",
    qk_norm_key="use_qk_norm",
    qk_norm_default=True,
    moe="block_sparse_moe",
    expert_names=_W123,
    correction_bias=True,
)
MINIMAX_M3 = replace(MINIMAX_M2, qk_norm="head", dense_width=("dense_intermediate_size",))
MIXTRAL = replace(MISTRAL, moe="block_sparse_moe", expert_names=_W123, window="all")
NEMOTRON_H = Family(
    gated=False,
    attention="mixer",
    state="mamba2",
    state_prefix="mixer",
    mlp="mixer",
    moe="mixer",
    correction_bias=True,
    mlp_bias="mlp_bias",
    norms=("norm",),
    embedding="embeddings",
    final_norm="norm_f",
    mtp="blocks",
    special="blocks",
)

FAMILIES: dict[str, Family] = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "ministral3": MISTRAL,
    "mixtral": MIXTRAL,
    "qwen2": QWEN2,
    "qwen2_vl_text": QWEN2,
    "qwen2_5_vl_text": QWEN2,
    "qwen2_moe": replace(QWEN2, shared="shared_expert", shared_gate=True),
    "qwen3": QWEN3,
    "qwen3_vl_text": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_vl_moe_text": QWEN3_MOE,
    "qwen3_next": QWEN3_NEXT,
    "qwen3_5_text": QWEN3_5,
    "qwen3_5_moe_text": QWEN3_5,
    "gemma": Family(qkv_bias="attention_bias", out_bias="attention_bias", tied=True, head_dim=256),
    "gemma2": GEMMA2,
    "gemma3_text": replace(
        GEMMA3,
        defaults=(
            ("vocab_size", 262208),
            ("num_attention_heads", 8),
            ("num_key_value_heads", 4),
            ("head_dim", 256),
            ("max_position_embeddings", 131072),
        ),
    ),
    "gemma4_text": GEMMA4,
    "phi3": Family(
        window="all", window_may_exceed_context=True, fused_qkv="qkv_proj", fused_gate_up=True, mlp_names=("gate_up_proj", "", "down_proj")
    ),
    "phimoe": replace(
        MIXTRAL,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        norm_bias=True,
        head_bias="lm_head_bias",
        window_may_exceed_context=True,
    ),
    "starcoder2": Family(
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        norm_bias=True,
        gated=False,
        window="all",
        mlp_names=("", "c_fc", "c_proj"),
    ),
    "olmo2": Family(
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm="full",
        norms=("post_attention_layernorm", "post_feedforward_layernorm"),
    ),
    "olmo3": Family(
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm="full",
        window="every",
        every=4,
        norms=("post_attention_layernorm", "post_feedforward_layernorm"),
    ),
    "opt": Family(
        qkv_bias="enable_bias",
        out_bias="enable_bias",
        mlp_bias="enable_bias",
        norm_bias=True,
        gated=False,
        tied=True,
        out="out_proj",
        mlp_names=("", "fc1", "fc2"),
        norms=("self_attn_layer_norm", "final_layer_norm"),
        final_norm="final_layer_norm",
        positions=2,
    ),
    "falcon": Family(
        qkv_bias="bias",
        out_bias="bias",
        mlp_bias="bias",
        norm_bias=True,
        gated=False,
        tied=True,
        attention="self_attention",
        out="dense",
        fused_qkv="query_key_value",
        mlp_names=("", "dense_h_to_4h", "dense_4h_to_h"),
        norms=("ln_attn", "ln_mlp"),
        embedding="word_embeddings",
        final_norm="ln_f",
    ),
    "mimo": replace(QWEN2, qkv_bias="attention_bias", mtp="mimo"),
    "mimo_v2_flash": Family(qkv_bias="attention_bias", correction_bias=True, sinks=True, swap_kv="swa_"),
    "deepseek_v2": replace(DEEPSEEK, correction_bias=False),
    "deepseek_v3": DEEPSEEK,
    "kimi_k2": DEEPSEEK,
    "deepseek_v32": DEEPSEEK,
    "glm_moe_dsa": replace(DEEPSEEK, mtp="deepseek shared"),
    "deepseek_v4": Family(
        special="compressed",
        correction_bias=True,
        attention="attn",
        mlp="ffn",
        moe="ffn",
        expert_names=_W123,
        norms=("attn_norm", "ffn_norm"),
        embedding="embed",
        scale="e8m0",
    ),
    "glm4_moe": GLM4_MOE,
    "kimi_linear": KIMI_LINEAR,
    "minimax_m2": MINIMAX_M2,
    "minimax_m3": MINIMAX_M3,
    "minimax_m1": replace(MIXTRAL, state="lightning", state_prefix="self_attn", window="none"),
    "gpt_oss": Family(
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        sinks=True,
        window="alternate",
        router="router",
        router_bias=True,
        expert_bias=True,
        expert_width=("intermediate_size",),
    ),
    "llama4_text": Family(
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp="feed_forward",
        moe="feed_forward",
        router="router",
        shared="shared_expert",
        shared_is_width=True,
        dense_width=("intermediate_size_mlp",),
        expert_width=("intermediate_size",),
    ),
    "jamba": Family(
        state="mamba",
        state_prefix="mamba",
        mlp="feed_forward",
        moe="feed_forward",
        router="router",
        expert_width=("intermediate_size",),
        norms=("input_layernorm", "pre_ff_layernorm"),
        final_norm="final_layernorm",
    ),
    "falcon_h1": Family(
        both=True,
        state="mamba2",
        state_prefix="mamba",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        mlp="feed_forward",
        norms=("input_layernorm", "pre_ff_layernorm"),
        final_norm="final_layernorm",
    ),
    "granite": LLAMA,
    "smollm3": replace(LLAMA, tied=True),
    "seed_oss": replace(LLAMA, out_bias="attention_out_bias", head_dim=128),
    "ernie4_5": Family(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", head_dim=128, tied=True),
    "glm": Family(qkv_bias="attention_bias", head_dim=128, fused_gate_up=True, mlp_names=("gate_up_proj", "", "down_proj")),
    "glm4": Family(
        qkv_bias="attention_bias",
        head_dim=128,
        fused_gate_up=True,
        mlp_names=("gate_up_proj", "", "down_proj"),
        norms=(*_TWO_NORMS, "post_self_attn_layernorm", "post_mlp_layernorm"),
    ),
    "glm4_moe_lite": replace(DEEPSEEK, mtp="deepseek"),
    "cohere2": Family(qkv_bias="attention_bias", out_bias="attention_bias", tied=True, window="every", every=4, norms=("input_layernorm",)),
    "exaone4": Family(qk_norm="head", window="every", every=4, norms=("post_attention_layernorm", "post_feedforward_layernorm")),
    "nemotron_h": NEMOTRON_H,
    "nemotron-nas": replace(LLAMA, special="nas"),
    "step3p5": Family(
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm="head",
        output_gate="head",
        head_dim=128,
        correction_bias=True,
        dense_width=("intermediate_size",),
    ),
}

WRAPPERS: dict[str, str] = {
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "mistral3": "mistral",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "minimax_m3_vl": "minimax_m3",
    "minimax": "minimax_m1",
    "minimax_text_01": "minimax_m1",
    "kimi_k25": "kimi_k2",
    "kimi_k3": "kimi_linear",
    "deepseek_ref": "deepseek_v4",
    "step3p7": "step3p5",
}
