"""A calibration: which step model describes a (device, engine, model, precision), with which parameters, from which runs.

Catalogue files and fitted calibrations share this description. All numbers are SI: seconds, bytes, FLOP/s, watts.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from models.describe.base import Description
from models.describe.configuration import DraftSource, KvFormat

Efficiency = Annotated[float, Field(gt=0.0, le=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]


class EfficiencyPoint(Description):
    """Measured share of the dense peak at a batch of equal prompts."""

    batch: Annotated[int, Field(ge=1)]
    prompt: Annotated[int, Field(ge=1)]
    value: Efficiency


class EfficiencyTable(Description):
    """Phase time = matrix FLOPs / (peak x efficiency); nearest point in (log batch, log prompt). Host time is inside."""

    form: Literal["efficiency_table"]
    points: Annotated[tuple[EfficiencyPoint, ...], Field(min_length=1)]


class Affine(Description):
    """Round time = fixed + per_byte x bytes read; host time is inside."""

    form: Literal["affine"]
    fixed_s: NonNegative
    per_byte_s: NonNegative
    context: Literal["prompt", "mean"]  # the KV read of a round: the prompt, or the mean over the rounds


class Table(Description):
    """Round time, piecewise linear through (bytes read, seconds), extended by the end pieces; host time is inside."""

    form: Literal["table"]
    points: Annotated[tuple[tuple[float, float], ...], Field(min_length=2)]
    context: Literal["prompt", "mean"]

    @model_validator(mode="after")
    def _increasing(self) -> Self:
        reads = [x for x, _ in self.points]
        if sorted(set(reads)) != reads:
            raise ValueError("table points must be strictly increasing in bytes")
        return self


class LinearIteration(Description):
    """Any iteration = fixed + per new token + per causal pair (decode rows are new tokens too)."""

    form: Literal["linear"]
    fixed_s: NonNegative
    per_new_token_s: NonNegative
    per_causal_pair_s: NonNegative


class Physical(Description):
    """Parameters of the PHYSICAL form in ``models/kernels/step.py``."""

    form: Literal["physical"]
    matmul_efficiency: Efficiency
    half_rows: NonNegative
    attention_efficiency: Efficiency
    bandwidth_efficiency: Efficiency
    overlap: Annotated[float, Field(ge=0.0, le=1.0)]
    host_eager_s: NonNegative
    host_graph_s: NonNegative
    host_per_sequence_s: NonNegative
    host_overlap: Annotated[float, Field(ge=0.0, le=1.0)]
    short_pair_cost: dict[KvFormat, Annotated[float, Field(gt=0.0)]] = {}  # g of ``priced_pairs``: engines with two attention kernels
    kv_conversion_s_per_byte: dict[KvFormat, NonNegative] = {}  # of KV read in that format
    all_reduce_latency_s: NonNegative  # of one all-reduce; two a layer
    link_efficiency: Efficiency


PrefillForm = Annotated[EfficiencyTable | LinearIteration | Physical, Field(discriminator="form")]
DecodeForm = Annotated[Affine | Table | LinearIteration | Physical, Field(discriminator="form")]


class DraftCost(Description):
    """Measured cost of a draft source on this card and model."""

    draft_tokens: Annotated[int, Field(ge=1)] | None = None  # the length that was measured
    memory_bytes: Annotated[int, Field(ge=0)]  # weights, KV and buffers of the draft; charged to kv_budget
    prefill_factor: Annotated[float, Field(ge=1.0)] = 1.0
    round_extra_s: NonNegative = 0.0  # beyond the verification round


class Uncertainty(Description):
    """Standard deviation of the logarithm of a phase's time around its prediction."""

    prefill_log_sd: NonNegative
    decode_log_sd: NonNegative
    source: str


class Span(Description):
    """From the least to the greatest value."""

    least: NonNegative
    most: NonNegative

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least {self.least} exceeds most {self.most}")
        return self

    def distance(self, other: Span) -> tuple[float, str]:
        """By which factor ``other`` leaves this span, and on which side; at most 1: it does not."""
        above = other.most / self.most if self.most > 0 else 1.0
        below = self.least / other.least if other.least > 0 else 1.0
        return (above, "above") if above >= below else (below, "below")


class Covered(Description):
    """What the measurements behind a calibration cover; None where they say nothing. Tokens and sequences."""

    batch: Span | None = None  # sequences that decode in one step
    context: Span | None = None  # tokens before a row that decodes
    prompt: Span | None = None  # tokens of a request's prompt
    step_tokens: Span | None = None  # new tokens of a step that prefills


class Source(Description):
    """Where numbers come from and when they were read."""

    what: str
    reference: str
    date: str


class Calibration(Description):
    """Step model and parameters; ``device``/``engine``/``model`` None means: any (a specification prior)."""

    name: str
    version: str
    device: str | None
    engine: str | None
    engine_version: str | None
    model: str | None
    weight_format: str | None
    tensor_parallel: Annotated[int, Field(ge=1)] | None
    cuda_graphs: bool | None
    peak_flops: float | None = None  # the peak that the efficiencies refer to, where it is not the device's BF16 peak
    prefill: PrefillForm
    decode: DecodeForm
    shared_prefix_read: Literal["once", "each"]  # how the attention kernel reads a shared prefix
    kv_conversion_s: dict[KvFormat, NonNegative] = {}  # added to a round
    drafts: dict[DraftSource, DraftCost] = {}
    power_cap_w: Annotated[float, Field(gt=0)] | None = None
    request_s: NonNegative = 0.0  # of a request outside the engine's steps, until its first token is at the client
    delivery_s: NonNegative = 0.0  # client's interval minus the engine's round, measured at batch 1
    answers_latest: bool = False  # whether ``calibration: latest`` may choose it
    uncertainty: Uncertainty
    covered: Covered | None = None
    notes: tuple[str, ...] = ()
    sources: Annotated[tuple[Source, ...], Field(min_length=1)]
