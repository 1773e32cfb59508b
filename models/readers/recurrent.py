"""Recurrent layers as tensors and states: Mamba 1 and 2, gated delta rule, Kimi delta attention, lightning attention.

Notation: inner = channels of the state space, groups g, state size n, kernel c of the causal convolution, heads h, head size d.
Cached for one sequence: the last c columns of the convolved channels (as transformers keeps them) and the recurrent matrix.
"""

from __future__ import annotations

from models.describe.architecture import FP32, RecurrentState
from models.errors import ContradictionError
from models.readers.keys import Keys
from models.readers.tensors import Tensors, linear, norm, vector

Built = tuple[RecurrentState, Tensors]


def _convolution(prefix: str, channels: int, kernel: int, *, bias: bool) -> Tensors:
    found = vector(f"{prefix}.conv1d", channels * kernel, "state", "rows")
    return found + (vector(f"{prefix}.conv1d.bias", channels, "state", "rows") if bias else ())


def mamba(config: Keys, p: str) -> Built:
    """Mamba 1 as in Jamba: inner = expand x hidden; dt, B and C are normalised."""
    hidden = config.number("hidden")
    inner = config.number("mamba_expand", default=2) * hidden
    n, c = config.number("mamba_d_state", default=16), config.number("mamba_d_conv", default=4)
    rank = -(-hidden // 16) if config.find("mamba_dt_rank")[1] == "auto" else config.number("mamba_dt_rank", default=-(-hidden // 16))
    bias = config.flag("mamba_proj_bias")
    found = linear(f"{p}.in_proj", 2 * inner, hidden, "attention", bias=bias)
    found += _convolution(p, inner, c, bias=config.flag("mamba_conv_bias", default=True))
    found += linear(f"{p}.x_proj", rank + 2 * n, inner, "attention", "cols") + linear(f"{p}.dt_proj", inner, rank, "attention", bias=True)
    found += vector(f"{p}.A_log", inner * n, "state", "rows") + vector(f"{p}.D", inner, "state", "rows")
    found += linear(f"{p}.out_proj", hidden, inner, "attention", "cols", bias=bias)
    found += norm(f"{p}.dt_layernorm", rank) + norm(f"{p}.b_layernorm", n) + norm(f"{p}.c_layernorm", n)
    return RecurrentState("mamba", inner, inner * n, inner * c, convolution_channels=inner), found


def mamba2(config: Keys, p: str) -> Built:
    """Mamba 2 (Nemotron-H, Falcon-H1): one decay a head; x, B, C convolved together; gated norm unless switched off."""
    hidden = config.number("hidden")
    heads, d = config.number("mamba_heads"), config.number("mamba_head_dim")
    inner = heads * d
    if config.has("mamba_d_ssm") and config.number("mamba_d_ssm") != inner:
        raise ContradictionError(f"differs from {heads} heads of {d}", path=config.where("mamba_d_ssm"), way_out="correct one of them")
    groups, n, c = config.number("mamba_groups"), config.number("mamba_state"), config.number("mamba_kernel", default=4)
    channels = inner + 2 * groups * n
    bias = config.flag("use_bias", default=config.flag("mamba_proj_bias"))
    found = linear(f"{p}.in_proj", inner + channels + heads, hidden, "attention", bias=bias)
    found += _convolution(p, channels, c, bias=config.flag("mamba_conv_bias", default=config.flag("use_conv_bias", default=True)))
    for name in ("dt_bias", "A_log", "D"):
        found += vector(f"{p}.{name}", heads, "state", "rows")
    found += vector(f"{p}.norm", inner, "state", "rows") if config.flag("mamba_rms_norm", default=True) else ()
    found += linear(f"{p}.out_proj", hidden, inner, "attention", "cols", bias=config.flag("projectors_bias", default=bias))
    return RecurrentState("mamba2", heads, inner * n, channels * c, convolution_channels=channels), found


def gated_delta(config: Keys, p: str, *, split: bool) -> Built:
    """Gated delta rule (Qwen3-Next: two fused projections; Qwen3.5: four)."""
    hidden = config.number("hidden")
    key_heads, value_heads = config.number("linear_num_key_heads"), config.number("linear_num_value_heads")
    dk, dv, c = (
        config.number("linear_key_head_dim"),
        config.number("linear_value_head_dim"),
        config.number("linear_conv_kernel_dim", default=4),
    )
    if value_heads % key_heads:
        raise ContradictionError(f"not a multiple of {key_heads} key heads", path=config.where("linear_num_value_heads"), value=value_heads)
    key, value = key_heads * dk, value_heads * dv
    if split:
        found = linear(f"{p}.in_proj_qkv", 2 * key + value, hidden, "attention") + linear(f"{p}.in_proj_z", value, hidden, "attention")
        found += linear(f"{p}.in_proj_b", value_heads, hidden, "attention") + linear(f"{p}.in_proj_a", value_heads, hidden, "attention")
    else:
        found = linear(f"{p}.in_proj_qkvz", 2 * key + 2 * value, hidden, "attention")
        found += linear(f"{p}.in_proj_ba", 2 * value_heads, hidden, "attention")
    channels = 2 * key + value
    found += _convolution(p, channels, c, bias=False)
    found += vector(f"{p}.dt_bias", value_heads, "state", "rows") + vector(f"{p}.A_log", value_heads, "state", "rows")
    found += norm(f"{p}.norm", dv) + linear(f"{p}.out_proj", hidden, value, "attention", "cols")
    return RecurrentState("gated_delta", value_heads, value_heads * dk * dv, channels * c, convolution_channels=channels), found


def kimi_delta(config: Keys, p: str) -> Built:
    """Kimi delta attention: a decay for each channel; decay and output gate through low-rank pairs (or one full matrix)."""
    hidden, inner_config = config.number("hidden"), config.child("linear_attn_config") or _flat(config)
    heads, d, c = inner_config.number("kda_heads"), inner_config.number("kda_head_dim"), inner_config.number("kda_kernel", default=4)
    width = heads * d
    found: Tensors = ()
    for name in ("q_proj", "k_proj", "v_proj"):
        found += linear(f"{p}.{name}", width, hidden, "attention", units=heads)
        found += vector(f"{p}.{name[0]}_conv1d", width * c, "state", "rows")
    found += linear(f"{p}.f_a_proj", d, hidden, "attention", "none") + linear(f"{p}.f_b_proj", width, d, "attention", units=heads)
    found += vector(f"{p}.dt_bias", width, "state", "rows", FP32) + vector(f"{p}.A_log", heads, "state", "rows", FP32)
    found += linear(f"{p}.b_proj", heads, hidden, "attention", units=heads)
    if inner_config.flag("use_full_rank_gate"):
        found += linear(f"{p}.g_proj", width, hidden, "attention", units=heads)
    else:
        found += linear(f"{p}.g_a_proj", d, hidden, "attention", "none") + linear(f"{p}.g_b_proj", width, d, "attention", units=heads)
    found += norm(f"{p}.o_norm", d) + linear(f"{p}.o_proj", hidden, width, "attention", "cols")
    return RecurrentState("kimi_delta", heads, heads * d * d, 3 * width * c, convolution_channels=3 * width), found


def _flat(config: Keys) -> Keys:
    """The keys of linear layers where they stand beside those of the attention layers."""
    return Keys({key: value for key, value in config.values.items() if key.startswith("linear_")}, config.path)


def lightning(config: Keys, p: str) -> Built:
    """Lightning attention (MiniMax-M1): fused q, k, v, a gate and a norm over all heads; no convolution."""
    hidden, heads = config.number("hidden"), config.number("heads")
    d = config.number("head_dim", default=hidden // heads)
    width = heads * d
    found = linear(f"{p}.qkv_proj", 3 * width, hidden, "attention", units=heads) + linear(
        f"{p}.output_gate", width, hidden, "attention", units=heads
    )
    found += linear(f"{p}.out_proj", hidden, width, "attention", "cols") + vector(f"{p}.norm", width, "state", "rows")
    return RecurrentState("lightning", heads, heads * d * d, 0), found


def recurrent_layer(config: Keys, kind: str, prefix: str, *, split: bool) -> Built:
    """The recurrent layer of that kind."""
    if kind == "gated_delta":
        return gated_delta(config, prefix, split=split)
    return {"mamba": mamba, "mamba2": mamba2, "kimi_delta": kimi_delta, "lightning": lightning}[kind](config, prefix)
