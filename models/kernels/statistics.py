"""Exact figures over all requests, in few passes. Of all gaps: ``gap_ranks``.

Notation: the p-th percentile of n values is number ceil(p n / 100) of the sorted values.
"""

from __future__ import annotations

import numpy as np

from models.kernels.jit import compiled, part
from models.kernels.scheduler_state import FINISHED, OVER_LIMIT, TOO_LARGE, Row, Table

TTFT, E2E, QUEUE, TPOT, LONGEST = 0, 1, 2, 3, 4  # rows of the metrics
METRICS = 5
TOTALS = np.dtype([
    ("requests", "i8"), ("finished", "i8"), ("several", "i8"), ("good", "i8"), ("output_tokens", "i8"),
    ("waiting_half", "i8"), ("waiting_last", "i8"), ("last_end", "f8"),
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


@part
def waits(one: Row, moment: float) -> bool:
    """Whether the request has arrived and neither started nor ended by then; who was refused on arrival never waited."""
    if one.status in (TOO_LARGE, OVER_LIMIT):
        return False
    begun = one.last if one.scheduled < 0.0 else one.scheduled
    return 0.0 <= one.arrival <= moment < begun


@compiled
def measure(
    results: Table, output: Table, klass: Table, wanted: int, limits: Table, delivery: float, half: float, last: float,
    metrics: Table, totals: Table
) -> None:  # fmt: skip
    """Metrics of the finished requests of one class (-1: all), side by side: (METRICS, requests) seconds, and their counts.

    A row holds ``finished`` values; of TPOT and LONGEST, which take several tokens, ``several``. Of all requests of the class: the
    last end, and how many wait at the moments ``half`` and ``last``.
    """
    ttft, e2e, queue, tpot, longest = metrics[TTFT], metrics[E2E], metrics[QUEUE], metrics[TPOT], metrics[LONGEST]
    finished, several = np.uint64(0), np.uint64(0)  # without a sign, an index needs no test for places counted from the end
    requests, good, output_tokens = 0, 0, 0
    waiting_half, waiting_last, last_end = 0, 0, 0.0
    for place in range(results.shape[0]):
        kind = klass[place] if klass.shape[0] > 0 else 0
        if wanted >= 0 and kind != wanted:
            continue
        one, tokens = results[place], output[place]
        requests += 1
        waiting_half, waiting_last = waiting_half + waits(one, half), waiting_last + waits(one, last)
        last_end = max(last_end, one.last)
        if one.status != FINISHED:
            continue
        ttft[finished] = one.first - one.arrival + delivery
        e2e[finished] = one.last - one.arrival + delivery
        queue[finished] = one.scheduled - one.arrival
        finished += np.uint64(1)
        output_tokens += tokens
        if tokens > 1:
            tpot[several] = (one.last - one.first) / (tokens - 1)
            longest[several] = one.max_gap
            several += np.uint64(1)
        good += within(one, tokens, delivery, limits, kind)
    total = totals[0]
    total.requests, total.finished, total.several, total.good, total.output_tokens = requests, finished, several, good, output_tokens
    total.waiting_half, total.waiting_last, total.last_end = waiting_half, waiting_last, last_end


def value_ranks(values: Table, ranks: list[int]) -> list[float]:
    """The values with these rising 1-based ranks. Reorders ``values``: each selection goes on in what lies above the last one."""
    answers, passed = [], 0
    for rank in ranks:
        rest = values[passed:]
        rest.partition(rank - 1 - passed)
        passed = rank - 1
        answers.append(float(values[passed]))
    return answers
