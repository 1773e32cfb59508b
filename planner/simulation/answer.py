"""The answer of one simulated configuration: one schema for every way in. Seconds, bytes, tokens; a missing value is null."""

from __future__ import annotations

import math
from typing import Any

from models.simulation_summary import ClassSummary, Spread
from models.simulation_types import Status
from planner.answer import CalibrationUsed, Part
from planner.traffic.trial import Trial

SCHEMA_VERSION = "1"
UNANSWERED = {
    Status.TOO_LARGE: "too_large", Status.OVER_LIMIT: "over_limit", Status.LATE: "late", Status.CANCELLED: "cancelled",
    Status.HANDED_OVER: "handed_over",
}  # fmt: skip


class Percentiles(Part):
    """Nearest-rank percentiles over ``count`` values, seconds."""

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None


class SimulatedClass(Part):
    """One request class, or all of them. ``max_itl_s`` is over the longest gap of each request; rates are over the whole run."""

    requests: int
    finished: int
    good: int
    ttft_s: Percentiles
    max_itl_s: Percentiles
    tpot_s: Percentiles
    e2e_s: Percentiles
    queue_s: Percentiles
    requests_per_s: float
    goodput_per_s: float
    output_tokens_per_s: float


class Sample(Part):
    """State of the engine at one moment; tokens and preemptions count from the start."""

    time_s: float
    running: int
    waiting: int
    kv_bytes: int
    hit_rate: float
    preemptions: int
    recomputed_tokens: int


class Curve(Part):
    """One rate of the goodput curve (figures 8-33 and 8-34)."""

    rate_per_s: float
    throughput_per_s: float
    goodput_per_s: float
    share_good: float
    ttft_p95_s: float | None
    e2e_p95_s: float | None


class KneeFound(Part):
    """Highest rate at which every deadline holds at its percentile, with its interval.

    ``bounded`` false: it lies above the bracket. Rate 0: a deadline is missed even at ``high_per_s``, the slowest rate tried.
    """

    rate_per_s: float
    low_per_s: float
    high_per_s: float
    confidence: float
    seeds: int
    bounded: bool
    curve: tuple[Curve, ...]


class SimulationAnswer(Part):
    """What a simulated run came to. ``itl_s`` is over all gaps; ``kv_bytes`` and pool are of one device."""

    schema_version: str
    configuration: str
    settings: dict[str, Any]
    policy: str
    acceptance: str
    engine: str
    calibration: CalibrationUsed
    seed: int
    offered_per_s: float | None
    overall: SimulatedClass
    classes: dict[str, SimulatedClass]
    itl_s: Percentiles
    itl_resolution: float
    makespan_s: float
    busy_s: float
    iterations: int
    good_requests: float
    gpu_s_per_good: float | None
    joules_per_good: float | None
    peak_kv_bytes: int
    pool_bytes: int
    hit_rate: float
    preemptions: int
    recomputed_tokens: int
    evicted_blocks: int
    refused: dict[str, int]
    late: dict[str, tuple[float | None, float]]  # deadline missed at its percentile: (value, limit)
    overload: bool
    queue_growth_per_s: float
    samples: tuple[Sample, ...]
    knee: KneeFound | None
    warnings: tuple[str, ...]
    elapsed_s: float


def finite(value: float) -> float | None:
    """None for what does not exist."""
    return value if math.isfinite(value) else None


def percentiles(s: Spread) -> Percentiles:
    """A spread as a piece of the answer."""
    values = {name: finite(getattr(s, name)) for name in ("mean", "p50", "p90", "p95", "p99", "max")}
    return Percentiles(count=s.count, **values)


def simulated_class(one: ClassSummary) -> SimulatedClass:
    """A class summary as a piece of the answer."""
    return SimulatedClass(
        requests=one.requests, finished=one.finished, good=one.good, ttft_s=percentiles(one.ttft), max_itl_s=percentiles(one.max_itl),
        tpot_s=percentiles(one.tpot), e2e_s=percentiles(one.e2e), queue_s=percentiles(one.queue), requests_per_s=one.requests_per_s,
        goodput_per_s=one.goodput_per_s, output_tokens_per_s=one.output_tokens_per_s,
    )  # fmt: skip


def samples_of(trial: Trial) -> tuple[Sample, ...]:
    """State over time."""
    block = trial.inputs.pool_bytes / max(trial.inputs.engine.kv_blocks, 1)
    return tuple(
        Sample(
            time_s=float(s["time"]), running=int(s["running"]), waiting=int(s["waiting"]), kv_bytes=round(float(s["used_blocks"]) * block),
            hit_rate=float(s["hit_tokens"]) / float(s["lookup_tokens"]) if s["lookup_tokens"] else 0.0,
            preemptions=int(s["preemptions"]), recomputed_tokens=int(s["recomputed"]),
        )
        for s in trial.result.samples
    )  # fmt: skip


def refused_of(trial: Trial) -> dict[str, int]:
    """How many requests got no answer here, by reason: refused, given up by the client, gone to another instance."""
    counts = {name: int(trial.result.status(status).sum()) for status, name in UNANSWERED.items()}
    return {name: count for name, count in counts.items() if count}
