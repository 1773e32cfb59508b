"""``load_architecture``: from a catalogue name, a ``config.json``, a model folder or a ``.gguf`` file to an ``Architecture``."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from models.catalog.models_catalog import model_entry
from models.describe.architecture import Architecture
from models.errors import FileFormatError
from models.readers.files import exists, read_json_object, require_file
from models.readers.gguf_file import read_gguf
from models.readers.hf_config import read_config
from models.readers.safetensors_header import folder_bytes

_SUFFIXES = (".json", ".gguf", ".safetensors")


def load_architecture(name_or_path: str | Path) -> Architecture:
    """Read a model's shape; weights are never loaded.

    A path is what exists on disk, ends in ``.json`` / ``.gguf`` or starts with ``.``, ``/`` or ``~``; anything else is a catalogue name.
    Beside a ``config.json``, ``hf_quant_config.json`` and the safetensors headers (or their index) are used where they are.
    Errors: UnknownNameError (nearest names), FileFormatError, ContradictionError, NotCoveredError, each naming the key.
    """
    text = str(name_or_path)
    path = Path(text).expanduser()
    if "\0" in text or not text.strip():
        raise FileFormatError("not a model name or path", value=text, way_out="give a catalogue name, a config.json, a folder or a .gguf")
    if not exists(path):
        if not (text.endswith(_SUFFIXES) or text.startswith((".", "/", "~"))):
            return _from_catalogue(text)
        require_file(path)
    if path.is_dir():
        return _from_folder(path)
    if path.suffix == ".gguf":
        return read_gguf(path)
    if path.suffix == ".safetensors" or path.name.endswith(".index.json"):
        return _from_folder(path.parent)
    name = path.parent.name if path.name == "config.json" else path.stem.replace("__", "/")
    arch = read_config(read_json_object(path), name, str(path), _beside(path))
    return _with_stored_bytes(arch, path.parent) if path.name == "config.json" else arch


@lru_cache(maxsize=64)
def _from_catalogue(name: str) -> Architecture:
    entry = model_entry(name)
    arch = read_config(entry["config"], str(entry["name"]), str(entry["name"]), entry.get("hf_quant_config"))
    stored = entry.get("stored_bytes")
    return replace(arch, stored_bytes=int(stored["value"])) if stored else arch


def _from_folder(folder: Path) -> Architecture:
    config = folder / "config.json"
    if config.is_file():
        return _with_stored_bytes(read_config(read_json_object(config), folder.name, str(config), _beside(config)), folder)
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return read_gguf(files[0])
    raise FileFormatError("the folder holds no config.json", path=str(folder), way_out="give a model folder, a config.json or a .gguf")


def _beside(config: Path) -> dict[str, Any] | None:
    """``hf_quant_config.json`` of the same folder, or the file of the same name in a ``hf_quant`` folder."""
    candidates = [config.parent / "hf_quant_config.json"] if config.name == "config.json" else []
    for candidate in (*candidates, config.parent / "hf_quant" / config.name):
        if candidate.is_file():
            return read_json_object(candidate)
    return None


def _with_stored_bytes(arch: Architecture, folder: Path) -> Architecture:
    stored, _source = folder_bytes(folder)
    return arch if stored is None else replace(arch, stored_bytes=stored)
