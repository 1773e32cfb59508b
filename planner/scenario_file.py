"""Reading scenarios: YAML (safe) or JSON text to raw data to a ``Scenario``; paths inside are relative to the file."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.describe.scenario import Scenario
from models.errors import InputError, UnknownNameError
from models.readers.files import exists
from models.readers.yaml_text import NOT_YAML, load_yaml, parse_mapping, read_mapping

_EXAMPLE = "start from scenarios/chapter8.yaml"


def read_raw(path: str | Path) -> dict[str, Any]:
    """The mapping in a scenario file; relative paths of a model, a device and traces become relative to the file."""
    file = Path(path)
    return _anchored(read_mapping(file, "scenario", _EXAMPLE), file.parent)


def parse_raw(text: str, path: str = "scenario") -> dict[str, Any]:
    """YAML or JSON text to a mapping."""
    return parse_mapping(text, path, _EXAMPLE)


def parse_scenario(raw: Mapping[str, Any]) -> Scenario:
    """Validate raw data; the first thing wrong is one clear error."""
    return Scenario.parse(raw)


def _anchored(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A model or device given as a relative path that exists beside the file is meant there; traces are always beside the file."""
    if "model" in raw:
        raw = raw | {"model": _beside(raw["model"], folder)}
    hardware = raw.get("hardware")
    if isinstance(hardware, dict) and "device" in hardware:
        raw = raw | {"hardware": hardware | {"device": _beside(hardware["device"], folder)}}
    workload = raw.get("workload")
    if isinstance(workload, dict):
        raw = raw | {"workload": {name: _anchored_trace(one, folder) for name, one in workload.items()}}
    return raw


def _beside(name: Any, folder: Path) -> Any:
    """``name`` in ``folder`` where it is no path as it stands but one there."""
    if not isinstance(name, str) or Path(name).is_absolute() or exists(Path(name)) or not exists(folder / name):
        return name
    return str(folder / name)


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
        return path.strip(), load_yaml(value)
    except NOT_YAML:
        return path.strip(), value
