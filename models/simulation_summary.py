"""Percentiles, goodput and cost of a simulated run. Nearest-rank percentiles; client times count from the planned arrival.

The gaps of ``itl`` are all gaps between deliveries of all requests (a speculative round delivers once); ``max_itl`` is the
longest gap of each request. ``itl`` is exact unless ``itl_resolution`` says 2^-14 (relative),
for runs beyond half a million entries (some 200,000 requests).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.kernels import scheduler_state as memory
from models.simulation_types import Floats, SimulationResult, Status

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
    """Nearest-rank spread of plain values, none of them negative."""
    from models.kernels.statistics import value_ranks  # noqa: PLC0415  compiled code loads only where something is simulated

    count = len(values)
    if count == 0:
        return EMPTY
    p50, p90, p95, p99 = value_ranks(values, [nearest_rank(count, percent) for percent in PERCENTS])
    return Spread(count, float(values.mean()), p50, p90, p95, p99, float(values.max()))


def gap_spread(result: SimulationResult) -> tuple[Spread, float]:
    """All gaps of all requests, and the relative resolution of their percentiles (0: exact)."""
    from models.kernels.statistics import gap_ranks  # noqa: PLC0415  compiled code loads only where something is simulated

    counters, count = result.counters, int(result.counters["gap_count"])
    if count == 0:
        return EMPTY, 0.0
    ranks = [nearest_rank(count, percent) for percent in PERCENTS]
    mean, longest = counters["gap_total"] / count, counters["gap_max"]
    if not counters["gaps_binned"]:
        p50, p90, p95, p99 = gap_ranks(result.gaps, ranks)
        return Spread(count, mean, p50, p90, p95, p99, longest), 0.0
    from models.kernels.scheduler_events import fold_entries  # noqa: PLC0415

    folded = result.histogram.copy()
    fold_entries(result.gaps, folded)
    place = np.searchsorted(np.cumsum(folded), ranks)
    steps = 1 << memory.HISTOGRAM_BITS
    middle = np.ldexp(1.0 + ((place % steps) + 0.5) / steps, place // steps + memory.HISTOGRAM_LOW)
    p50, p90, p95, p99 = (float(min(value, longest)) for value in middle)
    return Spread(count, mean, p50, p90, p95, p99, longest), 2.0**-memory.HISTOGRAM_BITS


def good_requests(result: SimulationResult) -> npt.NDArray[np.bool_]:
    """Finished within every deadline of its class, as the client sees it (delivery included)."""
    r, late = result.records, result.engine.delivery_s
    good = r["status"] == Status.FINISHED
    if result.deadlines is None:
        return np.asarray(good)
    table = result.deadlines.table()
    limit = table[np.zeros(len(r), np.int64) if result.requests.klass is None else result.requests.klass]
    tpot = (r["last"] - r["first"]) / np.maximum(result.requests.output - 1, 1)
    metrics = (r["first"] - r["arrival"] + late, r["last"] - r["arrival"] + late, r["max_gap"], tpot)
    for column, metric in enumerate(metrics):
        if np.isfinite(limit[:, column]).any():
            good &= metric <= limit[:, column]
    return np.asarray(good)


def _class(result: SimulationResult, chosen: npt.NDArray[np.bool_] | None, good: npt.NDArray[np.bool_], span: float) -> ClassSummary:
    from models.kernels import statistics  # noqa: PLC0415

    r, output, late = result.records, result.requests.output, result.engine.delivery_s
    done = r["status"] == Status.FINISHED
    kept = done if chosen is None else done & chosen
    finished, everybody = int(kept.sum()), bool(kept.all())
    pick, values = np.zeros(0, np.bool_) if everybody else kept, np.empty(finished)

    def measured(metric: int, delivery: float = 0.0) -> Spread:
        found = statistics.request_metric(r, output, pick, metric, values)
        if delivery:
            values[:found] += delivery
        return spread(values[:found])

    requests = len(r) if chosen is None else int(chosen.sum())
    fine = int(good.sum()) if chosen is None else int((good & chosen).sum())
    return ClassSummary(
        requests=requests, finished=finished, good=fine, refused=requests - finished,
        ttft=measured(statistics.TTFT, late), tpot=measured(statistics.TPOT), e2e=measured(statistics.E2E, late),
        queue=measured(statistics.QUEUE), max_itl=measured(statistics.LONGEST),
        requests_per_s=finished / span, goodput_per_s=fine / span,
        output_tokens_per_s=float((output if everybody else output[kept]).sum()) / span,
    )  # fmt: skip


def _growth(result: SimulationResult) -> float:
    """Requests a second by which the queue grows while traffic arrives: slope of the waiting count over the arrival span."""
    from models.kernels.statistics import waiting_at  # noqa: PLC0415

    records = result.records
    end, begin = float(records["arrival"].max(initial=0.0)), float(records["arrival"].min(initial=0.0))
    half = (max(begin, 0.0) + end) / 2
    if end <= half:
        return 0.0
    waiting = [waiting_at(records, moment) for moment in (half, end)]
    return (waiting[1] - waiting[0]) / (end - half)


def summarise(result: SimulationResult, *, watts: float | None = None) -> SimulationSummary:
    """The figures of one run. ``watts`` (a power cap) gives joules as an upper bound while the engine is busy."""
    r, counters = result.records, result.counters
    good = good_requests(result)
    start = float(r["arrival"][r["arrival"] >= 0].min(initial=math.inf))
    span = max(result.makespan - start, 1e-12) if math.isfinite(start) else 1e-12
    overall = _class(result, None, good, span)
    klass = result.requests.klass
    names = enumerate(result.requests.class_names)
    by_class = {} if klass is None else {name: _class(result, klass == place, good, span) for place, name in names}
    itl, resolution = gap_spread(result)
    growth = _growth(result)
    rate = len(r) / max(float(r["arrival"].max(initial=0.0)) - start, 1e-12) if len(r) > 1 else 0.0
    looked = counters["lookups_tokens"]
    return SimulationSummary(
        overall=overall, by_class=by_class, itl=itl, itl_resolution=resolution, makespan_s=result.makespan, busy_s=counters["busy_s"],
        iterations=int(counters["iterations"]), gpu_s_per_good=span / overall.good if overall.good else None,
        joules_per_good=watts * counters["busy_s"] / overall.good if overall.good and watts is not None else None,
        hit_rate=counters["hit_tokens"] / looked if looked else 0.0, preemptions=int(counters["preemptions"]),
        recomputed_tokens=int(counters["recomputed"]), peak_kv_blocks=int(counters["peak_blocks"]), evicted_blocks=int(counters["evicted"]),
        overload=growth > 0.05 * rate and growth > 0, queue_growth_per_s=growth,
    )  # fmt: skip
