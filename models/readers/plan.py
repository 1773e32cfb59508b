"""Which layer is what: attention, state, experts and indexers by layer, from lists, intervals, offsets or pattern strings.

``slots`` returns one ``Slot`` a layer. A list in the configuration wins over an interval; an unknown entry is an error that names it.
Equal slots are equal layers, so everything behind them is built once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from models.errors import ContradictionError, FileFormatError, NotCoveredError
from models.readers.families import Family
from models.readers.keys import Keys

Mixer = Literal["full", "sliding", "chunked", "linear", "none"]
FfnKind = Literal["dense", "moe", "none"]

MOST_LAYERS = 4096
_LAYER_TYPES: dict[str, Mixer] = {
    "full_attention": "full",
    "attention": "full",
    "global_attention": "full",
    "global": "full",
    "indexed_attention": "full",
    "deepseek_sparse_attention": "full",
    "minimax_m3_sparse": "full",
    "sliding_attention": "sliding",
    "local_attention": "sliding",
    "local": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "mamba": "linear",
    "hybrid": "full",
}
_BLOCKS: dict[str, tuple[Mixer, FfnKind]] = {
    "M": ("linear", "none"), "mamba": ("linear", "none"), "linear_attention": ("linear", "none"),
    "*": ("full", "none"), "attention": ("full", "none"), "full_attention": ("full", "none"),
    "E": ("none", "moe"), "moe": ("none", "moe"),
    "-": ("none", "dense"), "mlp": ("none", "dense"),
}  # fmt: skip
_COMPRESSED = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


@dataclass(frozen=True, slots=True)
class Slot:
    """What stands in one layer; 0 = as the model's own keys say."""

    mixer: Mixer
    ffn: FfnKind
    reuses_kv: bool = False
    indexer: Literal["none", "own", "shared"] = "none"
    compress: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    width: int = 0
    hashed_router: bool = False


def layer_count(config: Keys, family: Family) -> int:
    """Layers, from the block list or pattern where the family counts by it."""
    found = len(_block_list(config)) if family.special == "blocks" else config.number("layers")
    if not 0 < found <= MOST_LAYERS:
        raise FileFormatError("absurd number of layers", path=config.where("num_hidden_layers"), value=found, way_out=f"1 to {MOST_LAYERS}")
    return found


def slots(config: Keys, family: Family) -> list[Slot]:
    """One slot a layer."""
    layers = layer_count(config, family)
    if family.special == "blocks":
        return [_block(entry, config, i) for i, entry in enumerate(_block_list(config))]
    if family.special == "nas":
        return _nas_slots(config, layers)
    if family.special == "compressed":
        return _compressed_slots(config, layers)
    sparse = sparse_layers(config, layers)
    found = [Slot(mixer, "moe" if moe else "dense") for mixer, moe in zip(mixers(config, family, layers), sparse, strict=True)]
    found = [replace(slot, indexer=kind) for slot, kind in zip(found, _indexers(config, layers), strict=True)]
    found = [replace(slot, **own) for slot, own in zip(found, _overrides(config, layers), strict=True)]
    shared = config.number("num_kv_shared_layers", default=0, least=0)
    if shared > layers:
        raise ContradictionError(f"more than the {layers} layers", path=config.where("num_kv_shared_layers"), value=shared)
    return [replace(slot, reuses_kv=i >= layers - shared) for i, slot in enumerate(found)] if shared else found


_OVERRIDES = {"num_attention_heads": "heads", "num_key_value_heads": "kv_heads", "head_dim": "head_dim"}


def _overrides(config: Keys, layers: int) -> list[dict[str, Any]]:
    """``per_layer_config``: sizes that single layers have of their own, by layer index."""
    found: list[dict[str, Any]] = [{} for _ in range(layers)]
    listed = config.child("per_layer_config")
    if listed is None:
        return found
    for key in listed.values:
        one = listed.require_child(key)
        unknown = next((name for name in one.values if name not in _OVERRIDES), None)
        if unknown is not None or not key.isdigit() or int(key) >= layers:
            way_out = f"layers below {layers} with {', '.join(_OVERRIDES)}"
            raise FileFormatError("cannot interpret this override", path=one.where(unknown or ""), way_out=way_out)
        found[int(key)] = {_OVERRIDES[name]: one.number(name) for name in one.values}
    return found


