"""Bytes that a folder of safetensors really stores, from the headers alone (8-byte length, JSON of names, dtypes and offsets).

Bounded: a header may not exceed the file, nor ``LARGEST_HEADER``; weights are never read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models.errors import FileFormatError
from models.readers.files import parse_json_object, read_json_object

LARGEST_HEADER = 32 << 20  # bytes; the largest real ones have a few MB
MOST_FILES = 4096
INDEX = "model.safetensors.index.json"
_WAY_OUT = "download the file again"


def header_bytes(path: Path) -> dict[str, int]:
    """{dtype: bytes} of one file; a cut, oversized or inconsistent header is an error."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(size - 8, LARGEST_HEADER):
            raise FileFormatError(
                "the safetensors header claims more than the file holds or than any model needs",
                path=str(path),
                value=length,
                way_out=_WAY_OUT,
            )
        header = parse_json_object(file.read(length), str(path))
    found: dict[str, int] = {}
    end = 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = _offsets(entry, f"{path}: {name}")
        found[entry["dtype"]] = found.get(entry["dtype"], 0) + last - first
        end = max(end, last)
    if end > size - 8 - length:
        raise FileFormatError("tensors reach beyond the end of the file", path=str(path), value=end, way_out=_WAY_OUT)
    return found


def _offsets(entry: Any, path: str) -> tuple[int, int]:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or not all(isinstance(n, int) for n in offsets)
        or not 0 <= offsets[0] <= offsets[1]
    ):
        raise FileFormatError("malformed safetensors entry", path=path, value=offsets, way_out=_WAY_OUT)
    if not isinstance(entry.get("dtype"), str):
        raise FileFormatError("safetensors entry without a dtype", path=path, way_out=_WAY_OUT)
    return offsets[0], offsets[1]


def folder_bytes(folder: Path) -> tuple[int | None, str]:
    """(stored bytes of a model folder or None, where they are from)."""
    index = folder / INDEX
    if index.is_file():
        return _indexed(folder, read_json_object(index), index)
    files = sorted(folder.glob("*.safetensors"))[: MOST_FILES + 1]
    if not files:
        return None, ""
    if len(files) > MOST_FILES:
        raise FileFormatError("too many safetensors files", path=str(folder), value=len(files), way_out="give a model folder")
    plain = [f for f in files if not f.name.startswith("consolidated")]  # Mistral stores the same weights a second time under this name
    return sum(sum(header_bytes(f).values()) for f in plain or files), "safetensors headers"


def _indexed(folder: Path, index: dict[str, Any], path: Path) -> tuple[int | None, str]:
    shards = index.get("weight_map")
    names = sorted(set(shards.values())) if isinstance(shards, dict) and all(isinstance(v, str) for v in shards.values()) else []
    if any("/" in name or "\\" in name for name in names) or len(names) > MOST_FILES:
        raise FileFormatError("the index names files outside the folder", path=str(path), way_out="download the index again")
    if names and all((folder / name).is_file() for name in names):
        return sum(sum(header_bytes(folder / name).values()) for name in names), "safetensors headers"
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if total is not None and (isinstance(total, bool) or not isinstance(total, int | float) or total <= 0):
        raise FileFormatError("not a size", path=f"{path}: metadata.total_size", value=total, way_out="download the index again")
    return (int(total), "safetensors index") if total is not None else (None, "")
