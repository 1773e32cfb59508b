"""What ``drafts.json`` says about draft models: how many layers of KV each adds."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent / "drafts.json"


@cache
def _drafts() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_FILE.read_bytes())
    return found


def draft_layers(kind: str) -> int:
    """Attention layers with a cache of their own: 1 for a prediction layer of the checkpoint, as listed for drafts, 0 without a model."""
    if kind in ("none", "lookup"):
        return 0
    return 1 if kind == "mtp" else int(_drafts()[kind]["layers"])