def window_of(config: Keys, family: Family) -> int | None:
    """The window, checked against the context; None where there is none or the switch is off."""
    if not config.has("window") or (family.window == "qwen" and not config.flag("use_sliding_window")):
        return None
    window, context = config.number("window"), config.number("context", default=0, least=0)
    if context and window > context and not family.window_may_exceed_context:
        way_out = "correct one of them"
        raise ContradictionError(
            f"larger than the context of {context} tokens", path=config.where("sliding_window"), value=window, way_out=way_out
        )
    return window


def mixers(config: Keys, family: Family, layers: int) -> list[Mixer]:
    """full, sliding, chunked or linear for each layer."""
    listed = config.per_layer("layer_types", layers)
    if listed is None:
        listed = config.per_layer("layers_block_type", layers)
    if listed is not None:
        found = [_kind(entry, config, i) for i, entry in enumerate(listed)]
        return [*found[:-1], "full"] if family.last_is_full else found
    found = _linear_layers(config, family, layers) or _windowed_layers(config, family, layers)
    return [*found[:-1], "full"] if family.last_is_full else found


def _linear_layers(config: Keys, family: Family, layers: int) -> list[Mixer] | None:
    """Hybrids that tell linear from full attention by an interval, an offset, a 0/1 list or two lists of layers."""
    if not family.state or family.both:
        return None
    inner = config.child("linear_attn_config")
    if inner is not None and inner.has("full_attn_layers"):
        full = set(inner.numbers("full_attn_layers"))  # counted from 1
        return ["full" if i + 1 in full else "linear" for i in range(layers)]
    kinds = config.per_layer("attn_type_list", layers)
    if kinds is not None:
        return ["full" if _flag(entry, config.where("attn_type_list"), i) else "linear" for i, entry in enumerate(kinds)]
    if config.has("attn_layer_period"):
        period, offset = config.number("attn_layer_period"), config.number("attn_layer_offset", default=0, least=0)
        return ["full" if i % period == offset else "linear" for i in range(layers)]
    interval = config.number("full_attention_interval")
    return ["linear" if (i + 1) % interval else "full" for i in range(layers)]


def _windowed_layers(config: Keys, family: Family, layers: int) -> list[Mixer]:
    """Window by family rule: all layers, every other, all but every n-th, from a layer on; or a 0/1 pattern, or chunks."""
    pattern = config.per_layer("hybrid_layer_pattern", layers)
    if pattern is not None:
        return ["sliding" if _flag(entry, config.where("hybrid_layer_pattern"), i) else "full" for i, entry in enumerate(pattern)]
    if config.has("attention_chunk_size") and family.shared_is_width:
        return _chunked_layers(config, layers)
    if window_of(config, family) is None or family.window == "none":
        return ["full"] * layers
    if family.window == "qwen":
        first = config.number("max_window_layers", default=layers, least=0)
        return ["sliding" if i >= first else "full" for i in range(layers)]
    every = {"all": layers + 1, "alternate": 2, "every": family.every}[family.window]
    if family.window == "every":
        every = config.number("sliding_window_pattern", default=config.number("_sliding_window_pattern", default=every))
    return ["sliding" if (i + 1) % every else "full" for i in range(layers)]


def _chunked_layers(config: Keys, layers: int) -> list[Mixer]:
    """Llama 4: layers with rotary positions look back within a chunk; every n-th (or listed as 0) sees everything."""
    rope = config.per_layer("no_rope_layers", layers) if config.items("no_rope_layers") else None
    if rope is None:
        interval = config.number("no_rope_layer_interval", default=4)
        rope = [int((i + 1) % interval != 0) for i in range(layers)]
    return ["chunked" if _flag(entry, config.where("no_rope_layers"), i) else "full" for i, entry in enumerate(rope)]


