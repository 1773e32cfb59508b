"""Exact figures over all requests, in few passes. Of all gaps: ``gap_ranks``.

Notation: the p-th percentile of n values is number ceil(p n / 100) of the sorted values.
"""

from __future__ import annotations

import math

import numpy as np

from models.kernels.jit import compiled, part
from models.kernels.scheduler_state import FINISHED, Row, Table

TTFT, E2E, QUEUE, TPOT, LONGEST = 0, 1, 2, 3, 4  # rows of the metrics
METRICS = 5
TOTALS = np.dtype([
    ("requests", "i8"), ("finished", "i8"), ("several", "i8"), ("good", "i8"), ("output_tokens", "i8"),
    ("first_arrival", "f8"), ("last_arrival", "f8"), ("last_end", "f8"),
])  # fmt: skip


@part
def within(one: Row, tokens: int, delivery: float, limits: Table, kind: int) -> bool:
    """Whether the client saw every deadline met: ttft, e2e, longest gap, mean gap; delivery comes on top of every token."""
    if limits.shape[0] == 0:
        return True
    mean = (one.last - one.first) / max(tokens - 1, 1)
    return (
        one.first - one.arrival + delivery <= limits[kind, 0]
        and one.last - one.arrival + delivery <= limits[kind, 1]
        and one.max_gap <= limits[kind, 2]
        and mean <= limits[kind, 3]
    )


@compiled
def measure(
    results: Table, output: Table, klass: Table, wanted: int, limits: Table, delivery: float, metrics: Table, totals: Table
) -> None:
    """Metrics of the finished requests of one class (-1: all), side by side: (METRICS, requests) seconds, and their counts.

    A row holds ``finished`` values; of TPOT and LONGEST, which take several tokens, ``several``. Times are of all requests.
    """
    total = totals[0]
    total.first_arrival = math.inf
    for place in range(results.shape[0]):
        kind = klass[place] if klass.shape[0] > 0 else 0
        if wanted >= 0 and kind != wanted:
            continue
        one, tokens = results[place], output[place]
        total.requests += 1
        if one.arrival >= 0.0:
            total.first_arrival = min(total.first_arrival, one.arrival)
        total.last_arrival = max(total.last_arrival, one.arrival)
        total.last_end = max(total.last_end, one.last)
        if one.status != FINISHED:
            continue
        metrics[TTFT, total.finished] = one.first - one.arrival + delivery
        metrics[E2E, total.finished] = one.last - one.arrival + delivery
        metrics[QUEUE, total.finished] = one.scheduled - one.arrival
        total.finished += 1
        total.output_tokens += tokens
        if tokens > 1:
            metrics[TPOT, total.several] = (one.last - one.first) / (tokens - 1)
            metrics[LONGEST, total.several] = one.max_gap
            total.several += 1
        if within(one, tokens, delivery, limits, kind):
            total.good += 1


@compiled
def count_waiting(results: Table, moments: Table, counts: Table) -> None:
    """Requests that have arrived and neither started nor been refused by each moment."""
    for place in range(results.shape[0]):
        one = results[place]
        begun = one.last if one.scheduled < 0.0 else one.scheduled
        for which in range(moments.shape[0]):
            counts[which] += 0.0 <= one.arrival <= moments[which] < begun


def value_ranks(values: Table, ranks: list[int]) -> list[float]:
    """The values with these rising 1-based ranks. Reorders ``values``: each selection goes on in what lies above the last one."""
    answers, passed = [], 0
    for rank in ranks:
        rest = values[passed:]
        rest.partition(rank - 1 - passed)
        passed = rank - 1
        answers.append(float(values[passed]))
    return answers
