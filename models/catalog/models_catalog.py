"""The catalogue of models: one JSON file for each, its configuration values with source and date. Only reading, no interpretation."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from models.errors import FileFormatError, UnknownNameError

_FOLDER = Path(__file__).parent / "models"


@cache
def model_names() -> tuple[str, ...]:
    """Catalogue names as published (``Qwen/Qwen3-8B``), sorted."""
    return tuple(sorted(p.name.removesuffix(".json").replace("__", "/") for p in _FOLDER.iterdir() if p.suffix == ".json"))


@cache
def _by_alias() -> dict[str, str]:
    """Lower-case full name and, where it is unique, the part after the publisher; Meta's Llama 3.1 also without the "Meta-" it lost."""
    found = {name.lower(): name for name in model_names()}
    found = {name.replace("/meta-llama-3.1", "/llama-3.1"): published for name, published in found.items()} | found
    short: dict[str, list[str]] = {}
    for name in model_names():
        short.setdefault(name.split("/")[-1].lower(), []).append(name)
    return found | {alias: names[0] for alias, names in short.items() if len(names) == 1 and alias not in found}


def model_entry(name: str) -> dict[str, Any]:
    """The catalogue file of ``name``: ``{name, source, date, fidelity, config, quantisation?}``; the nearest names on a miss."""
    found = _by_alias().get(name.strip().lower())
    if found is None:
        raise UnknownNameError.suggest("model", name, model_names())
    path = _FOLDER / (found.replace("/", "__") + ".json")
    entry = json.loads(path.read_bytes())
    if not isinstance(entry, dict) or not isinstance(entry.get("config"), dict):
        raise FileFormatError("catalogue file without a configuration", path=path.name, way_out="reinstall the package")
    return entry
