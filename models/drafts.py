"""What a draft source costs where no calibration measured it: weights, KV, forward passes, from the target's own shape.

Shapes (catalogue ``drafts.json``, with sources): EAGLE one decoder layer and a fusion of three hidden states; DFlash five layers
and a fusion of five, the whole draft in one forward; MTP the model's own heads; a separate model is read like any other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from models import facts
from models.describe.architecture import Architecture
from models.describe.configuration import DraftSource
from models.errors import NotCoveredError

_FILE = Path(__file__).parent / "catalog" / "drafts.json"


@dataclass(frozen=True)
class DraftShape:
    """A draft's size on one device and how often it runs in a round."""

    weight_bytes: int
    kv_bytes_per_token: int
    linear_parameters: int
    parallel: bool  # one forward for the whole draft, else one for each token
    query_s: float  # host time of a round (look-up)


@cache
def _catalogue() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_FILE.read_bytes())
    return found


def draft_shape(target: Architecture, source: DraftSource, draft_model: Architecture | None, tp: int) -> DraftShape:
    """Size and kind of ``source`` for ``target``; an error where the model offers no such draft."""
    if source in (DraftSource.NONE, DraftSource.LOOKUP):
        query = float(_catalogue()["lookup"]["query_s"]) if source is DraftSource.LOOKUP else 0.0
        return DraftShape(0, 0, 0, parallel=True, query_s=query)
    if draft_model is not None:
        per_token = facts.kv_bytes_per_token_below_window(draft_model, "bf16", 1)
        return DraftShape(
            facts.weight_bytes(draft_model),
            per_token,
            facts.linear_parameters(draft_model),
            parallel=source is DraftSource.DFLASH,
            query_s=0.0,
        )
    if source is DraftSource.MODEL:
        raise NotCoveredError(
            "a separate draft model must be named", path="speculation.model.draft_model", way_out="give a catalogue name or a path"
        )
    if source is DraftSource.MTP:
        return _own_heads(target, tp)
    shape = _catalogue()[source.value]
    layer = facts.layer_bytes(target, "bf16", tp)
    fusion = int(shape["fused_hidden_states"]) * target.hidden**2
    head = int(shape["draft_vocabulary"]) * target.hidden
    layers = int(shape["layers"])
    growing = facts.kv_bytes_per_token_below_window(target, "bf16", tp) // max(target.attention_layers, 1)
    return DraftShape(
        layers * layer + 2 * (fusion + head) // tp, layers * growing, layers * layer // 2 + fusion, bool(shape["parallel"]), 0.0
    )


def _own_heads(target: Architecture, tp: int) -> DraftShape:
    if not target.mtp:
        raise NotCoveredError(f"{target.name} has no MTP head", path="draft", value="mtp", way_out="choose another draft source")
    size = sum(t.nbytes(tp) for t in target.mtp)
    linear = sum(t.elements for t in target.mtp if t.linear)
    growing = facts.kv_bytes_per_token_below_window(target, "bf16", tp) // max(target.attention_layers, 1)
    return DraftShape(size, growing, linear, parallel=False, query_s=0.0)
