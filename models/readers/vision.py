"""Vision towers and projectors as tensors, one builder for each tower's ``model_type``.

Only sizes matter here: a tower runs for images alone, so its matrices are kept out of the FLOPs and the bytes of a text step.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from models.describe.architecture import Tensor
from models.errors import ContradictionError
from models.readers.keys import Keys


def _tensors(prefix: str, shapes: list[tuple[str, int, int]], times: int = 1) -> tuple[Tensor, ...]:
    """Tensors of role vision; ``times`` equal layers are stored as copies."""
    return tuple(Tensor(f"{prefix}.{name}", rows, cols, "vision", times) for name, rows, cols in shapes)


def _linear(name: str, rows: int, cols: int, *, bias: bool = True) -> list[tuple[str, int, int]]:
    return [(name, rows, cols)] + ([(f"{name}.bias", rows, 1)] if bias else [])


def _norm(name: str, size: int, *, bias: bool = True) -> list[tuple[str, int, int]]:
    return [(name, size, 1)] + ([(f"{name}.bias", size, 1)] if bias else [])


def _separate_qkv(hidden: int, out: str, *, bias: bool = True) -> list[tuple[str, int, int]]:
    return [shape for name in ("q_proj", "k_proj", "v_proj", out) for shape in _linear(f"attn.{name}", hidden, hidden, bias=bias)]


def _qwen2_vl(v: Keys, text_hidden: int) -> tuple[Tensor, ...]:
    """Qwen2-VL: here ``hidden_size`` is the output width, ``embed_dim`` the tower's."""
    d, out = v.number("embed_dim"), v.number("hidden_size", default=text_hidden)
    merge = v.number("spatial_merge_size", default=2) ** 2 * d
    block = _norm("norm1", d) + _norm("norm2", d) + _linear("attn.qkv", 3 * d, d) + _linear("attn.proj", d, d)
    width = int(v.real("mlp_ratio") * d) if v.has("mlp_ratio") else 4 * d
    block += _linear("mlp.fc1", width, d) + _linear("mlp.fc2", d, width)
    merger = _norm("ln_q", d) + _linear("mlp.0", merge, merge) + _linear("mlp.2", out, merge)
    return (
        _tensors("visual", [("patch_embed", d, _patch(v))])
        + _tensors("visual.blocks", block, v.number("depth"))
        + _tensors("visual.merger", merger)
    )


def _patch(v: Keys) -> int:
    """Inputs of the patch embedding: channels x frames x patch^2."""
    patch = v.number("patch_size", default=v.number("spatial_patch_size", default=14))
    return v.number("vision_channels", default=3) * v.number("temporal_patch_size", default=2) * patch**2


def _qwen2_5_vl(v: Keys, text_hidden: int) -> tuple[Tensor, ...]:
    d, width, out = v.number("hidden_size"), v.number("intermediate_size"), v.number("out_hidden_size", default=text_hidden)
    merge = v.number("spatial_merge_size", default=2) ** 2 * d
    block = _norm("norm1", d, bias=False) + _norm("norm2", d, bias=False) + _linear("attn.qkv", 3 * d, d) + _linear("attn.proj", d, d)
    block += _linear("mlp.gate_proj", width, d) + _linear("mlp.up_proj", width, d) + _linear("mlp.down_proj", d, width)
    merger = _norm("ln_q", d, bias=False) + _linear("mlp.0", merge, merge) + _linear("mlp.2", out, merge)
    return (
        _tensors("visual", [("patch_embed", d, _patch(v))])
        + _tensors("visual.blocks", block, v.number("depth"))
        + _tensors("visual.merger", merger)
    )