def _kind(entry: object, config: Keys, index: int) -> Mixer:
    found = _LAYER_TYPES.get(entry) if isinstance(entry, str) else None
    if found is None:
        way_out = f"known: {', '.join(sorted(_LAYER_TYPES))}"
        raise FileFormatError("unknown layer type", path=f"{config.where('layer_types')}[{index}]", value=entry, way_out=way_out)
    return found


def sparse_layers(config: Keys, layers: int) -> list[bool]:
    """True where a layer's FFN is a mixture of experts."""
    if not config.has("experts") or config.number("experts", least=0) < 2 or not config.flag("enable_moe_block", default=True):
        return [False] * layers
    listed = config.per_layer("mlp_layer_types", layers)
    if listed is not None:
        return [_sparse(entry, config, i) for i, entry in enumerate(listed)]
    chosen = config.values.get("moe_layers_enum", config.values.get("moe_layers"))
    if chosen is not None:
        sparse = _indices(chosen, config.where("moe_layers_enum"))
        return [i in sparse for i in range(layers)]
    if isinstance(config.values.get("moe_layer_freq"), list):
        entries = config.per_layer("moe_layer_freq", layers) or []
        return [_flag(entry, config.where("moe_layer_freq"), i) for i, entry in enumerate(entries)]
    period, offset = _period(config)
    dense_first = config.number("dense_first", default=0, least=0)
    dense = set(config.numbers("mlp_only_layers"))
    return [i >= dense_first and i not in dense and i % period == offset for i in range(layers)]


def _indices(chosen: object, path: str) -> set[int]:
    """Layer indices as a list or as text with commas."""
    items = chosen.split(",") if isinstance(chosen, str) else chosen
    if not isinstance(items, list) or not all(str(item).strip().isdigit() for item in items if str(item).strip()):
        raise FileFormatError("expected layer indices", path=path, value=chosen, way_out="correct the configuration")
    return {int(item) for item in items if str(item).strip()}


def _period(config: Keys) -> tuple[int, int]:
    """(period, offset): experts in layer i where i % period == offset."""
    if config.has("expert_layer_period"):
        period = config.number("expert_layer_period")
        return period, config.number("expert_layer_offset", default=0, least=0) % period
    for key in ("decoder_sparse_step", "interleave_moe_layer_step"):
        if config.has(key):
            period = config.number(key)
            return period, period - 1
    return config.number("moe_layer_freq", default=1), 0


def _sparse(entry: object, config: Keys, index: int) -> bool:
    if entry not in ("sparse", "dense", "moe", "hash_moe"):
        raise FileFormatError(
            "unknown FFN type", path=f"{config.where('mlp_layer_types')}[{index}]", value=entry, way_out="known: dense, sparse"
        )
    return entry != "dense"


def _flag(entry: object, path: str, index: int) -> bool:
    if entry not in (0, 1):
        raise FileFormatError("expected 0 or 1", path=f"{path}[{index}]", value=entry, way_out="correct the configuration")
    return bool(entry)


def _indexers(config: Keys, layers: int) -> list[Literal["none", "own", "shared"]]:
    """Which layers score keys themselves and which reuse an earlier layer's choice."""
    block = config.child("sparse_attention_config")
    if block is not None and block.flag("use_sparse_attention", default=True):
        flags = block.per_layer("sparse_attention_freq", layers)
        return ["own" if flags is None or _flag(flags[i], block.where("sparse_attention_freq"), i) else "none" for i in range(layers)]
    if not config.has("index_topk"):
        return ["none"] * layers
    listed = config.per_layer("indexer_types", layers)
    pattern = config.values.get("index_topk_pattern")
    if listed is None and isinstance(pattern, str):
        listed = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern[:layers]]
    if listed is None:
        frequency, offset = config.number("index_topk_freq", default=1), config.number("index_skip_topk_offset", default=2, least=0)
        return ["shared" if max(i - offset + 1, 0) % frequency else "own" for i in range(layers)]
    if len(listed) < layers or any(entry not in ("full", "shared") for entry in listed):
        raise FileFormatError("expected 'full' or 'shared' for each layer", path=config.where("indexer_types"), way_out="correct the list")
    return ["own" if entry == "full" else "shared" for entry in listed]


