"""Reading foreign JSON files with bounded size, depth and time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from models.errors import FileFormatError

LARGEST_CONFIG = 16 << 20  # bytes; the largest real one (every expert listed) has 3 MB


def read_json_object(path: Path, limit: int = LARGEST_CONFIG) -> dict[str, Any]:
    """The JSON object in ``path``; a missing, oversized, too deeply nested or malformed file is an error."""
    require_file(path)
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except OSError as cause:
        raise FileFormatError("cannot read the file", path=str(path), value=cause.strerror, way_out="check the path") from cause
    if len(raw) > limit:
        raise FileFormatError("file is too large for a configuration", path=str(path), way_out=f"at most {limit} bytes")
    return parse_json_object(raw, str(path))


def require_file(path: Path) -> None:
    """Only an ordinary file: a device or a pipe could block or never end."""
    there = exists(path)
    if not there or not path.is_file():
        what = "not an ordinary file" if there else "no such file"
        raise FileFormatError("cannot read the file", path=str(path), value=what, way_out="check the path")


def exists(path: Path) -> bool:
    """Whether something is there; a name that no file system can hold is not."""
    try:
        return path.exists()
    except OSError:
        return False


def parse_json_object(raw: bytes, path: str) -> dict[str, Any]:
    """Decode one JSON object; the parser itself stops at the interpreter's depth limit."""
    try:
        found = json.loads(raw)
    except RecursionError as cause:
        raise FileFormatError("nested too deeply", path=path, value="over a thousand levels", way_out="give a real config.json") from cause
    except ValueError as cause:
        raise FileFormatError("not valid JSON", path=path, value=str(cause).splitlines()[0], way_out="repair the file") from cause
    if not isinstance(found, dict):
        raise FileFormatError("expected a JSON object", path=path, value=type(found).__name__, way_out="give a config.json")
    return found