def _qwen3_vl(v: Keys, text_hidden: int) -> tuple[Tensor, ...]:
    """Qwen3-VL and Qwen3.5: learned positions, plus one merger for each deep-stacked layer."""
    d, width, out = v.number("hidden_size"), v.number("intermediate_size"), v.number("out_hidden_size", default=text_hidden)
    merge = v.number("spatial_merge_size", default=2) ** 2 * d
    block = _norm("norm1", d) + _norm("norm2", d) + _linear("attn.qkv", 3 * d, d) + _linear("attn.proj", d, d)
    block += _linear("mlp.linear_fc1", width, d) + _linear("mlp.linear_fc2", d, width)
    merger = _linear("linear_fc1", merge, merge) + _linear("linear_fc2", out, merge)
    found = _tensors("visual", [*_linear("patch_embed.proj", d, _patch(v)), ("pos_embed", v.number("num_position_embeddings"), d)])
    found += _tensors("visual.blocks", block, v.number("depth")) + _tensors("visual.merger", _norm("norm", d) + merger)
    stacked = 0 if v.text("model_type").startswith("qwen3_5") else len(v.items("deepstack_visual_indexes") or [])
    return found + (_tensors("visual.deepstack_merger_list", _norm("norm", merge) + merger, stacked) if stacked else ())


