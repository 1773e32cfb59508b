"""What a release of a serving engine can do and what it does when nothing is said.

The values live in ``models/catalog/engines``, each with its source; this module gives them types and two rules:
``Engine.captured_sizes`` (the shapes for which CUDA graphs are captured, ``captured`` below) and ``not_launchable``.

Notation: ``q`` = rows of one request in a decode step = draft_tokens + 1. A rule counts tokens (rows of a step) or requests, as its
``unit`` says; what leaves this module counts rows: a shape of n requests is n x q rows. Memory in bytes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from models.describe.base import Description
from models.describe.configuration import Configuration, DraftSource, KvFormat
from models.errors import InputError
from models.units import GIB

Positive = Annotated[int, Field(ge=1, strict=True)]
ALWAYS_SHORT = 1 << 40  # more new rows than any step has


class Admission(StrEnum):
    """Which requests the engine's own limit counts; it answers 503 beyond."""

    IN_FLIGHT = "in_flight"  # waiting and running
    QUEUED = "queued"  # waiting alone
    NONE = "none"  # no limit of its own


class PrefixSharing(StrEnum):
    """How far a cached prompt prefix reaches."""

    SHARED = "shared"  # blocks held once for all requests
    PER_SLOT = "per_slot"  # a slot reuses its own earlier prompt


class GraphSwitch(StrEnum):
    """How CUDA graphs are switched off."""

    SWITCH = "switch"  # an argument
    ENVIRONMENT = "environment"  # a variable of the process


class ChunkRule(StrEnum):
    """What bounds the new tokens of one prompt in a step."""

    EVERY_PROMPT = "every_prompt"  # its own argument
    LONG_PROMPTS_ONLY = "long_prompts_only"  # its own argument, not applied when the prompt is alone in its batch
    TOKEN_BUDGET = "token_budget"  # only the step's token budget


class Offload(Description):
    """How weights are kept in host memory."""

    kind: Literal["prefetch", "uva", "host_compute", "none"]
    max_prefetch_buffers: Annotated[int, Field(ge=0, le=2)]
    families: tuple[str, ...] = ()  # model families that it works for; empty: all


class CaptureRule(Description):
    """The default list of captured shapes: ``first``, then each (start, last, step) range, all up to a ceiling.

    ceiling = min(per_seq x max_num_seqs x (q if counts_draft_rows else 1), the fixed ceiling, the token budget when sizes are tokens).
    """

    unit: Literal["tokens", "requests"]
    first: tuple[Positive, ...]
    ranges: tuple[tuple[Positive, Positive | None, Positive], ...]
    draft_first: tuple[Positive, ...] = ()  # instead of ``first`` when drafting; empty: the same
    draft_ranges: tuple[tuple[Positive, Positive | None, Positive], ...] = ()
    per_seq: Positive
    counts_draft_rows: bool
    ceiling: Positive
    ceiling_datacentre_blackwell: Positive | None = None  # compute capability 10.x
    memory_ceilings: tuple[tuple[int, Positive, Positive], ...] = ()  # from GiB a device: ceiling below 4 ranks, from 4 ranks
    includes_token_budget: bool = False  # the budget itself is added when it is under the ceiling
    includes_ceiling: bool = False  # the ceiling itself is added
    includes_decode_sizes: bool = False  # whole decode batches (request counts x q) are added
    draft_rounding: bool = False  # every size is rounded up to a multiple of q


class SizeTier(Description):
    """Defaults of the two scheduler sizes from a device memory on; None: they follow from the pool."""

    from_gib: Annotated[int, Field(ge=0)]
    max_num_seqs: Positive | None
    max_num_batched_tokens: Positive
    except_devices: tuple[str, ...] = ()  # words in a device's name that the tier leaves to the next


class ShortRows(Description):
    """Attention of few new rows of a sequence runs another kernel than that of many."""

    tiled_from: Positive  # new rows of a sequence in one execution batch from which the kernel of long chunks runs
    kv_formats: tuple[KvFormat, ...]  # that this kernel exists for; a cache in another format never reaches it
    architectures: tuple[str, ...]  # first words of the device architectures that have two kernels


