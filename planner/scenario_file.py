"""Reading scenarios: YAML (safe) or JSON text to raw data to a ``Scenario``; paths inside are relative to the file."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from models.describe.scenario import Scenario
from models.errors import FileFormatError, InputError, UnknownNameError

LARGEST_FILE = 1 << 20
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_LOADER):  # type: ignore[misc]
    """Safe loader that refuses a key written twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
        seen: set[Any] = set()
        for key in (self.construct_object(key, deep=True) for key, _ in node.value):
            if not isinstance(key, Hashable):
                raise yaml.YAMLError(f"a list or mapping cannot be a key (line {node.start_mark.line + 1})")
            if key in seen:
                raise yaml.YAMLError(f"key {key!r} stands twice (line {node.start_mark.line + 1})")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_raw(path: str | Path) -> dict[str, Any]:
    """The mapping in a scenario file; relative model and trace paths become relative to the file."""
    file = Path(path)
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise FileFormatError(
                "scenario file is larger than 1 MiB", path=str(file), value=file.stat().st_size, way_out="a scenario is a page of YAML"
            )
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise FileFormatError(f"cannot be read ({error.strerror or error})", path=str(file), way_out="check the path") from None
    except UnicodeDecodeError:
        raise FileFormatError("is not UTF-8 text", path=str(file), way_out="save it as UTF-8") from None
    return _anchored(parse_raw(text, str(file)), file.parent)


def _load(text: str) -> Any:
    """Plain data; aliases are refused, for a few lines of them can stand for more values than fit into memory."""
    if "*" in text:
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.AliasEvent):
                line = event.start_mark.line + 1 if event.start_mark is not None else 0
                raise yaml.YAMLError(f"aliases are not accepted (line {line})")
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of the safe loader


def parse_raw(text: str, path: str = "scenario") -> dict[str, Any]:
    """YAML or JSON text to a mapping."""
    try:
        raw = _load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        first = str(error).splitlines()
        raise FileFormatError(
            "is not valid YAML: " + " ".join(line.strip() for line in first)[:200], path=path, way_out="correct the syntax"
        ) from None
    if not isinstance(raw, dict):
        raise FileFormatError("does not hold a mapping", path=path, way_out="start from scenarios/chapter8.yaml")
    return raw


def parse_scenario(raw: Mapping[str, Any]) -> Scenario:
    """Validate raw data; the first thing wrong is one clear error."""
    return Scenario.parse(raw)


def _anchored(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A model given as a relative path that exists beside the file is meant there; traces are always beside the file."""
    model = raw.get("model")
    if isinstance(model, str) and not Path(model).is_absolute() and model.startswith((".", "~")) is not None:
        beside = folder / model
        if not Path(model).exists() and beside.exists():
            raw = raw | {"model": str(beside)}
    workload = raw.get("workload")
    if isinstance(workload, dict):
        raw = raw | {"workload": {name: _anchored_trace(one, folder) for name, one in workload.items()}}
    return raw


def _anchored_trace(one: Any, folder: Path) -> Any:
    """A class whose trace is named by a relative path, with the path made relative to the folder of the scenario."""
    trace = one["arrivals"].get("trace") if isinstance(one, dict) and isinstance(one.get("arrivals"), dict) else None
    name = trace.get("file") if isinstance(trace, dict) else trace
    if not isinstance(name, str) or Path(name).is_absolute():
        return one
    there = str(folder / name)
    return one | {"arrivals": one["arrivals"] | {"trace": trace | {"file": there} if isinstance(trace, dict) else there}}


def with_value(raw: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of ``raw`` with one value set; every part of ``path`` but the last must exist or be a mapping that can be created."""
    parts = path.split(".")
    if not all(parts):
        raise InputError("is not a path of names", path="--set", value=path, way_out="write for example hardware.kv_budget=6GiB")
    changed = copy.deepcopy(dict(raw))
    here: dict[str, Any] = changed
    for i, part in enumerate(parts[:-1]):
        following = here.get(part)
        if following is None:
            if i == 0 and part not in Scenario.model_fields:
                raise UnknownNameError.suggest("field", part, list(Scenario.model_fields), path=path)
            if i == 1 and parts[0] == "workload":
                raise UnknownNameError.suggest("request class", part, list(raw.get("workload", {})), path=path)
            following = {}
        if not isinstance(following, dict):
            raise InputError("is a value, not a mapping", path=".".join(parts[: i + 1]), value=following, way_out="shorten the path")
        here[part] = following
        here = following
    here[parts[-1]] = value
    return changed


def parse_assignment(text: str, option: str = "--set") -> tuple[str, Any]:
    """``PATH=VALUE`` with the value read as YAML (``6GiB`` stays text, ``16`` becomes a number)."""
    path, separator, value = text.partition("=")
    if not separator or not path.strip():
        raise InputError("expected PATH=VALUE", path=option, value=text, way_out="write for example hardware.kv_budget=6GiB")
    try:
        return path.strip(), _load(value)
    except (yaml.YAMLError, RecursionError, ValueError):
        return path.strip(), value
