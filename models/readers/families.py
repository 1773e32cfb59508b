"""What a configuration file leaves unsaid: one row of traits for each ``model_type``.

A trait is a constant of the family's published implementation (where the biases are, which norms exist, whether embeddings are tied when
the key is absent, how modules are called). Everything with a key in the configuration is read from there. A family that is not in this
table is an error, never a guess. Sources: the families' modelling code in transformers 5.24 and the checkpoints' tensor names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Window = Literal["none", "all", "alternate", "every", "qwen", "listed"]


@dataclass(frozen=True, slots=True)
class Family:
    """Traits of one ``model_type``. A text trait that names a key (``attention_bias``) is read from the configuration."""

    qkv_bias: bool | str = False
    out_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: str = "none"
    qk_norm_key: str = ""  # flag that switches qk_norm
    qk_norm_default: bool = False
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    norm_bias: bool = False
    gated: bool = True
    tied: bool = False
    head_dim: int = 0  # the implementation's own default, 0 = hidden / heads
    window: Window = "none"
    window_key: str = ""
    every: int = 0
    window_may_exceed_context: bool = False
    output_gate: str = "none"
    sinks: bool = False
    mlp: str = "mlp"
    moe: str = "mlp"
    router: str = "gate"
    shared: str = "shared_experts"
    shared_gate: bool = False
    expert_names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    mlp_names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    expert_bias: bool = False
    router_bias: bool = False
    correction_bias: bool = False
    dense_width: tuple[str, ...] = ("intermediate_size",)
    expert_width: tuple[str, ...] = ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size")
    attention: str = "self_attn"
    out: str = "o_proj"
    fused_qkv: str = ""
    mamba: str = "mamba"
    embedding: str = "embed_tokens"
    final_norm: str = "norm"
    scale: str = "fp32"  # dtype of FP8 block scales in the family's own checkpoints
    mtp: str = ""  # layout of the prediction layers, "" = not stored or unknown
    state_bits: int = 32


LLAMA = Family(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")
QWEN2 = Family(qkv_bias=True, window="qwen")
QWEN3 = Family(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head", head_dim=128, window="qwen", scale="bf16")
QWEN3_MOE = replace(QWEN3, head_dim=0)
QWEN3_NEXT = replace(QWEN3_MOE, head_dim=256, output_gate="query", shared="shared_expert", shared_gate=True, mtp="qwen", window="none")
MISTRAL = Family(window="all")
GEMMA2 = Family(
    qkv_bias="attention_bias", out_bias="attention_bias", tied=True, head_dim=256, window="alternate",
    norms=("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
)  # fmt: skip
GEMMA3 = replace(GEMMA2, qk_norm="head", window="every", every=6)
DEEPSEEK = Family(qkv_bias="attention_bias", correction_bias=True, mtp="deepseek")
GLM4_MOE = Family(
    qkv_bias="attention_bias", qk_norm="head", qk_norm_key="use_qk_norm", head_dim=128, correction_bias=True, mtp="deepseek"
)  # fmt: skip
KIMI_LINEAR = replace(DEEPSEEK, moe="block_sparse_moe", expert_names=("w1", "w3", "w2"), mtp="")
MINIMAX_M2 = Family(
    qk_norm="full", qk_norm_key="use_qk_norm", qk_norm_default=True, moe="block_sparse_moe", expert_names=("w1", "w3", "w2"),
    correction_bias=True,
)  # fmt: skip
MINIMAX_M3 = replace(
    MINIMAX_M2, qk_norm="head", dense_width=("dense_intermediate_size", "intermediate_size"), mlp="mlp"
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "mixtral": replace(MISTRAL, moe="block_sparse_moe", expert_names=("w1", "w3", "w2")),
    "qwen2": QWEN2,
    "qwen2_vl_text": QWEN2,
    "qwen2_5_vl_text": QWEN2,
    "qwen3": QWEN3,
    "qwen3_vl_text": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_vl_moe_text": QWEN3_MOE,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "phi3": Family(window="all", window_may_exceed_context=True, fused_qkv="qkv_proj", mlp_names=("gate_up_proj", "", "down_proj")),
    "starcoder2": Family(
        qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", norm_bias=True, gated=False, window="all", mlp_names=("", "c_fc", "c_proj")
    ),
    "olmo3": Family(
        qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="full", window="every", every=4,
        norms=("post_attention_layernorm", "post_feedforward_layernorm"),
    ),
    "mimo": replace(QWEN2, mtp="mimo"),
}  # fmt: skip

WRAPPERS: dict[str, str] = {
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "gemma3": "gemma3_text",
}
