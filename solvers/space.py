"""The space that a scenario leaves open, over the registry of ``solvers.variables``.

A value fixed in the scenario's engine block is fixed; a variable listed under ``search`` varies over the listed values (null: its whole
domain); without a search block everything varies over its domain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.case import BranchAxes, Case, Graphs, Speculation
from models.describe.configuration import Configuration, DraftSource, KvFormat
from models.describe.scenario import IntegerRange
from models.errors import ContradictionError, InputError, NotCoveredError, UnknownNameError
from solvers.variables import VARIABLES, default_draft_tokens, draft_lengths


@dataclass(frozen=True)
class Space:
    """What is left open: branch axes and the four long integer axes, ascending. ``admission_limit`` None means no limit."""

    axes: BranchAxes
    max_num_seqs: tuple[int, ...]
    max_num_batched_tokens: tuple[int, ...]
    offload_layers: tuple[int, ...]
    admission_limit: tuple[int | None, ...]

    @property
    def size(self) -> int:
        """Configurations in the space, counting no layer count twice where nothing is offloaded."""
        other = math.prod(n for i, n in enumerate(self.axes.shape) if i != 5)
        with_offload = sum(1 for n in self.offload_layers if n > 0) * sum(1 for n in self.axes.prefetch_buffers if n > 0)
        without = int(0 in self.offload_layers and 0 in self.axes.prefetch_buffers)
        return other * (with_offload + without) * len(self.max_num_seqs) * len(self.max_num_batched_tokens) * len(self.admission_limit)


def build_space(case: Case) -> Space:
    """The space that the scenario's engine block and search leave open."""
    values = {name: open_values(case, name) for name in VARIABLES if name != "draft_tokens"}
    _match_buffers(case, values)
    if any(n > 0 for n in values["offload_layers"]):
        _require_link(case)
        _require_layers(case, max(values["offload_layers"]), "search.offload_layers")
    axes = BranchAxes(
        tensor_parallel=values["tensor_parallel"], weight_format=values["weight_format"], kv_format=values["kv_format"],
        prefix_sharing=values["prefix_sharing"], speculation=_speculation(case, values["draft"]),
        prefetch_buffers=values["prefetch_buffers"], graphs=_graphs(case, values), prefill_chunk=values["prefill_chunk"],
    )  # fmt: skip
    return Space(
        axes, tuple(sorted(values["max_num_seqs"])), tuple(sorted(values["max_num_batched_tokens"])),
        tuple(sorted(values["offload_layers"])), values["admission_limit"],
    )  # fmt: skip


def pinned(case: Case) -> dict[str, Any]:
    """Variables that a search block leaves out and that could vary: each stays at the engine's default."""
    search, fixed = case.scenario.search, case.scenario.engine.fixed
    if search is None:
        return {}
    left = (
        v for name, v in VARIABLES.items() if name not in search and name not in fixed and name not in ("draft_tokens", "prefetch_buffers")
    )
    return {v.name: v.default(case) for v in left if len(v.domain(case)) > 1}


def left_out(case: Case) -> dict[str, tuple[str, ...]]:
    """Formats that the engine or the catalogue has and that a search does not try, since nobody says how right their answers are."""
    search, fixed = case.scenario.search, case.scenario.engine.fixed
    weights = () if case.calibration.weight_format in case.weights else tuple(case.weights)
    every = {"kv_format": tuple(f.value for f in KvFormat if f in case.engine.kv_formats), "weight_format": weights}
    tried = {name: {str(value) for value in VARIABLES[name].domain(case)} for name in every}
    free = (name for name in every if name not in fixed and (search is None or search.get(name) is None))
    found = {name: tuple(value for value in every[name] if value not in tried[name]) for name in free}
    return {name: values for name, values in found.items() if values}


def open_values(case: Case, name: str) -> tuple[Any, ...]:
    """Values that a variable may take: fixed, listed, its default, or its whole domain."""
    variable, scenario = VARIABLES[name], case.scenario
    if name in scenario.engine.fixed:
        if scenario.search and name in scenario.search:
            raise ContradictionError(
                "is fixed in the engine block and listed under search", path=f"search.{name}", way_out="keep one of them"
            )
        return (_typed(name, scenario.engine.fixed[name], f"engine.{name}"),)
    if scenario.search is None:
        return variable.domain(case)
    if name not in scenario.search:
        return (variable.default(case),)
    return listed_values(case, name, scenario.search[name])


def listed_values(case: Case, name: str, listed: Any) -> tuple[Any, ...]:
    """The values of a search entry: null, one value, a list, or {min, max, step}."""
    path = f"search.{name}"
    if listed is None:
        return VARIABLES[name].domain(case)
    if isinstance(listed, Mapping):
        return IntegerRange.parse(listed, path).values()
    plain = name == "captured_sizes" and isinstance(listed, list) and all(isinstance(v, int) for v in listed)
    values = listed if isinstance(listed, list) and not plain else [listed]
    if not values:
        raise InputError("lists no value", path=path, way_out="name at least one, or null for the whole domain")
    return tuple(dict.fromkeys(_typed(name, value, path) for value in values))


def _typed(name: str, value: Any, path: str) -> Any:
    """A value as its variable's type, checked by building a configuration around it."""
    if name in ("kv_format", "draft"):
        kinds: type[KvFormat | DraftSource] = KvFormat if name == "kv_format" else DraftSource
        if str(value) not in {k.value for k in kinds}:
            raise UnknownNameError.suggest(name.replace("_", " "), str(value), [k.value for k in kinds], path=path)
        return kinds(str(value))
    companions: dict[str, dict[str, Any]] = {
        "draft_tokens": {"draft": "lookup"},
        "offload_layers": {"prefetch_buffers": 1},
        "prefetch_buffers": {"offload_layers": 1},
    }
    other: dict[str, Any] = dict(companions.get(name, {})) if value else {}
    if name == "captured_sizes" and isinstance(value, list):
        value = tuple(value)
    if name == "weight_format":
        return str(value)
    built = Configuration.parse({"max_num_seqs": 1, "max_num_batched_tokens": 1} | other | {name: value}, path)
    return getattr(built, name)


