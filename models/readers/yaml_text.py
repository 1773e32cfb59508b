"""YAML or JSON text to plain data: safe types alone, no aliases, no key twice, of bounded size."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from models.errors import FileFormatError

LARGEST_FILE = 1 << 20
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_LOADER):  # type: ignore[misc]
    """Safe loader that refuses a key written twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
        seen: set[Any] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:bool":  # YAML 1.1 reads the words on and off as yes and no
                key.tag = "tag:yaml.org,2002:str"
        for key in (self.construct_object(key, deep=True) for key, _ in node.value):
            if not isinstance(key, Hashable):
                raise yaml.YAMLError(f"a list or mapping cannot be a key (line {node.start_mark.line + 1})")
            if key in seen:
                raise yaml.YAMLError(f"key {key!r} stands twice (line {node.start_mark.line + 1})")
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """Plain data; aliases are refused, for a few lines of them can stand for more values than fit into memory."""
    if "*" in text:
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.AliasEvent):
                line = event.start_mark.line + 1 if event.start_mark is not None else 0
                raise yaml.YAMLError(f"aliases are not accepted (line {line})")
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of the safe loader


NOT_YAML = (yaml.YAMLError, RecursionError, ValueError)
"""What ``load_yaml`` raises for text that it cannot take."""


def parse_mapping(text: str, path: str, way_out: str) -> dict[str, Any]:
    """YAML or JSON text to a mapping. ``way_out``: where an example of such a file stands."""
    try:
        raw = load_yaml(text)
    except NOT_YAML as error:
        first = str(error).splitlines()
        raise FileFormatError(
            "is not valid YAML: " + " ".join(line.strip() for line in first)[:200], path=path, way_out="correct the syntax"
        ) from None
    if not isinstance(raw, dict):
        raise FileFormatError("does not hold a mapping", path=path, way_out=way_out)
    return raw


def read_mapping(file: Path, what: str, way_out: str) -> dict[str, Any]:
    """The mapping in a file of at most 1 MiB; ``what`` names the kind of file in errors."""
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise FileFormatError(
                f"{what} file is larger than 1 MiB", path=str(file), value=file.stat().st_size, way_out=f"a {what} is a page of YAML"
            )
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise FileFormatError(f"cannot be read ({error.strerror or error})", path=str(file), way_out="check the path") from None
    except UnicodeDecodeError:
        raise FileFormatError("is not UTF-8 text", path=str(file), way_out="save it as UTF-8") from None
    return parse_mapping(text, str(file), way_out)
