"""YAML reports read event by event into the values that the same report as JSON would give, within the same limits.

Tags are not followed and nothing is constructed; an alias stays the text ``*name``, so that a shared value cannot multiply.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from models.errors import FileFormatError
from planner.importers.stream import Builder, Limits, Readable

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NUMBER = re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?$")
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_NON_FINITE = {".nan": "nan", ".inf": "inf", "-.inf": "-inf"}


def yaml_values(stream: Readable, limits: Limits) -> Iterator[tuple[int | None, Any]]:
    """Top-level values as ``stream.json_values`` yields them; damaged YAML is an error that names its line."""
    builder = Builder(limits)
    try:
        for event, value in _events(yaml.parse(stream, Loader=_LOADER)):
            ready = builder.feed(event, value)
            if ready is not None:
                yield ready
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise FileFormatError(f"not valid YAML{where} ({getattr(error, 'problem', None) or 'damaged'})") from None


def _events(parsed: Iterator[Any]) -> Iterator[tuple[str, Any]]:
    """Events of a JSON parser: a mapping's scalars are in turn key and value."""
    is_map: list[bool] = []
    key_next: list[bool] = []
    for event in parsed:
        if isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            key_next.pop()
            yield ("end_map" if is_map.pop() else "end_array"), None
            continue
        opens = isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent)
        if not opens and not isinstance(event, yaml.ScalarEvent | yaml.AliasEvent):
            continue
        if key_next and is_map[-1] and key_next[-1]:
            if opens:
                raise FileFormatError("a key that is a list or a mapping")
            key_next[-1] = False
            yield "map_key", event.value if isinstance(event, yaml.ScalarEvent) else f"*{event.anchor}"
            continue
        if key_next:
            key_next[-1] = is_map[-1]
        if opens:
            is_map.append(isinstance(event, yaml.MappingStartEvent))
            key_next.append(is_map[-1])
            yield ("start_map" if is_map[-1] else "start_array"), None
        else:
            yield _scalar(event)


def _scalar(event: Any) -> tuple[str, Any]:
    if isinstance(event, yaml.AliasEvent):
        return "string", f"*{event.anchor}"
    text = event.value
    if event.style:  # quoted
        return "string", text
    if text in _WORDS:
        word = _WORDS[text]
        return ("null", None) if word is None else ("boolean", word)
    if _NUMBER.match(text):
        return "number", float(text)
    return ("number", float(_NON_FINITE[text])) if text in _NON_FINITE else ("string", text)
