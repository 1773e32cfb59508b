"""A Hugging Face ``config.json`` becomes an ``Architecture``."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from models.describe.architecture import BF16, FP16, FP32, Architecture, Attention, Ffn, LayerGroup, RecurrentState, StoredFormat, Tensor
from models.errors import ContradictionError, NotCoveredError
from models.readers import plan
from models.readers.attention import Grouped, grouped_attention
from models.readers.families import FAMILIES, WRAPPERS, Family
from models.readers.ffn import MlpNames, mlp
from models.readers.keys import Keys
from models.readers.tensors import Tensors, linear, norm

Layer = tuple[Attention | None, RecurrentState | None, Ffn | None, Tensors]
_DTYPES: dict[str, StoredFormat] = {"bfloat16": BF16, "float16": FP16, "float32": FP32}


def read_config(config: dict[str, Any], name: str, path: str = "") -> Architecture:
    """Interpret a parsed ``config.json``; ``path`` only serves error messages."""
    top = Keys(config, path)
    text = top.child("text_config") or top
    family = family_of(top, text)
    layers = [build_layer(text, family, i) for i in range(text.number("layers"))]
    hidden, vocabulary = text.number("hidden"), text.number("vocabulary")
    tied = _tied(top, text, family)
    base: Tensors = (Tensor(family.embedding, vocabulary, hidden, "embedding", split="rows"),)
    base += norm(family.final_norm, hidden, bias=family.norm_bias)
    base += () if tied else linear("lm_head", vocabulary, hidden, "head")
    return Architecture(
        name=name,
        family=top.text("model_type"),
        hidden=hidden,
        vocabulary=vocabulary,
        context=text.number("context", default=0, least=0),
        tied=tied,
        layers=tuple(LayerGroup(len(list(same)), *key) for key, same in groupby(layers)),
        base=base,
        native=native_format(top, text),
    )


def family_of(top: Keys, text: Keys) -> Family:
    """Traits by the text model's type; an unknown one is an error."""
    for keys in (text, top):
        kind = keys.text("model_type")
        kind = WRAPPERS.get(kind, kind)
        if kind in FAMILIES:
            return FAMILIES[kind]
    kind = text.text("model_type") or top.text("model_type") or "missing"
    raise NotCoveredError(
        "cannot interpret this model family", path=text.where("model_type"), value=kind, way_out=f"known: {', '.join(sorted(FAMILIES))}"
    )


def native_format(top: Keys, text: Keys) -> StoredFormat:
    kind = text.text("torch_dtype") or text.text("dtype") or top.text("torch_dtype") or top.text("dtype") or "bfloat16"
    found = _DTYPES.get(kind.removeprefix("torch."))
    if found is None:
        raise NotCoveredError("unknown dtype", path=top.where("torch_dtype"), value=kind, way_out=f"known: {', '.join(_DTYPES)}")
    return found


def _tied(top: Keys, text: Keys, family: Family) -> bool:
    inner = text.flag("tie_word_embeddings", default=family.tied)
    return top.flag("tie_word_embeddings", default=inner)


def trait(config: Keys, value: bool | str) -> bool:  # noqa: FBT001
    """A constant trait, or the flag of that name."""
    return config.flag(value) if isinstance(value, str) else value


def head_dim_of(config: Keys, family: Family) -> int:
    """Declared, or hidden / heads; where that does not divide, or the family's own default differs, nothing is guessed."""
    if config.has("head_dim"):
        return config.number("head_dim")
    hidden, heads = config.number("hidden"), config.number("heads")
    if hidden % heads or (family.head_dim and family.head_dim != hidden // heads):
        raise ContradictionError(
            f"missing, and hidden size {hidden} over {heads} heads does not give it", path=config.where("head_dim"), way_out="add head_dim"
        )
    return hidden // heads


def build_layer(config: Keys, family: Family, index: int) -> Layer:
    layers = config.number("layers")
    hidden = config.number("hidden")
    attention, tensors = build_attention(config, family, plan.attention_kinds(config, family, layers)[index])
    ffn, more = build_ffn(config, family, sparse=plan.sparse_layers(config, layers)[index])
    tensors += more
    for name in family.norms:
        tensors += norm(name, hidden, bias=family.norm_bias)
    return attention, None, ffn, tensors


def build_attention(config: Keys, family: Family, kind: str) -> tuple[Attention, Tensors]:
    heads = config.number("heads")
    kv_heads = config.number("kv_heads", default=heads)
    if heads % kv_heads:
        raise ContradictionError(f"{heads} attention heads do not divide into {kv_heads} KV heads", path=config.where("num_key_value_heads"), value=kv_heads, way_out="correct one of them")  # fmt: skip
    shape = Grouped(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim_of(config, family),
        window=plan.window_of(config, family) if kind == plan.SLIDING else None,
        qkv_bias=trait(config, family.qkv_bias),
        out_bias=trait(config, family.out_bias),
        qk_norm=family.qk_norm if not family.qk_norm_key or config.flag(family.qk_norm_key, default=family.qk_norm_default) else "none",
        output_gate=family.output_gate,
        sinks=family.sinks,
        prefix=family.attention,
        out=family.out,
        fused_qkv=family.fused_qkv,
    )
    return grouped_attention(shape, config.number("hidden"))


def build_ffn(config: Keys, family: Family, *, sparse: bool) -> tuple[Ffn, Tensors]:
    hidden = config.number("hidden")
    if not sparse:
        width = config.number("ffn")
        bias = trait(config, family.mlp_bias)
        tensors = mlp(family.mlp, hidden, width, gated=family.gated, bias=bias, names=MlpNames(*family.mlp_names))
        return Ffn(width, family.gated), tensors
    raise NotCoveredError("experts", path="x")
