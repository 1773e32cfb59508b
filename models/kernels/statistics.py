"""Exact figures over all requests and all gaps between outputs, in few passes.

Notation: the p-th percentile of n values is number ceil(p n / 100) of the sorted values. Entry e of the gap log stands for the
values start + i slope, i < count, each ``weight`` times (slope >= 0); nothing here lists them all.
Selection after Floyd and Rivest (Algorithm 489, 1975): a systematic sample brackets the wanted rank; one pass counts what lies
before the bracket, and cuts the log down to what lies inside; again, until few values are left.
"""

from __future__ import annotations

import math

import numpy as np

from models.kernels.jit import compiled, part
from models.kernels.scheduler_state import FINISHED, GAP, Row, Table

TTFT, E2E, QUEUE, TPOT, LONGEST = 0, 1, 2, 3, 4  # rows of the metrics
METRICS = 5
TOTALS = np.dtype([
    ("requests", "i8"), ("finished", "i8"), ("several", "i8"), ("good", "i8"), ("output_tokens", "i8"),
    ("first_arrival", "f8"), ("last_arrival", "f8"), ("last_end", "f8"),
])  # fmt: skip
TALLY = np.dtype([(name, "i8") for name in ("below", "at_low", "between", "at_high", "entries")])

LISTED = 4096  # values that are simply sorted
SAMPLE = 8192
MARGIN = 3.0  # standard deviations of a random sample's rank; a bracket that misses costs one pass


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


@part
def below(entry: Row, edge: float) -> int:
    """How many values of the entry lie below ``edge``; agrees with ``start + i * slope`` to the last bit."""
    if entry.start >= edge:
        return 0
    if entry.slope <= 0.0 or entry.start + (entry.count - 1) * entry.slope < edge:
        return entry.count
    guess = min(max(int((edge - entry.start) / entry.slope), 0), entry.count)
    while guess > 0 and entry.start + (guess - 1) * entry.slope >= edge:
        guess -= 1
    while guess < entry.count and entry.start + guess * entry.slope < edge:
        guess += 1
    return guess


@compiled
def count_gaps(gaps: Table, counts: Table) -> None:
    """Values that the log can tell apart, and all values: without and with their weights."""
    points, total = 0, 0
    for place in range(gaps.shape[0]):
        points += gaps[place].count
        total += gaps[place].count * gaps[place].weight
    counts[0], counts[1] = points, total


@compiled
def sample_gaps(gaps: Table, total: int, sample: Table) -> None:
    """Every (total / size)-th value in order of time."""
    step = total / sample.shape[0]
    done, taken = 0, 0
    for place in range(gaps.shape[0]):
        entry = gaps[place]
        upto = done + entry.count * entry.weight
        while taken < sample.shape[0] and (taken + 0.5) * step < upto:
            sample[taken] = entry.start + min(int(((taken + 0.5) * step - done) / entry.weight), entry.count - 1) * entry.slope
            taken += 1
        done = upto


@part
def equal(entry: Row, first: int, value: float) -> int:
    """How many values of the entry from number ``first`` on are ``value``, which is not above them."""
    if first >= entry.count or entry.start + first * entry.slope > value:
        return 0
    if entry.slope <= 0.0:
        return entry.count - first
    found = 1
    while first + found < entry.count and entry.start + (first + found) * entry.slope <= value:
        found += 1
    return found


@part
def divide(entry: Row, low: float, high: float, tally: Row, inside: Table) -> None:
    """Count the entry's values before, at and between the edges; those between go to ``inside``."""
    before = below(entry, low)
    at_low = equal(entry, before, low)
    end = max(below(entry, high), before + at_low)
    tally.below += before * entry.weight
    tally.at_low += at_low * entry.weight
    tally.between += (end - before - at_low) * entry.weight
    tally.at_high += equal(entry, end, high) * entry.weight
    if end > before + at_low:
        kept = inside[tally.entries]
        kept.start, kept.slope = entry.start + (before + at_low) * entry.slope, entry.slope
        kept.count, kept.weight = end - before - at_low, entry.weight
        tally.entries += 1


@compiled
def cut(gaps: Table, lows: Table, highs: Table, passed: Table, tallies: Table, inside: Table) -> None:
    """Divide every entry at the edges of each target, which rise from target to target. ``inside``: (targets, entries).

    ``passed[t]`` counts the values of entries that lie wholly before target t and every later one, and not before t - 1.
    """
    for place in range(gaps.shape[0]):
        entry = gaps[place]
        last = entry.start + (entry.count - 1) * entry.slope
        first, end = 0, 0
        for target in range(lows.shape[0]):  # no branch: which target an entry meets is anybody's guess
            first += highs[target] < entry.start
            end += lows[target] <= last
        passed[end] += entry.count * entry.weight
        for target in range(first, end):
            divide(entry, lows[target], highs[target], tallies[target], inside[target])


@compiled
def list_values(gaps: Table, values: Table, weights: Table) -> None:
    """Write the log out."""
    found = 0
    for place in range(gaps.shape[0]):
        entry = gaps[place]
        for i in range(entry.count):
            values[found], weights[found] = entry.start + i * entry.slope, entry.weight
            found += 1


def gap_ranks(gaps: Table, ranks: list[int]) -> list[float]:
    """The values with these rising 1-based ranks among all gaps of the log."""
    counts = np.zeros(2, np.int64)
    count_gaps(gaps, counts)
    points, total = counts.tolist()
    if points <= LISTED:
        values, weights = np.empty(points), np.empty(points, np.int64)
        list_values(gaps, values, weights)
        order = np.argsort(values)
        chosen = np.searchsorted(np.cumsum(weights[order]), ranks)
        return [float(value) for value in values[order[chosen]]]
    sample = np.empty(SAMPLE)
    sample_gaps(gaps, total, sample)
    sample.sort()
    lows, highs = [], []
    for rank in ranks:
        share = rank / total
        half = MARGIN * math.sqrt(SAMPLE * share * (1.0 - share)) + 2.0
        first, last = int(share * SAMPLE - half), math.ceil(share * SAMPLE + half)
        lows.append(float(sample[first]) if first >= 0 else -math.inf)
        highs.append(float(sample[last]) if last < SAMPLE else math.inf)
    return _bracketed(gaps, ranks, lows, highs)


def _bracketed(gaps: Table, ranks: list[int], lows: list[float], highs: list[float]) -> list[float]:
    targets = len(ranks)
    passed, tallies, inside = np.zeros(targets + 1, np.int64), np.zeros(targets, TALLY), np.empty((targets, len(gaps)), GAP)
    cut(gaps, np.array(lows), np.array(highs), passed, tallies, inside)
    before = np.cumsum(passed[:-1])
    answers: list[float] = []
    for target, (rank, low, high) in enumerate(zip(ranks, lows, highs, strict=True)):
        below_low, at_low, between, at_high, entries = tallies[target].tolist()
        left = rank - below_low - int(before[target])
        if left <= 0:
            answers += _bracketed(gaps, [rank], [-math.inf], [low])
        elif left <= at_low:
            answers.append(low)
        elif left <= at_low + between:
            answers += gap_ranks(inside[target, :entries], [left - at_low])
        elif left <= at_low + between + at_high:
            answers.append(high)
        else:
            answers += _bracketed(gaps, [rank], [high], [math.inf])
    return answers
