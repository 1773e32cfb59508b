"""Percentiles, goodput and cost of a simulated run. Nearest-rank percentiles; client times count from the planned arrival.

The gaps of ``itl`` are all gaps between deliveries of all requests (a speculative round delivers once); ``max_itl`` is the
longest gap of each request. ``itl`` is exact unless ``itl_resolution`` says 2^-14 (relative),
for runs beyond half a million entries (some 200,000 requests).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from models.kernels import scheduler_state as memory
from models.simulation_types import Floats, Records, SimulationResult, Status

PERCENTS = (50, 90, 95, 99)


@dataclass(frozen=True)
class Spread:
    """Mean, percentiles and maximum of one metric (s); NaN where there is no value."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


EMPTY = Spread(0, math.nan, math.nan, math.nan, math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class ClassSummary:
    """One request class (or all). Rates are for each second from the first arrival to the last completion."""

    requests: int
    finished: int
    good: int
    refused: int
    ttft: Spread
    tpot: Spread
    e2e: Spread
    queue: Spread
    max_itl: Spread
    requests_per_s: float
    goodput_per_s: float
    output_tokens_per_s: float


@dataclass(frozen=True)
class SimulationSummary:
    """Everything a user asks of a run."""

    overall: ClassSummary
    by_class: dict[str, ClassSummary]
    itl: Spread
    itl_resolution: float
    makespan_s: float
    busy_s: float
    iterations: int
    gpu_s_per_good: float | None
    joules_per_good: float | None
    hit_rate: float
    preemptions: int
    recomputed_tokens: int
    peak_kv_blocks: int
    evicted_blocks: int
    overload: bool
    queue_growth_per_s: float


def nearest_rank(count: int, percent: float) -> int:
    """ceil(p n / 100), at least 1."""
    return max(1, math.ceil(percent * count / 100 - 1e-9))


def spread(values: Floats) -> Spread:
    """Nearest-rank spread of plain values, which it reorders."""
    from models.kernels.statistics import value_ranks  # noqa: PLC0415  compiled code loads only where something is simulated

    count = len(values)
    if count == 0:
        return EMPTY
    mean, longest = float(values.mean()), float(values.max())
    p50, p90, p95, p99 = value_ranks(values, [nearest_rank(count, percent) for percent in PERCENTS])
    return Spread(count, mean, p50, p90, p95, p99, longest)


def gap_spread(result: SimulationResult) -> tuple[Spread, float]:
    """All gaps of all requests, and the relative resolution of their percentiles (0: exact)."""
    from models.kernels.gap_ranks import gap_ranks  # noqa: PLC0415  compiled code loads only where something is simulated

    counters, count = result.counters, int(result.counters["gap_count"])
    if count == 0:
        return EMPTY, 0.0
    ranks = [nearest_rank(count, percent) for percent in PERCENTS]
    mean, longest = counters["gap_total"] / count, counters["gap_max"]
    if not counters["gaps_binned"]:
        p50, p90, p95, p99 = gap_ranks(result.gaps, ranks, count)
        return Spread(count, mean, p50, p90, p95, p99, longest), 0.0
    from models.kernels.scheduler_events import fold_log  # noqa: PLC0415

    folded = result.histogram.copy()
    fold_log(result.gaps, folded)
    place = np.searchsorted(np.cumsum(folded), ranks)
    steps = 1 << memory.HISTOGRAM_BITS
    middle = np.ldexp(1.0 + ((place % steps) + 0.5) / steps, place // steps + memory.HISTOGRAM_LOW)
    p50, p90, p95, p99 = (float(min(value, longest)) for value in middle)
    return Spread(count, mean, p50, p90, p95, p99, longest), 2.0**-memory.HISTOGRAM_BITS


def _measure(result: SimulationResult, klass: int, half: float = 0.0, last: float = 0.0) -> tuple[Records, Floats]:
    """Counts and metrics (s, as the client sees them: delivery included) of the finished requests of one class, -1: all.

    Those waiting are counted at half the arrivals' time and at the last of them.
    """
    from models.kernels import statistics  # noqa: PLC0415

    totals, metrics = np.zeros(1, statistics.TOTALS), np.empty((statistics.METRICS, len(result.records)))
    kinds = np.zeros(0, np.int64) if result.requests.klass is None else result.requests.klass
    limits = np.zeros((0, 4)) if result.deadlines is None else result.deadlines.table()
    statistics.measure(result.records, result.requests.output, kinds, klass, limits, result.engine.delivery_s, half, last, metrics, totals)
    if result.requests.branches is not None:
        mine = (result.records["status"] == Status.FINISHED) & (True if klass < 0 else kinds == klass)
        totals["output_tokens"] = (result.requests.output * result.requests.branches)[mine].sum()
    return totals[0], metrics


def good_requests(result: SimulationResult) -> int:
    """Requests that finished within every deadline of their class."""
    return int(_measure(result, -1)[0]["good"])


def _class(totals: Records, metrics: Floats, span: float) -> ClassSummary:
    from models.kernels import statistics  # noqa: PLC0415

    requests, finished, several, good, output_tokens = totals.tolist()[:5]
    return ClassSummary(
        requests=requests, finished=finished, good=good, refused=requests - finished,
        ttft=spread(metrics[statistics.TTFT, :finished]), tpot=spread(metrics[statistics.TPOT, :several]),
        e2e=spread(metrics[statistics.E2E, :finished]), queue=spread(metrics[statistics.QUEUE, :finished]),
        max_itl=spread(metrics[statistics.LONGEST, :several]),
        requests_per_s=finished / span, goodput_per_s=good / span, output_tokens_per_s=output_tokens / span,
    )  # fmt: skip


def _overload(more: float, arrivals: float) -> bool:
    """Whether a queue that is ``more`` requests longer after these arrivals grows: by 5 % of them and by two deviations of their number."""
    return more > max(0.05 * arrivals, 2 * math.sqrt(arrivals))


def summarise(result: SimulationResult, *, watts: float | None = None) -> SimulationSummary:
    """The figures of one run. ``watts`` (a power cap) gives joules as an upper bound while the engine is busy."""
    counters = result.counters
    first, last = counters["first_arrival"], counters["last_arrival"]
    half = (first + last) / 2
    totals, metrics = _measure(result, -1, half, last)
    makespan = float(totals["last_end"])
    span = max(makespan - first, 1e-12) if math.isfinite(first) else 1e-12
    overall = _class(totals, metrics, span)
    names = () if result.requests.klass is None else result.requests.class_names
    by_class = {name: _class(*_measure(result, place), span) for place, name in enumerate(names)}
    itl, resolution = gap_spread(result)
    growth = float(totals["waiting_last"] - totals["waiting_half"]) / (last - half) if last > half else 0.0
    looked = counters["lookups_tokens"]
    return SimulationSummary(
        overall=overall, by_class=by_class, itl=itl, itl_resolution=resolution, makespan_s=makespan, busy_s=counters["busy_s"],
        iterations=int(counters["iterations"]), gpu_s_per_good=span / overall.good if overall.good else None,
        joules_per_good=watts * counters["busy_s"] / overall.good if overall.good and watts is not None else None,
        hit_rate=counters["hit_tokens"] / looked if looked else 0.0, preemptions=int(counters["preemptions"]),
        recomputed_tokens=int(counters["recomputed"]), peak_kv_blocks=int(counters["peak_blocks"]), evicted_blocks=int(counters["evicted"]),
        overload=_overload(growth * (last - first) / 2, overall.requests / 2), queue_growth_per_s=growth,
    )  # fmt: skip
