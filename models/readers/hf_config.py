"""A Hugging Face ``config.json`` becomes an ``Architecture``: family, layer plan, layers, towers, precision."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import Any

from models.describe.architecture import BF16, FP16, FP32, Architecture, LayerGroup, StoredFormat, Tensor
from models.errors import NotCoveredError
from models.readers import plan
from models.readers.compressed import hyper_head
from models.readers.families import FAMILIES, WRAPPERS, Family
from models.readers.keys import Keys
from models.readers.layers import Layer, build_layer, trait
from models.readers.mtp import as_mtp, mtp_tensors
from models.readers.plan import Slot
from models.readers.quantisation import Scheme, read_scheme
from models.readers.tensors import Tensors, linear, norm, vector
from models.readers.vision import vision_tensors

_UNKNOWN_TENSORS = ("attn_res_block_size",)
_DTYPES: dict[str, StoredFormat] = {"bfloat16": BF16, "float16": FP16, "float32": FP32}


def read_config(config: dict[str, Any], name: str, path: str = "", quantisation: dict[str, Any] | None = None) -> Architecture:
    """Interpret a parsed ``config.json``; ``quantisation``: ``hf_quant_config.json`` beside it, ``path`` for errors."""
    top = Keys(config, path)
    text = _text_of(top)
    family = family_of(top, text)
    if family.defaults:
        written = {key: value for key, value in text.values.items() if value is not None}
        text = Keys({**dict(family.defaults), **written}, text.path)
    placed = plan.slots(text, family)
    layers = _build(text, family, placed)
    hidden = text.number("hidden")
    vision, vision_notes = vision_tensors(top, hidden)
    mtp, mtp_notes = mtp_tensors(text, family, placed[-1])
    tied = _tied(top, text, family)
    native = native_format(top, text)
    scheme = read_scheme(top, text, quantisation, family.scale)
    groups = groupby((_stored(scheme, native, layer, i) for i, layer in enumerate(layers)), _parts)
    return Architecture(
        name=name,
        family=top.text("model_type"),
        hidden=hidden,
        vocabulary=text.number("vocabulary"),
        context=text.number("context", default=0, least=0),
        tied=tied,
        layers=tuple(LayerGroup(len(list(same)), *key) for key, same in groups),
        base=_in_format(scheme, native, _base(text, family, tied=tied)),
        vision=_in_format(scheme, native, vision),
        mtp=as_mtp(_in_format(scheme, native, mtp)),
        native=native,
        quantisation=scheme.name,
        kv_format=scheme.kv_format,
        notes=vision_notes + mtp_notes + scheme.notes + _uncounted(text),
    )


def _uncounted(config: Keys) -> tuple[str, ...]:
    """Keys that stand for tensors whose shapes no public source tells."""
    return tuple(f"not counted: what {key} stands for" for key in _UNKNOWN_TENSORS if config.values.get(key))


def _parts(layer: Layer) -> tuple[Any, Any, Any, Tensors]:
    return layer.attention, layer.state, layer.ffn, layer.tensors


def _build(config: Keys, family: Family, placed: list[Slot]) -> list[Layer]:
    """Equal slots give the same layer object."""
    built = {slot: build_layer(config, family, slot) for slot in dict.fromkeys(placed)}
    return [built[slot] for slot in placed]


def _stored(scheme: Scheme, native: StoredFormat, layer: Layer, index: int) -> Layer:
    """The layer with each tensor in its stored format; layers that come out alike are the same object."""
    if scheme.name == "none" and native is BF16:
        return layer
    return replace(layer, tensors=_in_format(scheme, native, layer.tensors, f"layers.{index}."))


def _in_format(scheme: Scheme, native: StoredFormat, tensors: Tensors, prefix: str = "") -> Tensors:
    if scheme.name == "none" and native is BF16:
        return tensors
    return tuple(_with_format(tensor, scheme.format_of(tensor, prefix + tensor.name, native)) for tensor in tensors)


@cache
def _with_format(tensor: Tensor, stored: StoredFormat) -> Tensor:
    return tensor if stored is tensor.format else replace(tensor, format=stored)


def _base(config: Keys, family: Family, *, tied: bool) -> Tensors:
    """Everything outside the layers: embeddings, positions, last norm, head."""
    hidden, vocabulary = config.number("hidden"), config.number("vocabulary")
    width = config.number("word_embed_proj_dim", default=hidden)
    found: Tensors = (Tensor(family.embedding, vocabulary, width, "embedding", split="rows"),)
    if width != hidden:
        found += linear("project_in", hidden, width, "ffn", "none") + linear("project_out", width, hidden, "ffn", "none")
    if family.positions >= 0:
        found += (Tensor("embed_positions", config.number("context") + family.positions, hidden, "position"),)
    if config.flag("do_layer_norm_before", default=True) and not config.flag("_remove_final_layer_norm"):  # OPT may do without
        found += norm(family.final_norm, hidden, bias=family.norm_bias)
    found += _per_layer_embedding(config, hidden)
    if family.special == "compressed":
        found += hyper_head(config)
    found += vector("lm_head.bias", vocabulary, split="rows") if trait(config, family.head_bias) else ()
    return found + (() if tied else linear("lm_head", vocabulary, width, "head"))


def _per_layer_embedding(config: Keys, hidden: int) -> Tensors:
    """Gemma 3n / 4: one small embedding for each layer, looked up by row, and its projection from the model's width."""
    size = config.number("hidden_size_per_layer_input", default=0, least=0)
    if not size:
        return ()
    width = size * config.number("layers")
    table = Tensor("embed_tokens_per_layer", config.number("vocab_size_per_layer_input"), width, "position", split="none")
    return (table, *linear("per_layer_model_projection", width, hidden, "ffn", "none"), *norm("per_layer_projection_norm", size))


def _text_of(top: Keys) -> Keys:
    """The language model's own object inside a multimodal wrapper, or the whole configuration."""
    outer = top.child("thinker_config") or top
    for name in ("text_config", "language_config", "llm_config"):
        found = outer.child(name)
        if found is not None:
            return found
    return outer


def family_of(top: Keys, text: Keys) -> Family:
    """Traits by the model's type, the wrapper's first; an unknown one is an error."""
    for keys in (top, text):
        kind = keys.text("model_type")
        kind = WRAPPERS.get(kind, kind)
        if kind in FAMILIES:
            return FAMILIES[kind]
    kind = top.text("model_type") or text.text("model_type") or "missing"
    known = ", ".join(sorted({*FAMILIES, *WRAPPERS}))
    raise NotCoveredError("cannot interpret this model family", path=top.where("model_type"), value=kind, way_out=f"known: {known}")


def native_format(top: Keys, text: Keys) -> StoredFormat:
    """The dtype of what is not quantised; bf16 where the file is silent."""
    kind = text.text("torch_dtype") or text.text("dtype") or top.text("torch_dtype") or top.text("dtype") or "bfloat16"
    found = _DTYPES.get(kind.removeprefix("torch."))
    if found is None:
        raise NotCoveredError("unknown dtype", path=top.where("torch_dtype"), value=kind, way_out=f"known: {', '.join(_DTYPES)}")
    return found


def _tied(top: Keys, text: Keys, family: Family) -> bool:
    inner = text.flag("tie_word_embeddings", default=family.tied)
    return top.flag("tie_word_embeddings", default=inner)
