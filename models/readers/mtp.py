"""Prediction layers (MTP, next-n) that checkpoints store beside the model, by published layout."""

from __future__ import annotations

from dataclasses import replace

from models.describe.architecture import Tensor
from models.errors import FileFormatError
from models.readers import plan
from models.readers.families import Family
from models.readers.keys import Keys
from models.readers.layers import build_layer
from models.readers.plan import Slot
from models.readers.tensors import Tensors, linear, norm

MOST_LAYERS = 64


def mtp_tensors(config: Keys, family: Family, last: Slot) -> tuple[Tensors, tuple[str, ...]]:
    """(tensors, notes); names start with the module that holds the prediction layers."""
    count = config.number("mtp", default=0, least=0)
    if not count:
        return (), ()
    if count > MOST_LAYERS:
        path = config.where(config.find("mtp")[0])
        raise FileFormatError("absurd number of prediction layers", path=path, value=count, way_out=f"at most {MOST_LAYERS}")
    if not family.mtp:
        return (), (f"{count} prediction layer(s) not counted: their layout is not in the configuration",)
    layers: Tensors = ()
    for index in range(count):
        layers += _LAYOUTS[family.mtp](config, family, last, index)
    return layers, ()


def as_mtp(tensors: Tensors) -> Tensors:
    """The role that keeps prediction layers apart; given after their precision is known, which depends on the role they play."""
    return tuple(replace(tensor, role=tensor.role if tensor.role == "buffer" else "mtp") for tensor in tensors)


def _below(prefix: str, tensors: Tensors) -> Tensors:
    return tuple(replace(tensor, name=f"{prefix}.{tensor.name}") for tensor in tensors)


def _deepseek(config: Keys, family: Family, last: Slot, index: int) -> Tensors:
    """DeepSeek-V3: a layer after the last one, joined by a projection of two norms, with its own copies of embedding and
    head (GLM-5 shares the model's).
    """
    hidden, vocabulary = config.number("hidden"), config.number("vocabulary")
    found = build_layer(config, family, replace(last, indexer="own" if last.indexer != "none" else "none")).tensors
    found += norm("enorm", hidden) + norm("hnorm", hidden) + linear("eh_proj", hidden, 2 * hidden, "control", "none")
    found += norm("shared_head.norm", hidden)
    if family.mtp == "deepseek":
        found += (Tensor("embed_tokens", vocabulary, hidden, "embedding", split="rows"),)
        found += linear("shared_head.head", vocabulary, hidden, "head")
    return _below(f"layers.{config.number('layers') + index}", found)


def _qwen(config: Keys, family: Family, _last: Slot, index: int) -> Tensors:
    """Qwen3-Next and 3.5: one full-attention layer, embedding and head shared with the model."""
    hidden = config.number("hidden")
    sparse = plan.sparse_layers(config, config.number("layers"))[-1]
    found = _below(f"layers.{index}", build_layer(config, family, Slot("full", "moe" if sparse else "dense")).tensors)
    if index == 0:
        found += linear("fc", hidden, 2 * hidden, "control", "none") + norm("norm", hidden)
        found += norm("pre_fc_norm_embedding", hidden) + norm("pre_fc_norm_hidden", hidden)
    return _below("mtp", found)


def _mimo(config: Keys, family: Family, last: Slot, index: int) -> Tensors:
    """MiMo: one more layer with its own norms and input projection, embedding and head shared."""
    hidden = config.number("hidden")
    found = build_layer(config, family, last).tensors + linear("input_proj", hidden, 2 * hidden, "control", "none")
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        found += norm(name, hidden)
    return _below(f"mtp_layers.{index}", found)


def _blocks(config: Keys, family: Family, _last: Slot, _index: int) -> Tensors:
    """Nemotron-H: the listed blocks, joined as in DeepSeek-V3, embedding and head shared."""
    hidden = config.number("hidden")
    found: Tensors = ()
    for number, slot in enumerate(plan.mtp_blocks(config)):
        found += _below(f"layers.{number}", build_layer(config, family, slot).tensors)
    found += (
        norm("enorm", hidden)
        + norm("hnorm", hidden)
        + linear("eh_proj", hidden, 2 * hidden, "control", "none")
        + norm("final_layernorm", hidden)
    )
    return _below("mtp", found)


_LAYOUTS = {"deepseek": _deepseek, "deepseek shared": _deepseek, "qwen": _qwen, "mimo": _mimo, "blocks": _blocks}
