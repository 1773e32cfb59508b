"""The registry of decision variables and the space that a scenario leaves open.

A variable has a domain (what the model, the engine, the card and the calibration allow), a unit and what it does. A value fixed
in the scenario's engine block is fixed; a variable listed under ``search`` varies over the listed values (null: its whole domain);
without a search block everything varies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.case import BranchAxes, Case, Graphs, Speculation
from models.describe.configuration import Configuration, DraftSource, KvFormat
from models.describe.engine import PrefixSharing
from models.describe.scenario import IntegerRange
from models.errors import ContradictionError, InputError, NotCoveredError, UnknownNameError
from models.facts import check_tensor_parallel

CHUNK_STEP = 16
LARGEST_BUDGET = 32768
LONGEST_DRAFT = 15


ENGINE_FLAGS: dict[str, tuple[str | None, str | None, str | None, str | None]] = {
    "max_num_seqs": ("--max-num-seqs", "--max-running-requests", "--parallel", "max_batch_size"),
    "max_num_batched_tokens": ("--max-num-batched-tokens", "--max-prefill-tokens", "--batch-size", "max_num_tokens"),
    "prefill_chunk": ("--long-prefill-token-threshold", "--chunked-prefill-size", None, None),
    "kv_format": ("--kv-cache-dtype", "--kv-cache-dtype", "--cache-type-k", "kv_cache_config"),
    "weight_format": ("--quantization", "--quantization", None, None),
    "prefix_sharing": ("--enable-prefix-caching", "--disable-radix-cache", "--cache-prompt", "enable_block_reuse"),
    "offload_layers": ("--offload-group-size", "--offload-group-size", "--gpu-layers", None),
    "prefetch_buffers": ("--offload-prefetch-step", "--offload-prefetch-step", None, None),
    "draft": ("--speculative-config", "--speculative-algorithm", "--spec-type", "decoding_type"),
    "draft_tokens": ("num_speculative_tokens", "--speculative-num-draft-tokens", "--spec-draft-n-max", "max_draft_len"),
    "admission_limit": ("--max-num-queued-reqs", "--max-queued-requests", None, None),
    "tensor_parallel": ("--tensor-parallel-size", "--tp-size", "--tensor-split", "tensor_parallel_size"),
    "cuda_graphs": ("--enforce-eager", "--cuda-graph-backend-decode", "GGML_CUDA_DISABLE_GRAPHS", "cuda_graph_config"),
    "captured_sizes": ("--cudagraph-capture-sizes", "--cuda-graph-bs-decode", None, "batch_sizes"),
}


@dataclass(frozen=True)
class Variable:
    """One decision variable: its name in scenarios, unit, meaning and whole domain for a case."""

    name: str
    unit: str
    meaning: str
    domain: Callable[[Case], tuple[Any, ...]]
    default: Callable[[Case], Any]

    @property
    def flags(self) -> dict[str, str | None]:
        """The newest release's own argument by engine; None where it has none (``planner.launch`` renders by version)."""
        return dict(zip(("vllm", "sglang", "llama_cpp", "trtllm"), ENGINE_FLAGS[self.name], strict=True))


def _sequences(case: Case) -> tuple[int, ...]:
    return tuple(range(1, most_sequences(case) + 1))


def most_sequences(case: Case) -> int:
    """Upper end of ``max_num_seqs``: the engine's limit, or its largest default where it states none."""
    tiers = [tier.max_num_seqs or 0 for tier in case.engine.size_tiers]
    return case.engine.max_num_seqs_limit or max(*tiers, 1024)


def _budgets(_case: Case) -> tuple[int, ...]:
    return tuple(range(CHUNK_STEP, LARGEST_BUDGET + 1, CHUNK_STEP))


def _kv_formats(case: Case) -> tuple[KvFormat, ...]:
    return tuple(f for f in KvFormat if f in case.engine.kv_formats)


def _sharing(case: Case) -> tuple[bool, ...]:
    something = case.request.shared_prefix_tokens > 0 or case.request.samples > 1
    return (False, True) if something and case.engine.prefix_sharing is PrefixSharing.SHARED else (False,)


def _offload(case: Case) -> tuple[int, ...]:
    possible = case.engine.offload.kind == "prefetch" and case.host_link is not None
    return tuple(range(case.architecture.layer_count + 1)) if possible else (0,)


def _buffers(case: Case) -> tuple[int, ...]:
    return tuple(range(case.engine.offload.max_prefetch_buffers + 1)) if len(_offload(case)) > 1 else (0,)


def _drafts(case: Case) -> tuple[DraftSource, ...]:
    return (DraftSource.NONE, *(d for d in DraftSource if d in case.request.speculation and d in case.engine.drafts))