def _siglip(v: Keys, text_hidden: int) -> tuple[Tensor, ...]:
    """SigLIP as in Gemma 3, with its projection to the text width."""
    d, width = v.number("hidden_size"), v.number("intermediate_size")
    patch = v.number("patch_size")
    block = (
        _norm("layer_norm1", d)
        + _norm("layer_norm2", d)
        + _separate_qkv(d, "out_proj")
        + _linear("mlp.fc1", width, d)
        + _linear("mlp.fc2", d, width)
    )
    top = _linear("patch_embedding", d, v.number("vision_channels", default=3) * patch**2)
    top += [("position_embedding", (v.number("image_size") // patch) ** 2, d), *_norm("post_layernorm", d)]
    if v.flag("vision_use_head"):  # attention pooling; Gemma 3 itself goes without
        top += [("head.probe", d, 1), *_linear("head.in_proj", 3 * d, d), *_linear("head.out_proj", d, d), *_norm("head.layernorm", d)]
        top += _linear("head.fc1", width, d) + _linear("head.fc2", d, width)
    found = _tensors("vision_tower", top) + _tensors("vision_tower.layers", block, v.number("layers"))
    return found + _tensors("multi_modal_projector", [("mm_input_projection_weight", d, text_hidden), ("mm_soft_emb_norm", d, 1)])


def _gemma4(v: Keys, text_hidden: int) -> tuple[Tensor, ...]:
    d, width, heads = v.number("hidden_size"), v.number("intermediate_size"), v.number("heads")
    size, kv = v.number("head_dim", default=d // heads), v.number("kv_heads", default=heads)
    block = [
        shape
        for n in ("input", "post_attention", "pre_feedforward", "post_feedforward")
        for shape in _norm(f"{n}_layernorm", d, bias=False)
    ]
    block += [
        ("attn.q_proj", heads * size, d),
        ("attn.k_proj", kv * size, d),
        ("attn.v_proj", kv * size, d),
        ("attn.o_proj", d, heads * size),
    ]
    block += [
        ("attn.q_norm", size, 1),
        ("attn.k_norm", size, 1),
        ("mlp.gate_proj", width, d),
        ("mlp.up_proj", width, d),
        ("mlp.down_proj", d, width),
    ]
    top = [("input_proj", d, 3 * v.number("patch_size") ** 2), ("position_embedding_table", 2 * v.number("position_embedding_size"), d)]
    return (
        _tensors("vision_tower", top)
        + _tensors("vision_tower.layers", block, v.number("layers"))
        + _tensors("embed_vision", [("projection", text_hidden, d)])
    )


def _llama4(v: Keys, text_hidden: int) -> tuple[Tensor, ...]:
    d, width, patch = v.number("hidden_size"), v.number("intermediate_size"), v.number("patch_size")
    block = _norm("input_layernorm", d) + _norm("post_attention_layernorm", d) + _separate_qkv(d, "o_proj")
    block += _linear("mlp.fc1", width, d) + _linear("mlp.fc2", d, width)
    top = [("patch_embedding.linear", d, v.number("vision_channels", default=3) * patch**2), ("class_embedding", d, 1)]
    top += [
        ("positional_embedding_vlm", (v.number("image_size") // patch) ** 2 + 1, d),
        *_norm("layernorm_pre", d),
        *_norm("layernorm_post", d),
    ]
    inner, out = v.number("projector_input_dim"), v.number("projector_output_dim")
    top += [("vision_adapter.mlp.fc1", inner, width), ("vision_adapter.mlp.fc2", out, out)]
    projector = [("linear_1", text_hidden, v.number("vision_output_dim"))]
    found = _tensors("vision_model", top) + _tensors("vision_model.layers", block, v.number("layers"))
    return found + _tensors("multi_modal_projector", projector)


def _moonvit(v: Keys, text_hidden: int) -> tuple[Tensor, ...]:
    """MoonViT of Kimi K2.5 (biases everywhere) and K3 (none, narrower attention), with the patch merger."""
    d, width, layers = v.number("vt_width"), v.number("vt_inner"), v.number("vt_layers")
    plain = v.text("norm_type", "layernorm") == "layernorm"
    bias, attention_bias = v.flag("linear_bias", default=plain), v.flag("attn_bias", default=plain)
    inner = v.number("qkv_hidden_size", default=d)
    block = _norm("norm0", d, bias=plain) + _norm("norm1", d, bias=plain)
    block += _linear("wqkv", 3 * inner, d, bias=attention_bias) + _linear("wo", d, inner, bias=attention_bias)
    block += _linear("mlp.fc0", width, d, bias=bias) + _linear("mlp.fc1", d, width, bias=bias)
    top = _linear("patch_embed.proj", d, 3 * v.number("patch_size") ** 2, bias=v.flag("patch_embed_proj_bias", default=plain))
    top += [
        ("patch_embed.pos_emb", v.number("vt_rows") * v.number("vt_cols"), d),
        *_norm("final_layernorm", d, bias=plain),
    ]
    merge = d * math.prod(v.numbers("merge_kernel_size") or [2, 2])
    projector = _norm("pre_norm", d) + _linear("proj.0", merge, merge) + _linear("proj.2", text_hidden, merge)
    return _tensors("vision_tower", top) + _tensors("vision_tower.blocks", block, layers) + _tensors("mm_projector", projector)


def _minimax(v: Keys, text_hidden: int) -> tuple[Tensor, ...]:
    """MiniMax-M3: CLIP blocks, a projection of each patch, then one of each merged group."""
    d, width, patch, hidden = (
        v.number("hidden_size"),
        v.number("intermediate_size"),
        v.number("patch_size"),
        v.number("projection_dim", default=text_hidden),
    )
    compression = v.child("img_token_compression_config") or v
    merged = text_hidden * compression.number("spatial_merge_size", default=2) ** 2
    frames = compression.number("temporal_patch_size", default=2)
    block = (
        _norm("layer_norm1", d)
        + _norm("layer_norm2", d)
        + _separate_qkv(d, "out_proj")
        + _linear("mlp.fc1", width, d)
        + _linear("mlp.fc2", d, width)
    )
    top = [("patch_embedding", d, v.number("vision_channels", default=3) * frames * patch**2), *_norm("pre_layrnorm", d)]
    projector = _linear("linear_1", hidden, d) + _linear("linear_2", text_hidden, hidden)
    projector += _linear("merge_linear_1", hidden, merged) + _linear("merge_linear_2", text_hidden, hidden)
    return (
        _tensors("vision_tower", top)
        + _tensors("vision_tower.layers", block, v.number("layers"))
        + _tensors("multi_modal_projector", projector)
    )


def _pixtral(v: Keys, text_hidden: int) -> tuple[Tensor, ...]:
    """Pixtral as in Mistral 3: no biases, rotary positions, a patch merger before the projector."""
    d, width = v.number("hidden_size"), v.number("intermediate_size")
    block = _norm("attention_norm", d, bias=False) + _norm("ffn_norm", d, bias=False) + _separate_qkv(d, "o_proj", bias=False)
    block += [("gate_proj", width, d), ("up_proj", width, d), ("down_proj", d, width)]
    top = [("patch_conv", d, v.number("vision_channels", default=3) * v.number("patch_size") ** 2), ("ln_pre", d, 1)]
    merge, bias = v.number("spatial_merge_size", default=2) ** 2, v.flag("multimodal_projector_bias")
    projector = [("norm", d, 1), ("patch_merger.merging_layer", d, merge * d)]
    projector += _linear("linear_1", text_hidden, d, bias=bias) + _linear("linear_2", text_hidden, text_hidden, bias=bias)
    found = _tensors("vision_tower", top) + _tensors("vision_tower.layers", block, v.number("layers"))
    return found + _tensors("multi_modal_projector", projector)


def _step(v: Keys, text_hidden: int) -> tuple[Tensor, ...]:
    """Step-3.7's tower: scaled residuals, two strided convolutions that double the width each."""
    d, patch = v.number("width", default=v.number("hidden_size", default=1536)), v.number("patch_size", default=14)
    width = int(d * (v.real("mlp_ratio") if v.has("mlp_ratio") else 8960 / 1536))
    block = _norm("layernorm_before", d) + _norm("layernorm_after", d) + [("lambda_1", d, 1), ("lambda_2", d, 1)]
    block += _separate_qkv(d, "out_proj") + _linear("mlp.fc1", width, d) + _linear("mlp.fc2", d, width)
    top = [
        ("patch_embedding", d, 3 * patch**2),
        ("position_embedding", (v.number("image_size", default=728) // patch) ** 2, d),
        *_norm("pre_layernorm", d),
    ]
    top += _linear("downsampler1", 2 * d, 9 * d) + _linear("downsampler2", 4 * d, 18 * d)
    blocks = v.number("layers", default=47)
    return (
        _tensors("vision_model", top)
        + _tensors("vision_model.layers", block, blocks)
        + _tensors("multi_modal_projector", [("proj", text_hidden, 4 * d)])
    )


_TOWERS: dict[str, Callable[[Keys, int], tuple[Tensor, ...]]] = {
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl,
    "qwen3_5": _qwen3_vl,
    "qwen3_5_moe": _qwen3_vl,
    "mistral3": _pixtral,
    "gemma3": _siglip,
    "gemma4": _gemma4,
    "llama4": _llama4,
    "kimi_k25": _moonvit,
    "kimi_k3": _moonvit,
    "minimax_m3_vl": _minimax,
    "step3p7": _step,
}


def vision_tensors(top: Keys, text_hidden: int) -> tuple[tuple[Tensor, ...], tuple[str, ...]]:
    """(tensors, notes) of the towers that the configuration describes."""
    tower = top.child("vision_config")
    kind = top.text("model_type")
    build = _TOWERS.get(kind)
    if tower is None:
        if kind == "step3p7":  # one published tower, which is the implementation's default
            return _step(Keys({}, "vision_config"), text_hidden), ("vision tower: the family's default, the configuration holds none",)
        return (), (("vision tower not counted: the configuration has no vision_config",) if build else ())
    if build is None:
        return (), (f"vision tower not counted: no reader for the tower of {kind}",)
    heads = next((tower.number(k) for k in ("num_heads", "num_attention_heads", "vt_num_attention_heads") if tower.has(k)), 1)
    width = next((tower.number(k) for k in ("embed_dim", "qkv_hidden_size", "hidden_size", "vt_hidden_size") if tower.has(k)), heads)
    if width % heads:
        raise ContradictionError(
            f"{heads} heads do not divide a width of {width}", path=tower.path, way_out="correct the vision configuration"
        )
    beside = {key: top.values[key] for key in ("spatial_merge_size", "multimodal_projector_bias") if key in top.values}
    return build(Keys({**beside, **tower.values}, tower.path) if beside else tower, text_hidden), ()
