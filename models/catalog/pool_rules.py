"""How engines size their KV pool, by version: the only code that reads ``pool_rules.json``.

A version takes the newest rules that are not newer than itself; the file reaches further back than the launch rules, to the logs that
people still have. A version that is older than every entry is unknown.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal

from models.describe.base import Description
from models.describe.engine import parse_version
from models.errors import UnknownNameError

_FILE = Path(__file__).parent / "pool_rules.json"
_NEWEST = ("main", "master", "nightly", "latest")

Scheme = Literal["uniform_blocks", "groups", "static_fraction", "context", "free_fraction"]


class PoolRules(Description):
    """Rules of one engine at one version. Fields that a scheme does not use keep their defaults."""

    engine: str
    title: str
    version: str
    since: str  # the version from which the newest of these rules holds
    sources: tuple[str, ...]
    scheme: Scheme
    windows: Literal["full", "own"]  # windowed layers hold every token, or their window
    chunks: Literal["full", "own"] = "full"  # layers of chunked attention likewise
    block_tokens: int
    indexed_block_tokens: int | None = None  # where an indexer picks the tokens; None: the same
    latent_block_tokens: int | None = None  # 576-wide latents (FlashMLA); None: the same
    latent_block_datacentre_blackwell: int | None = None
    indexed_auto_kv: str | None = None  # what ``auto`` means where an indexer picks the tokens; None: the model's own
    utilization: float | None
    prints: Literal["blocks", "tokens_of_blocks", "tokens_of_concurrency"] = "tokens_of_blocks"
    needs: Literal["pool", "layers", "first_group", "groups"] = "pool"  # how "needed" is counted in a refusal
    null_block: bool = False
    batches_in_flight: Literal["one", "asynchronous"] = "one"
    group_growth: float = 0.0
    state_pages: Literal["none", "one", "by_caching"] = "none"
    states_by_block: tuple[str, ...] = ()  # kinds of state kept for every block where prefixes are cached
    state_alignment: int = 16
    latent_alignment: int = 16
    hybrid_prefix_caching: bool = False
    graph_in_budget: bool = False
    compiled: bool = False
    chunk_above_tokens: int | None = None
    chunk_tokens: int = 2048
    max_num_seqs: int = 256
    indexer_in_cell: bool = True
    latent_scales_in_cell: bool = True
    window_ratio: float = 1.0
    state_ratio: float = 0.0
    context_padding: int = 1


@cache
def _file() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_FILE.read_bytes())
    return found


def pool_engines() -> tuple[str, ...]:
    """Engines whose pool is known."""
    return tuple(name for name, entry in _file().items() if isinstance(entry, dict))


def _name(text: str) -> str:
    aliases = {alias: name for name in pool_engines() for alias in _file()[name]["aliases"]}
    found = aliases.get(text.strip().lower())
    if found is None:
        raise UnknownNameError.suggest("engine", text, aliases, path="engine.name")
    return found


@cache
def pool_rules(engine: str, version: str | None = None) -> PoolRules:
    """Rules of ``engine`` at ``version`` (None: the newest)."""
    name = _name(engine)
    rule_sets: list[dict[str, Any]] = _file()[name]["rule_sets"]
    newest = version is None or version.strip().lower() in _NEWEST
    asked = None if newest or version is None else parse_version(version)
    chosen = [r for r in rule_sets if asked is None or parse_version(r["from"]) <= asked]
    if not chosen:
        raise UnknownNameError(
            f"no pool rules for this version of {_file()[name]['title']}", path="engine.version", value=version,
            way_out=f"known from {rule_sets[0]['from']} on",
        )  # fmt: skip
    named = chosen[-1]["from"] if newest or version is None else version.strip()
    values: dict[str, Any] = {}
    for rules in chosen:
        values |= rules["values"]
    return PoolRules(
        engine=name, title=_file()[name]["title"], version=named, since=chosen[-1]["from"],
        sources=tuple(rules["source"] for rules in chosen), **values,
    )  # fmt: skip