class Engine(Description):
    """One engine at one version. ``exact`` False: the rules are those of the nearest version that is not newer."""

    name: str
    title: str
    program: tuple[str, ...]
    version: str
    rules_version: str
    exact: bool
    date: str
    package: str
    sources: dict[str, str]
    block_tokens: Positive
    kv_formats: dict[KvFormat, str]  # to the engine's own spelling
    weight_formats: dict[str, str | None]  # what converts a 16-bit checkpoint at load ("quantization=fp8"); None: stored checkpoints only
    drafts: dict[DraftSource, str]  # to the engine's own spelling
    offload: Offload
    prefix_sharing: PrefixSharing
    cuda_graphs: GraphSwitch
    capture: CaptureRule | None  # None: no list of shapes
    admission: Admission
    tensor_parallel: bool
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None  # None: the engine computes it
    size_tiers: tuple[SizeTier, ...]  # largest memory first
    max_num_seqs_limit: Positive | None
    budget_covers_seqs: bool  # max_num_batched_tokens may not be below max_num_seqs
    prefill_chunk: ChunkRule
    separate_batches: bool = False  # decoders and prompts of a step run as execution batches of their own, each reading the weights
    short_rows: ShortRows | None = None  # None: one attention kernel

    @model_validator(mode="after")
    def _tiers_cover_every_device(self) -> Self:
        starts = [tier.from_gib for tier in self.size_tiers]
        if not starts or starts != sorted(set(starts), reverse=True) or starts[-1] != 0 or self.size_tiers[-1].except_devices:
            raise ValueError("size tiers must fall strictly to 0 GiB, the last for every device")
        return self

    @property
    def version_note(self) -> str:
        """A sentence for the answer when the rules are those of another version; empty otherwise."""
        if self.exact:
            return ""
        return f"{self.title} {self.version}: no rules of its own; those of {self.rules_version} are used"

    def tiled_from(self, architecture: str, kv_format: KvFormat) -> int:
        """New rows of a sequence from which attention runs its kernel for long chunks: 0 where there is but one, else never or a count."""
        rule = self.short_rows
        if rule is None or not architecture.startswith(rule.architectures):
            return 0
        return rule.tiled_from if kv_format in rule.kv_formats else ALWAYS_SHORT

    def default_sizes(self, device_memory: int, device: str = "") -> SizeTier:
        """Default ``max_num_seqs`` and ``max_num_batched_tokens`` on a device of ``device_memory`` bytes, ``device`` its name."""
        words = device.lower().replace("_", "-").replace(" ", "-").split("-")
        for tier in self.size_tiers:
            if device_memory >= tier.from_gib * GIB and not set(words) & set(tier.except_devices):
                return tier
        return self.size_tiers[-1]

    def captured_sizes(
        self, configuration: Configuration, *, device_memory: int | None = None, datacentre_blackwell: bool = False
    ) -> tuple[int, ...]:
        """Captured shapes in rows, ascending: the configuration's own, or the engine's default; empty without graphs or without a list."""
        if not configuration.cuda_graphs or self.capture is None:
            return ()
        if configuration.captured_sizes:
            return configuration.captured_sizes
        return _default_sizes(self.capture, configuration, device_memory, datacentre_blackwell=datacentre_blackwell)


def _ceiling(rule: CaptureRule, configuration: Configuration, device_memory: int | None, *, datacentre_blackwell: bool) -> int:
    """Largest captured size before the token budget cuts it."""
    ceiling = rule.ceiling
    if datacentre_blackwell and rule.ceiling_datacentre_blackwell is not None:
        ceiling = rule.ceiling_datacentre_blackwell
    if device_memory is not None:
        for from_gib, few_ranks, many_ranks in rule.memory_ceilings:
            if device_memory >= from_gib * GIB:
                ceiling = few_ranks if configuration.tensor_parallel < 4 else many_ranks
                break
    rows = configuration.draft_tokens + 1 if rule.counts_draft_rows else 1
    return min(rule.per_seq * configuration.max_num_seqs * rows, ceiling)


def _ladder(first: tuple[int, ...], ranges: tuple[tuple[int, int | None, int], ...], top: int) -> set[int]:
    """``first`` and the ranges, all at most ``top``."""
    steps = (size for start, last, step in ranges for size in range(start, min(top, last or top) + 1, step))
    return {size for size in (*first, *steps) if size <= top}


