"""Percentiles of all gaps between outputs, in few passes over the log: exact to rounding, and no gap is ever listed.

Notation: the p-th percentile of n values is number ceil(p n / 100) of the sorted values. Entry e of the log stands for the values
start + i slope, i < length, each ``weight`` times (slope >= 0); ceil((edge - start) / slope) of them, between 0 and length, lie below
an edge.
Selection. A systematic sample brackets the wanted rank (Floyd and Rivest, Algorithm 489, 1975). One pass counts what lies below and
inside the bracket and keeps the entries with values inside; counts at edges in it, the sample's and then equally spaced ones, narrow it
until one value is left.
An edge divides an entry at the same place whenever it is asked, so every value is counted once; rounding can only swap values
that differ in their last digits. The counting loops hold no branch: compilers turn them into vector instructions.
"""

from __future__ import annotations

import numpy as np

from models.kernels.jit import compiled, part
from models.kernels.scheduler_state import GapLog, Table

SAMPLE = 8192
MARGIN = 3.0  # standard deviations of a random sample's rank; a bracket that misses costs one pass
SECTIONS = 16  # of a bracket, at each narrowing
ABOVE = 1e-9  # an edge so much above a value is above it whatever the rounding
ZERO = 1e-18  # s: shorter gaps are none
SMALLEST = 1e-300  # stands for a slope of 0: an edge above the start has passed all values, another none


@part
def values_below(log: GapLog, place: int, edge: float) -> int:
    """How many different places of the entry's ramp lie below ``edge``."""
    steps = np.ceil((edge - log.start[place]) * (1.0 / max(log.slope[place], SMALLEST)))
    steps = steps if steps > 0.0 else 0.0  # noqa: FURB136  a select becomes one vector instruction, max() a call
    length = float(log.length[place])
    return int(np.int32(steps if steps < length else length))  # noqa: FURB136


@compiled
def sample_gaps(log: GapLog, step: int, sample: Table) -> None:
    """Every step-th value in order of time."""
    done, taken, wanted = 0, 0, step // 2
    for place in range(log.start.shape[0]):
        upto = done + int(log.length[place]) * log.weight[place]
        while wanted < upto and taken < sample.shape[0]:
            sample[taken] = log.start[place] + (wanted - done) // log.weight[place] * log.slope[place]
            taken += 1
            wanted += step
        done = upto


@part
def keep(log: GapLog, crossing: Table, entries: int, kept: GapLog) -> int:
    """The entries marked as crossing, moved together; how many they are. ``kept`` may be the log itself."""
    found = 0
    for place in range(entries):
        if crossing[place]:
            kept.start[found], kept.slope[found] = log.start[place], log.slope[place]
            kept.length[found], kept.weight[found] = log.length[place], log.weight[place]
            found += 1
    return found


@part
def cut(log: GapLog, low: float, high: float, crossing: Table, kept: GapLog) -> tuple[int, int, int]:
    """Keep the entries with values in [low, high). Values below, values inside (both with their weights), entries kept."""
    below, inside = 0, 0
    for place in range(log.start.shape[0]):
        first, end, weight = values_below(log, place, low), values_below(log, place, high), int(log.weight[place])
        below += first * weight
        inside += (end - first) * weight
        crossing[place] = end > first
    return below, inside, keep(log, crossing, log.start.shape[0], kept)


@part
def spaced(edges: Table, low: float, high: float) -> None:
    """Edges at equal distances from ``low`` to ``high``."""
    last = edges.shape[0] - 1
    for number in range(last):
        edges[number] = low + number * ((high - low) / last)
    edges[last] = high


@part
def weight_below(log: GapLog, entries: int, edge: float) -> int:
    """Values below the edge in the first entries, with their weights."""
    below = 0
    for place in range(entries):
        below += values_below(log, place, edge) * int(log.weight[place])
    return below


@part
def narrow(log: GapLog, entries: int, edges: Table, rank: int, crossing: Table) -> float:
    """Value number ``rank`` of those between the first and the last edge in the first entries. Overwrites log and edges."""
    points, last = 2, edges.shape[0] - 1
    while points > 1 and edges[last] > ZERO and edges[0] < 0.5 * (edges[0] + edges[last]) < edges[last]:  # numbers lie between
        base, before, after, number = weight_below(log, entries, edges[0]), 0, 0, 0
        while after < rank:
            before, number = after, number + 1
            after = weight_below(log, entries, edges[number]) - base
        rank, low, high, points = rank - before, edges[number - 1], edges[number], 0
        for place in range(entries):
            inside = values_below(log, place, high) - values_below(log, place, low)
            points += inside
            crossing[place] = inside > 0
        entries = keep(log, crossing, entries, log)
        spaced(edges, low, high)
    return log.start[0] + values_below(log, 0, edges[0]) * log.slope[0]


@compiled
def select(log: GapLog, ranks: Table, edges: Table, beyond: float, crossing: Table, kept: GapLog, answers: Table) -> None:
    """The values with these ranks, all below ``beyond``; edges: (ranks, SECTIONS + 1). NaN for a rank that the log does not reach."""
    last = edges.shape[1] - 1
    for target in range(ranks.shape[0]):
        rank, mine = ranks[target], edges[target]
        while True:
            low, high = mine[0], mine[last]
            below, inside, entries = cut(log, low, high, crossing, kept)
            if rank <= below:
                spaced(mine, 0.0, low)
            elif rank <= below + inside:
                answers[target] = narrow(kept, entries, mine, rank - below, crossing)
                break
            elif high == beyond:
                answers[target] = np.nan
                break
            else:
                spaced(mine, high, beyond)


def _edges(ranks: list[int], total: int, sample: Table, beyond: float) -> Table:
    """Rising edges for each rank, the outer ones around it, as many values between one and the next: as the sample sees it."""
    share = np.array(ranks)[:, np.newaxis] / total
    half = MARGIN * np.sqrt(len(sample) * share * (1.0 - share)) + 2.0
    places = (share * len(sample) + half * np.linspace(-1.0, 1.0, SECTIONS + 1)).astype(np.int64)
    return np.concatenate(([0.0], sample, [beyond]))[np.clip(places + 1, 0, len(sample) + 1)]


def gap_ranks(log: GapLog, ranks: list[int], total: int, longest: float) -> list[float]:
    """The values with these 1-based ranks among all ``total`` gaps of the log, none longer than ``longest`` (s)."""
    step, beyond = total // SAMPLE, longest * (1.0 + ABOVE) + ABOVE
    sample = np.empty(total // step if step > 1 else 0)
    if len(sample):
        sample_gaps(log, step, sample)
        sample.sort()
    size, answers = len(log.start), np.empty(len(ranks))
    select(log, np.array(ranks), _edges(ranks, total, sample, beyond), beyond, np.empty(size, np.bool_), GapLog.empty(size), answers)
    return [float(answer) for answer in answers]