def _parallel(case: Case) -> tuple[int, ...]:
    fixed = case.calibration.tensor_parallel
    return tuple(
        tp for tp in range(1, case.scenario.hardware.count + 1)
        if (fixed in (None, tp)) and _divides(case, tp)
    )  # fmt: skip


def _divides(case: Case, tp: int) -> bool:
    try:
        check_tensor_parallel(case.architecture, tp)
    except ContradictionError:
        return False
    return True


def _graphs_allowed(case: Case) -> tuple[bool, ...]:
    fixed = case.calibration.cuda_graphs
    return (False, True) if fixed is None else (fixed,)


def _weight_formats(case: Case) -> tuple[str, ...]:
    fixed = case.calibration.weight_format
    return (fixed,) if fixed in case.weights else tuple(case.weights)


def draft_lengths(case: Case, draft: DraftSource) -> tuple[int, ...]:
    """Lengths for which the scenario says what a draft yields: all up to 15, or the only one that a bare mean supports."""
    if draft is DraftSource.NONE or draft not in case.request.speculation:
        return (0,) if draft is DraftSource.NONE else (1,)
    given = case.request.speculation[draft]
    measured = case.calibration.drafts.get(draft)
    reference = given.draft_tokens or (measured.draft_tokens if measured else None)
    if given.tokens_per_round is not None and reference is None:
        return (max(1, math.ceil(given.tokens_per_round) - 1),)
    return tuple(range(1, max(LONGEST_DRAFT, reference or 0) + 1))


def default_draft_tokens(case: Case, draft: DraftSource) -> int:
    """The length at which the draft was measured, else the shortest that can yield the stated mean."""
    if draft is DraftSource.NONE:
        return 0
    given = case.request.speculation.get(draft)
    measured = case.calibration.drafts.get(draft)
    if given is not None and given.draft_tokens is not None:
        return given.draft_tokens
    if measured is not None and measured.draft_tokens is not None:
        return measured.draft_tokens
    if given is not None and given.acceptance is not None:
        return len(given.acceptance)
    return draft_lengths(case, draft)[0]


def capture_sets(case: Case) -> tuple[tuple[int, ...], ...]:
    """Captured sizes worth trying, in sequences: none (the engine's own list), powers of two, the one of a full round."""
    most = min(case.requests * case.request.samples, most_sequences(case))
    if case.engine.capture is None:
        return ((),)
    powers = tuple(1 << i for i in range(max(most - 1, 1).bit_length() + 1))
    return tuple(dict.fromkeys(((), powers, (most,))))


def default_sizes(case: Case) -> tuple[int, int]:
    """The engine's own ``max_num_seqs`` and ``max_num_batched_tokens`` on this device."""
    tier = case.engine.default_sizes(case.device.memory_bytes, case.device.id)
    return tier.max_num_seqs or most_sequences(case), tier.max_num_batched_tokens


VARIABLES: dict[str, Variable] = {v.name: v for v in (
    Variable("max_num_seqs", "sequences", "sequences that run at once", _sequences, lambda case: default_sizes(case)[0]),
    Variable("max_num_batched_tokens", "tokens", "token budget of a step: prefill chunks and decode rows together", _budgets,
             lambda case: default_sizes(case)[1]),
    Variable("prefill_chunk", "tokens", "most new tokens of one request in a step", lambda _case: (None,), lambda _case: None),
    Variable("kv_format", "format", "how cached keys and values are stored", _kv_formats, lambda _case: KvFormat.BF16),
    Variable("weight_format", "format", "which published checkpoint of the model is loaded", _weight_formats,
             lambda case: case.stored_format),
    Variable("prefix_sharing", "on or off", "keep a common prefix once", _sharing, lambda _case: False),
    Variable("offload_layers", "layers", "layers whose FFN weights stay in host memory", _offload, lambda _case: 0),
    Variable("prefetch_buffers", "buffers", "device buffers for the next offloaded layers", _buffers, lambda _case: 0),
    Variable("draft", "source", "where draft tokens come from", _drafts, lambda _case: DraftSource.NONE),
    Variable("draft_tokens", "tokens", "draft tokens of a round", lambda _case: (), lambda _case: None),
    Variable("admission_limit", "requests", "most requests in the system", lambda case: (None, *range(1, case.requests + 1)),
             lambda _case: None),
    Variable("tensor_parallel", "devices", "devices that share each layer", _parallel, lambda _case: 1),
    Variable("cuda_graphs", "on or off", "replay captured graphs instead of launching kernels", _graphs_allowed,
             lambda case: _graphs_allowed(case)[-1]),
    Variable("captured_sizes", "rows", "row counts of the captured graphs", capture_sets, lambda _case: ()),
)}  # fmt: skip
"""Every decision variable by name; a test holds it against ``Configuration``'s fields."""


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
