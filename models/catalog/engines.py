"""The catalogue of engines: one JSON file for each, a rule set for each version that was read, every value with its source.

A version between two rule sets takes the older one and says so (``Engine.exact``). One that is older than every rule set, or newer than the
newest and of another series (the leading ``series`` numbers of a version), is unknown.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from models.describe.engine import Engine, SizeTier, parse_version
from models.errors import UnknownNameError

_FOLDER = Path(__file__).parent / "engines"
_PLAIN = ("version", "date", "package")  # the rule set's own head; everything else is {value, source}


@cache
def engine_names() -> tuple[str, ...]:
    """Catalogue names, sorted: the keys of an answer's ``launch``."""
    return tuple(sorted(path.stem for path in _FOLDER.iterdir() if path.suffix == ".json"))


@cache
def _entry(name: str) -> dict[str, Any]:
    entry: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_bytes())
    return entry


def engine_versions(name: str) -> tuple[str, ...]:
    """Versions of the engine that have rules of their own, oldest first."""
    return tuple(rules["version"] for rules in _entry(canonical_name(name))["rule_sets"])


def canonical_name(name: str) -> str:
    """The catalogue's name for ``name`` (``llama.cpp`` → ``llama_cpp``); the nearest names on a miss."""
    lowered = name.strip().lower()
    if lowered in engine_names():
        return lowered
    aliases = {alias: known for known in engine_names() for alias in _entry(known)["aliases"]}
    if lowered not in aliases:
        raise UnknownNameError.suggest("engine", name, [*engine_names(), *aliases], path="engine.name")
    return aliases[lowered]


@cache
def load_engine(name: str, version: str | None = None) -> Engine:
    """The engine ``name`` at ``version`` (None: the newest that the catalogue knows)."""
    known = canonical_name(name)
    entry = _entry(known)
    rules = _rules_for(entry, version)
    values = {field: item["value"] for field, item in rules.items() if field not in _PLAIN}
    values["size_tiers"] = [dict(zip(SizeTier.model_fields, tier, strict=False)) for tier in values["size_tiers"]]
    return Engine(
        name=known,
        title=entry["title"],
        program=tuple(entry["program"]),
        version=rules["version"] if version is None else version.strip(),
        rules_version=rules["version"],
        exact=version is None or parse_version(version) == parse_version(rules["version"]),
        date=rules["date"],
        package=rules["package"],
        sources={field: item["source"] for field, item in rules.items() if field not in _PLAIN},
        **values,
    )


def _rules_for(entry: dict[str, Any], version: str | None) -> dict[str, Any]:
    """The rule set of ``version``, or the nearest that is not newer."""
    rule_sets: list[dict[str, Any]] = entry["rule_sets"]
    newest = rule_sets[-1]
    if version is None:
        return newest
    asked = parse_version(version)
    not_newer = [rules for rules in rule_sets if parse_version(rules["version"]) <= asked]
    series = entry["series"]
    newer_series = asked > parse_version(newest["version"]) and _series(asked, series) != _series(parse_version(newest["version"]), series)
    if not not_newer or newer_series:
        known = ", ".join(rules["version"] for rules in rule_sets)
        raise UnknownNameError(
            f"no rules for this version of {entry['title']}", path="engine.version", value=version,
            way_out=f"known: {known}, and the releases between them",
        )  # fmt: skip
    return not_newer[-1]


def _series(version: tuple[int, ...], parts: int) -> tuple[int, ...]:
    return (*version, 0, 0)[:parts]