def _default_sizes(
    rule: CaptureRule, configuration: Configuration, device_memory: int | None, *, datacentre_blackwell: bool
) -> tuple[int, ...]:
    rows, budget = configuration.draft_tokens + 1, configuration.max_num_batched_tokens
    uncut = _ceiling(rule, configuration, device_memory, datacentre_blackwell=datacentre_blackwell)
    top = min(uncut, budget) if rule.unit == "tokens" else uncut
    drafting = rows > 1 and bool(rule.draft_first)
    sizes = _ladder(rule.draft_first, rule.draft_ranges, top) if drafting else _ladder(rule.first, rule.ranges, top)
    if rule.includes_ceiling:
        sizes.add(top)
    if rule.includes_token_budget and budget <= top:
        sizes.add(budget)
    if rule.includes_decode_sizes:
        counts = _ladder(rule.first, rule.ranges, configuration.max_num_seqs) if rows > 1 else set()
        sizes |= {n * rows for n in {*counts, configuration.max_num_seqs} if n * rows <= top}
    if rule.draft_rounding and rows > 1:
        sizes = {-(-size // rows) * rows for size in sizes if -(-size // rows) * rows <= max(sizes)}
    unit = rows if rule.unit == "requests" else 1
    return tuple(sorted(size * unit for size in sizes))


def not_launchable(configuration: Configuration, engine: Engine, family: str | None = None) -> tuple[str, ...]:
    """Why ``engine`` cannot run ``configuration`` (of a model of ``family``), in plain words; empty when it can."""
    checks = (_format_reasons, _draft_reasons, _size_reasons, _sharing_reasons, _graph_reasons)
    reasons = [reason for check in checks for reason in check(configuration, engine)]
    return (*reasons, *_offload_reasons(configuration, engine, family))


def _release(engine: Engine) -> str:
    return f"{engine.title} {engine.rules_version}"


def _format_reasons(configuration: Configuration, engine: Engine) -> list[str]:
    reasons = []
    if configuration.kv_format not in engine.kv_formats:
        reasons.append(f"{_release(engine)} has no {configuration.kv_format.value} KV cache (has {_listed(engine.kv_formats)})")
    if configuration.weight_format != "stored" and configuration.weight_format not in engine.weight_formats:
        reasons.append(f"{_release(engine)} loads no {configuration.weight_format} weights (loads {_listed(engine.weight_formats)})")
    return reasons


def _draft_reasons(configuration: Configuration, engine: Engine) -> list[str]:
    if configuration.draft is DraftSource.NONE or configuration.draft in engine.drafts:
        return []
    return [f"{_release(engine)} cannot draft with {configuration.draft.value} (can with {_listed(engine.drafts)})"]


def _offload_reasons(configuration: Configuration, engine: Engine, family: str | None) -> list[str]:
    if configuration.offload_layers == 0:
        return []
    if engine.offload.kind == "prefetch":
        known = engine.offload.families
        elsewhere = bool(known) and family is not None and family not in known
        return [f"{_release(engine)} offloads layers of {', '.join(known)} only, not of {family}"] if elsewhere else []
    why = {
        "uva": "reads offloaded weights through the link as they are used, without prefetch buffers",
        "host_compute": "computes the layers left in host memory on the host, it does not copy them to the device",
        "none": "keeps every layer on the device",
    }[engine.offload.kind]
    return [f"{_release(engine)} {why} (offload_layers {configuration.offload_layers}, prefetch_buffers {configuration.prefetch_buffers})"]


def _size_reasons(configuration: Configuration, engine: Engine) -> list[str]:
    reasons = []
    seqs, budget, limit = configuration.max_num_seqs, configuration.max_num_batched_tokens, engine.max_num_seqs_limit
    if limit is not None and seqs > limit:
        reasons.append(f"{_release(engine)} runs at most {limit} requests at once (max_num_seqs {seqs})")
    if engine.budget_covers_seqs and budget < seqs:
        reasons.append(f"{_release(engine)} needs max_num_batched_tokens >= max_num_seqs ({budget} < {seqs})")
    if configuration.tensor_parallel > 1 and not engine.tensor_parallel:
        reasons.append(f"{_release(engine)} has no tensor parallelism (tensor_parallel {configuration.tensor_parallel})")
    chunk = configuration.prefill_chunk
    if chunk is not None and chunk < budget and engine.prefill_chunk is ChunkRule.TOKEN_BUDGET:
        reasons.append(f"{_release(engine)} has no chunk apart from the token budget (prefill_chunk {chunk}, budget {budget})")
    return reasons


def _sharing_reasons(configuration: Configuration, engine: Engine) -> list[str]:
    if not configuration.prefix_sharing or engine.prefix_sharing is PrefixSharing.SHARED or configuration.max_num_seqs == 1:
        return []
    return [f"{_release(engine)} reuses a prefix inside one slot only; {configuration.max_num_seqs} requests do not share it"]


def _graph_reasons(configuration: Configuration, engine: Engine) -> list[str]:
    if not configuration.captured_sizes:
        return []
    rows = configuration.draft_tokens + 1
    if engine.capture is None or engine.capture.unit == "tokens" or any(size % rows == 0 for size in configuration.captured_sizes):
        return []  # an engine without a list captures every shape as it comes: a list asks for less than it does
    return [f"{_release(engine)} captures whole requests of {rows} rows; no captured size is a multiple"]


def _listed(names: dict[KvFormat, str] | dict[DraftSource, str] | dict[str, str | None]) -> str:
    return ", ".join(str(name) for name in names) or "none"


def parse_version(text: str, path: str = "engine.version") -> tuple[int, ...]:
    """Numbers of a version: ``0.23`` and ``v0.23.0`` agree up to zeros, ``b11549`` is a build; suffixes (rc, post) are left out."""
    digits = text.strip().lower().lstrip("vb").split("+")[0]
    numbers: list[int] = []
    for part in digits.split("."):
        leading = part[: len(part) - len(part.lstrip("0123456789"))]
        if not leading:
            break
        numbers.append(int(leading))
    if not numbers or len(text) > 40:
        raise InputError("not a version", path=path, value=text, way_out="write it like 0.23.0")
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
