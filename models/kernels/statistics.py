"""Nearest-rank percentiles over all gaps, without listing them.

Notation: the p-th percentile of n values is number ceil(p n / 100) of the sorted values. Entry e of the gap log stands for the
values start + i slope, i < count, each ``weight`` times (slope >= 0). Selection in three exact passes: counts in bins of
relative width 2^-5, over which entries step edge by edge; 2^14 sub-bins of the wanted bins only; the few values left, sorted.
"""

from __future__ import annotations

import numpy as np

from models.kernels.jit import compiled, part
from models.kernels.scheduler_state import Row, Table

BITS, SUB_BITS = 5, 14  # 32 bins an octave, 16384 sub-bins in a bin
LOW, OCTAVES = -30, 46  # 2^-30 s .. 2^16 s
BINS = OCTAVES << BITS
KEY_BITS = 9  # for plain values
KEY_SHIFT, KEY_FIRST = 52 - KEY_BITS, (1023 + LOW) << KEY_BITS
FIRST_KEY = (1023 + LOW) << BITS  # of the bits of a float64, the exponent and the first 5 of the fraction


def bin_edges() -> Table:
    """Lower edge of every bin, and the upper edge of the last."""
    place = np.arange(BINS + 1)
    return np.ldexp(1.0 + (place % (1 << BITS)) / (1 << BITS), (place >> BITS) + LOW)


@part
def below(entry: Row, edge: float) -> int:
    """How many values of the entry lie below ``edge``; agrees with ``start + i * slope`` to the last bit."""
    if entry.start >= edge:
        return 0
    if entry.slope <= 0.0:
        return entry.count
    guess = min(max(int((edge - entry.start) / entry.slope), 0), entry.count)
    while guess > 0 and entry.start + (guess - 1) * entry.slope >= edge:
        guess -= 1
    while guess < entry.count and entry.start + guess * entry.slope < edge:
        guess += 1
    return guess


@compiled
def count_bins(gaps: Table, keys: Table, edges: Table, counts: Table) -> None:
    """Pass 1: weighted values in each bin. ``keys`` are the starts as the integers behind the floats."""
    for place in range(gaps.shape[0]):
        entry = gaps[place]
        current = min(max((keys[place] >> (52 - BITS)) - FIRST_KEY, 0), BINS - 1)
        if entry.count == 1:
            counts[current] += entry.weight
            continue
        last = entry.start + (entry.count - 1) * entry.slope
        done = 0
        while current < BINS - 1 and last >= edges[current + 1]:
            upto = below(entry, edges[current + 1])
            counts[current] += (upto - done) * entry.weight
            done = upto
            current += 1
        counts[current] += (entry.count - done) * entry.weight


@compiled
def count_within(gaps: Table, lows: Table, highs: Table, scales: Table, counts: Table) -> None:
    """Pass 2: for each wanted interval [low, high), its 2^14 equal parts."""
    for place in range(gaps.shape[0]):
        entry = gaps[place]
        last = entry.start + (entry.count - 1) * entry.slope
        for target in range(lows.shape[0]):
            low, high = lows[target], highs[target]
            if entry.start >= high or last < low:
                continue
            begin = 0 if entry.start >= low else below(entry, low)
            end = entry.count if last < high else below(entry, high)
            for i in range(begin, end):
                part_place = int((entry.start + i * entry.slope - low) * scales[target])
                counts[target, min(max(part_place, 0), (1 << SUB_BITS) - 1)] += entry.weight


@compiled
def collect(gaps: Table, low: float, high: float, sub: int, values: Table, weights: Table) -> int:
    """Pass 3: the values in one part of one interval, with their weights; returns how many (or would be, beyond the room)."""
    scale = (1 << SUB_BITS) / (high - low)
    begin, end = max(low, low + (sub - 1) / scale), min(high, low + (sub + 2) / scale)
    found = 0
    for place in range(gaps.shape[0]):
        entry = gaps[place]
        if entry.start >= end or entry.start + (entry.count - 1) * entry.slope < begin:
            continue
        for i in range(below(entry, begin), below(entry, end)):
            value = entry.start + i * entry.slope
            if min(max(int((value - low) * scale), 0), (1 << SUB_BITS) - 1) == sub:
                if found < values.shape[0]:
                    values[found], weights[found] = value, entry.weight
                found += 1
    return found