def _block_list(config: Keys) -> list[object]:
    """Nemotron-H: one block a layer, as a list or as a string of M (Mamba), * (attention), E (experts), - (MLP)."""
    for key in ("layers_block_type", "layer_types"):
        listed = config.items(key)
        if listed is not None:
            return listed
    pattern = config.text("hybrid_override_pattern")
    if not pattern:
        raise FileFormatError("missing", path=config.where("hybrid_override_pattern"), way_out="add it or layers_block_type")
    if config.has("layers") and config.number("layers") != len(pattern):
        raise ContradictionError(
            f"{len(pattern)} blocks for {config.number('layers')} layers",
            path=config.where("hybrid_override_pattern"),
            way_out="correct one",
        )
    return list(pattern)


def _block(entry: object, config: Keys, index: int) -> Slot:
    found = _BLOCKS.get(entry) if isinstance(entry, str) else None
    if found is None:
        raise FileFormatError(
            "unknown block", path=f"{config.where('layers_block_type')}[{index}]", value=entry, way_out=f"known: {', '.join(_BLOCKS)}"
        )
    return Slot(*found)


def mtp_blocks(config: Keys) -> list[Slot]:
    """Blocks of Nemotron-H's prediction layers."""
    listed = config.items("mtp_layers_block_type") or list(config.text("mtp_hybrid_override_pattern"))
    return [_block(entry, config, i) for i, entry in enumerate(listed)]


def _nas_slots(config: Keys, layers: int) -> list[Slot]:
    """Nemotron NAS: KV heads and FFN width by layer; either may be absent."""
    blocks = config.per_layer("block_configs", layers)
    if blocks is None:
        raise FileFormatError("missing", path=config.where("block_configs"), way_out="add it")
    return [_nas_slot(Keys(block, f"{config.where('block_configs')}[{i}]"), config) for i, block in enumerate(blocks)]


def _nas_slot(block: Keys, config: Keys) -> Slot:
    attention, ffn = block.require_child("attention"), block.require_child("ffn")
    for part in (attention, ffn):
        if part.flag("replace_with_linear"):
            raise NotCoveredError("a block replaced by one linear map is not covered", path=part.where("replace_with_linear"))
    kv_heads = width = 0
    if not attention.flag("no_op"):
        kv_heads = max(1, config.number("heads") // attention.number("n_heads_in_group"))
    if not ffn.flag("no_op"):
        width = (
            ffn.number("intermediate_size") if ffn.has("intermediate_size") else _nas_width(ffn.real("ffn_mult"), config.number("hidden"))
        )
    return Slot("full" if kv_heads else "none", "dense" if width else "none", kv_heads=kv_heads, width=width)


def _nas_width(multiple: float, hidden: int) -> int:
    """int(2 x multiple x hidden / 3), rounded up to a multiple of 256."""
    return -(-int(2 * multiple * hidden / 3) // 256) * 256


def _compressed_slots(config: Keys, layers: int) -> list[Slot]:
    """DeepSeek-V4: each layer has a window, alone (0), with all older tokens compressed 4-fold and indexed, or 128-fold."""
    ratios = config.per_layer("compress_ratios", layers)
    if ratios is None:
        listed = config.per_layer("layer_types", layers)
        if listed is None:
            raise FileFormatError("missing", path=config.where("compress_ratios"), way_out="add it or layer_types")
        ratios = [_COMPRESSED.get(entry, entry) for entry in listed]
    hashed = config.number("num_hash_layers", default=0, least=0)
    for i, ratio in enumerate(ratios):
        if ratio not in (0, 4, 128):
            raise FileFormatError(
                "unknown compression", path=f"{config.where('compress_ratios')}[{i}]", value=ratio, way_out="known: 0, 4, 128"
            )
    return [Slot("sliding", "moe", indexer="own" if r == 4 else "none", compress=r, hashed_router=i < hashed) for i, r in enumerate(ratios)]