def _require_layers(case: Case, offloaded: int, path: str) -> None:
    if offloaded > case.architecture.layer_count:
        raise ContradictionError(
            f"the model has {case.architecture.layer_count} layers", path=path, value=offloaded, way_out="offload at most all of them"
        )


def _require_link(case: Case) -> None:
    if case.host_link is None:
        raise NotCoveredError(
            f"no link from host memory is known for {case.device.id}",
            path="hardware.host_link",
            way_out="state it, or keep offload_layers at 0",
        )


def _match_buffers(case: Case, values: dict[str, tuple[Any, ...]]) -> None:
    """Offloaded layers need buffers and buffers need layers; open the missing half where only one was listed."""
    listed = case.scenario.search or {}
    if any(n > 0 for n in values["offload_layers"]) and not any(n > 0 for n in values["prefetch_buffers"]):
        zero = (0,) if 0 in values["offload_layers"] else ()
        values["prefetch_buffers"] = (*zero, 1, 2)
    mixed = 0 in values["offload_layers"] and any(n > 0 for n in values["offload_layers"])
    if mixed and "prefetch_buffers" in listed and 0 not in values["prefetch_buffers"]:
        values["prefetch_buffers"] = (0, *values["prefetch_buffers"])  # resident layers need none: they stay in the search
    if any(n > 0 for n in values["prefetch_buffers"]) and not any(n > 0 for n in values["offload_layers"]):
        if "prefetch_buffers" in listed or "prefetch_buffers" in case.scenario.engine.fixed:
            raise ContradictionError(
                "prefetch buffers without offloaded layers", path="search.prefetch_buffers", way_out="list offload_layers above 0"
            )
        values["prefetch_buffers"] = (0,)


def _speculation(case: Case, drafts: tuple[DraftSource, ...]) -> tuple[Speculation, ...]:
    search, fixed = case.scenario.search, case.scenario.engine.fixed
    found: list[Speculation] = []
    for draft in drafts:
        if draft is DraftSource.NONE:
            found.append((draft, 0))
            continue
        _require_length(case, draft)
        if "draft_tokens" in fixed:
            lengths: tuple[int, ...] = (_typed("draft_tokens", fixed["draft_tokens"], "engine.draft_tokens"),)
        elif search is None or search.get("draft_tokens", 0) is None:
            lengths = draft_lengths(case, draft)
        elif "draft_tokens" in search:
            lengths = tuple(n for n in listed_values(case, "draft_tokens", search["draft_tokens"]) if n > 0)
            if not lengths:
                raise InputError(
                    "lists no draft length above 0", path="search.draft_tokens", value=0, way_out=f"draft {draft} needs at least 1"
                )
        else:
            lengths = (default_draft_tokens(case, draft),)
        found.extend((draft, n) for n in lengths)
    return tuple(dict.fromkeys(found))


def _require_length(case: Case, draft: DraftSource) -> None:
    """A stated mean holds at one draft length: without it every draft of the shortest possible round would have to be accepted."""
    given, measured = case.request.speculation.get(draft), case.calibration.drafts.get(draft)
    reference = given is None or given.draft_tokens or (measured is not None and measured.draft_tokens)
    listed = (case.scenario.search or {}).get("draft_tokens")
    single = "draft_tokens" in case.scenario.engine.fixed or (listed is not None and len(listed_values(case, "draft_tokens", listed)) == 1)
    if given is not None and given.tokens_per_round is not None and not reference and not single:
        raise InputError(
            f"says {given.tokens_per_round:g} tokens a round, but not with how many draft tokens",
            path=f"workload.{case.class_name}.speculation.{draft.value}", value=f"tokens_per_round {given.tokens_per_round:g}",
            way_out="add draft_tokens, the length at which this mean was counted",
        )  # fmt: skip


def _graphs(case: Case, values: dict[str, tuple[Any, ...]]) -> tuple[Graphs, ...]:
    listed = "captured_sizes" in (case.scenario.search or {}) or "captured_sizes" in case.scenario.engine.fixed
    found: list[Graphs] = []
    for on in values["cuda_graphs"]:
        found.extend((on, sizes, not listed) for sizes in values["captured_sizes"]) if on else found.append((False, (), False))
    return tuple(dict.fromkeys(found))


def configuration_from(case: Case, given: Mapping[str, Any], path: str) -> Configuration:
    """A named candidate: its own values, the engine block's fixed ones, and defaults for the rest."""
    fixed = case.scenario.engine.fixed
    for name, value in given.items():
        if name in fixed and fixed[name] != value:
            raise ContradictionError(
                f"differs from engine.{name} = {fixed[name]}",
                path=f"{path}.{name}",
                value=value,
                way_out="a value in the engine block is fixed",
            )
    values = {name: _typed(name, value, f"{path}.{name}") for name, value in (fixed | dict(given)).items()}
    draft = values.get("draft", DraftSource.NONE)
    values.setdefault("draft_tokens", default_draft_tokens(case, draft))
    if values.get("offload_layers", 0) > 0:
        values.setdefault("prefetch_buffers", 1)
        _require_link(case)
        _require_layers(case, values["offload_layers"], f"{path}.offload_layers")
    for name, variable in VARIABLES.items():
        if name not in values and name != "captured_sizes":
            values[name] = variable.default(case)
    values.setdefault("captured_sizes", ())
    return Configuration.parse(values, path)