TTFT, E2E, QUEUE, TPOT, LONGEST = 0, 1, 2, 3, 4


@compiled
def request_metric(results: Table, output: Table, chosen: Table, metric: int, values: Table) -> int:
    """One metric of the chosen requests; tpot and the longest gap only of those with several tokens. Returns how many."""
    found = 0
    for place in range(results.shape[0]):
        if (chosen.shape[0] > 0 and chosen[place] == 0) or (metric >= TPOT and output[place] < 2):
            continue
        one = results[place]
        if metric == TTFT:
            values[found] = one.first - one.arrival
        elif metric == E2E:
            values[found] = one.last - one.arrival
        elif metric == QUEUE:
            values[found] = one.scheduled - one.arrival
        elif metric == TPOT:
            values[found] = (one.last - one.first) / (output[place] - 1)
        else:
            values[found] = one.max_gap
        found += 1
    return found


@compiled
def waiting_at(results: Table, moment: float) -> int:
    """Requests that have arrived and neither started nor been refused by ``moment``."""
    count = 0
    for place in range(results.shape[0]):
        one = results[place]
        begun = one.last if one.scheduled < 0.0 else one.scheduled
        if 0.0 <= one.arrival <= moment < begun:
            count += 1
    return count


@compiled
def count_keys(keys: Table, counts: Table) -> None:
    """How many values share the leading bits."""
    for place in range(keys.shape[0]):
        counts[min(max((keys[place] >> KEY_SHIFT) - KEY_FIRST, 0), counts.shape[0] - 1)] += 1


@compiled
def take_key(keys: Table, values: Table, wanted: int, last: int, found: Table) -> int:
    """Collect the values of one bin."""
    count = 0
    for place in range(keys.shape[0]):
        if min(max((keys[place] >> KEY_SHIFT) - KEY_FIRST, 0), last) == wanted:
            found[count] = values[place]
            count += 1
    return count


def value_ranks(values: Table, ranks: list[int]) -> list[float]:
    """The values with these 1-based ranks, none of them negative: one count by leading bits, then the bins of the ranks, sorted."""
    counts = np.zeros(OCTAVES << KEY_BITS, np.int64)
    keys = values.view(np.int64)
    count_keys(keys, counts)
    total = np.cumsum(counts)
    answers: list[float] = []
    held, inside = -1, values[:0]
    for rank in ranks:
        place = int(np.searchsorted(total, rank))
        before = int(total[place - 1]) if place else 0
        if place != held:
            inside = np.empty(int(total[place]) - before)
            take_key(keys, values, place, len(counts) - 1, inside)
            inside.sort()
            held = place
        answers.append(float(inside[rank - before - 1]))
    return answers


def gap_ranks(gaps: Table, ranks: list[int]) -> list[float]:
    """The values with these 1-based ranks among all gaps of the log."""
    edges, counts = bin_edges(), np.zeros(BINS, np.int64)
    count_bins(gaps, gaps["start"].view(np.int64), edges, counts)
    edges[0], edges[-1] = -np.inf, np.inf
    total = np.cumsum(counts)
    wanted = np.searchsorted(total, ranks)
    bins = np.unique(wanted)
    inside = np.zeros((len(bins), 1 << SUB_BITS), np.int64)
    lows, highs = np.maximum(edges[bins], 0.0), np.minimum(edges[bins + 1], 2.0 ** (OCTAVES + LOW + 1))
    count_within(gaps, lows, highs, (1 << SUB_BITS) / (highs - lows), inside)
    answers = []
    for rank, place in zip(ranks, wanted.tolist(), strict=True):
        target = int(np.searchsorted(bins, place))
        row = np.cumsum(inside[target])
        left = rank - (int(total[place - 1]) if place else 0)
        sub = int(np.searchsorted(row, left))
        left -= int(row[sub - 1]) if sub else 0
        answers.append(_pick(gaps, float(lows[target]), float(highs[target]), sub, left))
    return answers


def _pick(gaps: Table, low: float, high: float, sub: int, rank: int) -> float:
    values, weights = np.empty(1024), np.empty(1024, np.int64)
    found = collect(gaps, low, high, sub, values, weights)
    if found > len(values):
        values, weights = np.empty(found), np.empty(found, np.int64)
        collect(gaps, low, high, sub, values, weights)
    order = np.argsort(values[:found], kind="stable")
    return float(values[order[np.searchsorted(np.cumsum(weights[order]), rank)]])
