"""What a measured run says, in SI units, whatever tool wrote it down.

Units: seconds, bytes, tokens, 1/s, fractions (0 to 1). A value that the file does not hold is ``None``, never zero.

Statistics are mappings with the keys ``mean``, ``std``, ``min``, ``max`` and ``pNN`` (``p50`` is the median, ``p99.9`` is allowed).

    ttft  arrival or submission to first token      e2e   submission to last token
    tpot  (e2e - ttft) / (output tokens - 1), one value for each request
    itl   gap between two streamed chunks, one value for each gap (a chunk may hold several tokens)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

_STATISTIC = re.compile(r"^(mean|std|min|max|p\d{1,2}(\.\d+)?|p100)$")


def _statistic_names(values: dict[str, float]) -> dict[str, float]:
    for name, value in values.items():
        if not _STATISTIC.match(name):
            raise ValueError(f"not a statistic: {name}")
        if value < 0:
            raise ValueError(f"{name} is negative: {value}")
    return values


Statistics = Annotated[dict[str, float], AfterValidator(_statistic_names)]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
PositiveCount = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Record(BaseModel):
    """A frozen record; unknown fields, NaN and infinity are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Arrival(StrEnum):
    """How the load test offered its requests."""

    CLOSED = "closed"  # a fixed number of clients, each sends its next request when the last is answered
    OPEN = "open"  # at a rate, whatever the server does
    BURST = "burst"  # all at time zero, no limit on those in flight
    OFFLINE = "offline"  # one batch inside the process, no server
    TRACE = "trace"  # at recorded times
    SERVER = "server"  # seen from the server: what arrived is not known
    UNKNOWN = "unknown"


