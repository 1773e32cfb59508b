"""``load_architecture``: from a catalogue name, a ``config.json``, a model folder or a ``.gguf`` file to an ``Architecture``."""

from __future__ import annotations

from pathlib import Path

from models.catalog.models_catalog import model_entry
from models.describe.architecture import Architecture
from models.errors import FileFormatError
from models.readers.files import read_json_object
from models.readers.hf_config import read_config


def load_architecture(name_or_path: str | Path) -> Architecture:
    """Read a model's shape; weights are never loaded.

    A path is what exists on disk, ends in ``.json`` / ``.gguf`` or starts with ``.``, ``/`` or ``~``; anything else is a catalogue name.
    Errors: UnknownNameError (nearest names), FileFormatError, ContradictionError, NotCoveredError, each naming the key.
    """
    text = str(name_or_path)
    path = Path(text).expanduser()
    if not (text.endswith((".json", ".gguf")) or text.startswith((".", "/", "~")) or path.exists()):
        entry = model_entry(text)
        return read_config(entry["config"], str(entry["name"]))
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise FileFormatError(
                "the folder holds no config.json", path=str(path.parent), way_out="give a model folder, a config.json or a .gguf"
            )
    config = read_json_object(path)
    return read_config(config, path.parent.name if path.name == "config.json" else path.stem.replace("__", "/"), str(path))
