"""Which layer is what: windows and experts by layer, from lists, intervals, offsets or patterns.

Every function returns one entry a layer. A list in the configuration wins over an interval; an unknown entry is an error that names it.
"""

from __future__ import annotations

from models.errors import ContradictionError, FileFormatError
from models.readers.families import Family
from models.readers.keys import Keys

FULL, SLIDING, CHUNKED, LINEAR = "full", "sliding", "chunked", "linear"
_LAYER_TYPES = {
    "full_attention": FULL,
    "attention": FULL,
    "global_attention": FULL,
    "global": FULL,
    "indexed_attention": FULL,
    "minimax_m3_sparse": FULL,
    "sliding_attention": SLIDING,
    "local_attention": SLIDING,
    "local": SLIDING,
    "chunked_attention": CHUNKED,
    "linear_attention": LINEAR,
    "hybrid": FULL,
}


def window_of(config: Keys, family: Family) -> int | None:
    """The window, checked against the context; None where there is none or the switch is off."""
    if not config.has("window") or (family.window == "qwen" and not config.flag("use_sliding_window")):
        return None
    window, context = config.number("window"), config.number("context", default=0, least=0)
    if context and window > context and not family.window_may_exceed_context:
        raise ContradictionError(
            f"the window is larger than the context of {context} tokens",
            path=config.where("sliding_window"),
            value=window,
            way_out="correct one of them",
        )
    return window


def attention_kinds(config: Keys, family: Family, layers: int) -> list[str]:
    """full, sliding, chunked or linear for each layer."""
    listed = config.per_layer("layer_types", layers)
    if listed is not None:
        return [_kind(entry, config, i) for i, entry in enumerate(listed)]
    window = window_of(config, family)
    if window is None:
        return [FULL] * layers
    if family.window == "all":
        return [SLIDING] * layers
    if family.window == "alternate":
        return [SLIDING if i % 2 == 0 else FULL for i in range(layers)]
    if family.window == "every":
        every = config.number("sliding_window_pattern", default=config.number("_sliding_window_pattern", default=family.every))
        return [FULL if (i + 1) % every == 0 else SLIDING for i in range(layers)]
    if family.window == "qwen":
        first = config.number("max_window_layers", default=0, least=0)
        return [SLIDING if i >= first else FULL for i in range(layers)]
    return [FULL] * layers


def _kind(entry: object, config: Keys, index: int) -> str:
    found = _LAYER_TYPES.get(entry) if isinstance(entry, str) else None
    if found is None:
        raise FileFormatError(
            "unknown layer type",
            path=f"{config.where('layer_types')}[{index}]",
            value=entry,
            way_out=f"known: {', '.join(sorted(_LAYER_TYPES))}",
        )
    return found


def sparse_layers(config: Keys, layers: int) -> list[bool]:
    """True where a layer's FFN is a mixture of experts."""
    if not config.has("experts"):
        return [False] * layers
    listed = config.per_layer("mlp_layer_types", layers)
    if listed is not None:
        return [_sparse(entry, config, i) for i, entry in enumerate(listed)]
    key, frequency = config.find("moe_layer_freq")
    if isinstance(frequency, list):
        return [_flag(entry, config.where(key), i) for i, entry in enumerate(config.per_layer("moe_layer_freq", layers) or [])]
    period, offset = _period(config)
    dense_first = config.number("dense_first", default=0, least=0)
    dense = set(config.items("mlp_only_layers") or [])
    return [i >= dense_first and i not in dense and i % period == offset for i in range(layers)]


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
    if entry not in ("sparse", "dense", "moe"):
        raise FileFormatError(
            "unknown FFN type", path=f"{config.where('mlp_layer_types')}[{index}]", value=entry, way_out="known: dense, sparse"
        )
    return entry != "dense"


def _flag(entry: object, path: str, index: int) -> bool:
    if entry not in (0, 1):
        raise FileFormatError("expected 0 or 1", path=f"{path}[{index}]", value=entry, way_out="correct the configuration")
    return bool(entry)