class StepKind(StrEnum):
    """What the rows of a step were."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"
    VERIFY = "verify"


class SequenceGroup(Record):
    """Sequences of one step that do the same: totals over the group, whose members are taken as equal."""

    sequences: PositiveCount
    new_tokens: Positive  # over the whole group
    context_tokens: NonNegative | None = None  # cached before the step, over the whole group

    @property
    def causal_pairs(self) -> float | None:
        """Query-key pairs c h + c (c + 1) / 2 of each member, summed (section 8.2.3); None where the context is not known."""
        if self.context_tokens is None:
            return None
        new, cached = self.new_tokens / self.sequences, self.context_tokens / self.sequences
        return self.sequences * (new * cached + new * (new + 1.0) / 2.0)


class StepObservation(Record):
    """Seconds of one engine step (median or mean over ``repeats`` measurements of this make-up)."""

    kind: StepKind
    groups: tuple[SequenceGroup, ...] = Field(min_length=1)
    seconds: Positive
    parts: PositiveCount = 1  # engine steps that ``seconds`` adds up (a prefill in that many chunks); 1 = one step
    repeats: PositiveCount = 1
    spread: NonNegative | None = None  # (largest - smallest) / median of the repeats, a fraction
    kv_usage: Fraction | None = None  # share of the KV pool in use
    resident_tokens: NonNegative | None = None  # KV tokens of all sequences, where only their sum is known
    includes_host: bool = True  # False: device time of the forward alone, without scheduling and sampling

    @property
    def sequences(self) -> int:
        return sum(group.sequences for group in self.groups)

    @property
    def new_tokens(self) -> float:
        return sum(group.new_tokens for group in self.groups)

    @property
    def context_tokens(self) -> float | None:
        """Cached tokens that the step reads, over all sequences; falls back to ``resident_tokens``."""
        known = [group.context_tokens for group in self.groups if group.context_tokens is not None]
        return sum(known) if len(known) == len(self.groups) else self.resident_tokens

    @property
    def causal_pairs(self) -> float | None:
        known = [pairs for group in self.groups if (pairs := group.causal_pairs) is not None]
        return sum(known) if len(known) == len(self.groups) else None


class ServingObservation(Record):
    """Aggregates of one load test, or of a window of one (``windows`` > 0: that many log lines of equal load)."""

    ttft: Statistics = {}
    tpot: Statistics = {}
    itl: Statistics = {}
    e2e: Statistics = {}
    duration: Positive | None = None
    completed: Count | None = None
    failed: Count | None = None
    requests_per_s: NonNegative | None = None
    good_requests_per_s: NonNegative | None = None
    input_tokens_per_s: NonNegative | None = None
    output_tokens_per_s: NonNegative | None = None
    total_tokens_per_s: NonNegative | None = None
    running: NonNegative | None = None  # mean requests in the engine's batch
    waiting: NonNegative | None = None
    in_flight: NonNegative | None = None  # mean requests between submission and last token (Little's law)
    kv_usage: Fraction | None = None
    prefix_hit_rate: Fraction | None = None  # of prompt tokens
    preemptions: Count | None = None
    acceptance_length: Annotated[float, Field(ge=1)] | None = None  # tokens a round, the bonus token included
    acceptance_rate: Fraction | None = None
    acceptance_by_position: tuple[Fraction, ...] = ()
    windows: Count = 0

    def finished_per_s(self, output_tokens: float | None) -> float | None:
        """Requests finished a second: counted, stated, or what the output rate means at ``output_tokens`` a request."""
        if self.completed and self.duration:
            return self.completed / self.duration
        if self.output_tokens_per_s and output_tokens and not self.requests_per_s:
            return self.output_tokens_per_s / output_tokens
        return self.requests_per_s or None


class MemoryObservation(Record):
    """Where an engine process says its memory went, for one rank."""

    rank: Count | None = None
    total_bytes: Count | None = None
    utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    weights_bytes: Count | None = None
    non_torch_bytes: Count | None = None
    activation_bytes: Count | None = None
    graph_bytes: Count | None = None
    kv_pool_bytes: Count | None = None
    kv_pool_tokens: Count | None = None
    kv_blocks: Count | None = None
    block_size: PositiveCount | None = None
    kv_dtype: str | None = None
    max_concurrency: NonNegative | None = None  # requests of ``max_concurrency_at`` tokens that the pool holds
    max_concurrency_at: PositiveCount | None = None
    fits: bool = True  # False: the engine refused to start


class Workload(Record):
    """What the load test offered. Lengths are tokens of one request."""

    arrival: Arrival = Arrival.UNKNOWN
    prompt_tokens: NonNegative | None = None  # mean
    output_tokens: NonNegative | None = None  # mean
    prompt_lengths: Statistics = {}
    output_lengths: Statistics = {}
    shared_prefix_tokens: NonNegative | None = None
    requests: Count | None = None
    rate: Positive | None = None  # requests a second; None unless arrival is open
    burstiness: Positive | None = None  # shape of the gamma arrivals, 1 = Poisson
    concurrency: PositiveCount | None = None  # limit on requests in flight
    ramp: NonNegative | None = None  # seconds over which the clients of a closed loop started
    dataset: str | None = None


class RunSetup(Record):
    """What is known of the engine process; names as in ``models.describe.configuration``."""

    engine: str | None = None
    engine_version: str | None = None
    model: str | None = None
    device: str | None = None
    device_count: PositiveCount | None = None
    precision: str | None = None
    weight_format: str | None = None
    kv_format: str | None = None
    tensor_parallel: PositiveCount | None = None
    pipeline_parallel: PositiveCount | None = None
    data_parallel: PositiveCount | None = None
    expert_parallel: PositiveCount | None = None
    attention_data_parallel: bool | None = None
    disaggregated: bool | None = None
    max_num_seqs: PositiveCount | None = None
    max_num_batched_tokens: PositiveCount | None = None
    max_model_len: PositiveCount | None = None
    block_size: PositiveCount | None = None
    memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    prefix_sharing: bool | None = None
    chunked_prefill: bool | None = None
    cuda_graphs: bool | None = None
    draft: str | None = None
    draft_tokens: Count | None = None
    flags: dict[str, str] = {}  # everything else that the engine was told, as written


class Source(Record):
    """Where a run came from."""

    file: str
    line: PositiveCount | None = None
    where: str = ""  # place inside the file: ``[3]``, ``benchmarks[1]``
    file_sha256: str


class RunRecord(Record):
    """One measured run. ``content_hash`` covers what was measured, not the file's name, layout or what the user added."""

    format: str
    source: Source
    content_hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    measured_at: str | None = None
    setup: RunSetup = RunSetup()
    workload: Workload = Workload()
    steps: tuple[StepObservation, ...] = ()
    serving: tuple[ServingObservation, ...] = ()
    memory: tuple[MemoryObservation, ...] = ()
    metadata: dict[str, str] = {}
    missing: tuple[str, ...] = ()  # names of the facts that the user must add, as in ``Ask.name``
    warnings: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _measured(self) -> Self:
        if not (self.steps or self.serving or self.memory):
            raise ValueError("a run without any observation")
        return self


class Refusal(Record):
    """Something that was not imported, and why. ``ignored``: a companion file that holds no result by nature."""

    file: str
    line: PositiveCount | None = None
    where: str = ""
    reason: str
    ignored: bool = False

    def __str__(self) -> str:
        place = ":".join([self.file, *([str(self.line)] if self.line else [])])
        return f"{place}{' ' + self.where if self.where else ''}: {self.reason}"


class Duplicate(Record):
    """A run whose content was seen before."""

    file: str
    line: PositiveCount | None = None
    where: str = ""
    content_hash: str
    first_seen: str  # file (and line) of the first, or ``stored``


class Ask(Record):
    """A fact that files do not say: the option that supplies it and how many runs lack it."""

    name: str  # ``device``
    option: str  # ``--device``
    runs: PositiveCount
    example_file: str


class ImportReport(Record):
    """What an import did. ``imported`` holds every good run, also those with ``missing`` facts."""

    imported: tuple[RunRecord, ...] = ()
    refused: tuple[Refusal, ...] = ()
    ignored: tuple[Refusal, ...] = ()
    duplicates: tuple[Duplicate, ...] = ()
    asks: tuple[Ask, ...] = ()

    @property
    def complete(self) -> tuple[RunRecord, ...]:
        """Runs that lack nothing."""
        return tuple(run for run in self.imported if not run.missing)

    @property
    def by_format(self) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        for run in self.imported:
            counts[run.format] = counts.get(run.format, 0) + 1
        return counts
