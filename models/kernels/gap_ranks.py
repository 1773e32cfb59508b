"""Percentiles of all gaps between outputs, in few passes over the log: exact to rounding, and no gap is ever listed.

Notation: the p-th percentile of n values is number ceil(p n / 100) of the sorted values. Entry e of the log stands for the values
start + i slope, i < length, each ``weight`` times (slope >= 0); ceil((edge - start) / slope) of them, between 0 and length, lie below
an edge.
Selection (Floyd and Rivest, Algorithm 489, 1975): a sample brackets the wanted rank; what lies in the bracket is a smaller log, of
which the same is asked again, until few values are left.
An edge lies beside a sampled value, farther than rounding reaches, and cuts an entry once: rounding can only swap values that differ
in their last digits. Loops over a block's entries hold no branch: compilers turn them into vector instructions.
"""

from __future__ import annotations

import numpy as np

from models.kernels.jit import compiled, part
from models.kernels.scheduler_state import GapLog, Table

SAMPLE = 8192
AGAIN = 256  # sample of what is left; so many values are listed at the end
MARGIN = 3.0  # standard deviations of a random sample's rank; a bracket that misses costs one pass
BLOCK = 512  # entries cut at a time, before those with values inside are moved together
BESIDE = 2.0**-48  # of a value: distance of an edge from it
ZERO = 1e-30  # s: the same beside 0
SMALLEST = 1e-300  # stands for a slope of 0: an edge above the start has passed all values, another none
GOLDEN = 0.6180339887498949  # multiples of it, less their whole parts, spread evenly over 0..1


@part
def draw(log: GapLog, entries: int, sample: Table, holder: Table) -> None:
    """A value from each of equally large parts of the log in order of time: of the entry at the end of the part, somewhere in it.

    Of two entries for each value of the sample, evenly chosen, where the log has more.
    """
    size, total, done = sample.shape[0], 0.0, 0.0
    every = max(entries // (2 * size), 1)
    for place in range(0, entries, every):
        total += float(log.length[place]) * float(log.weight[place])
    for number in range(size):
        holder[number] = 0
    for place in range(0, entries, every):
        holder[int(done / total * size)] = place
        done += float(log.length[place]) * float(log.weight[place])
    place, share = 0, 0.5
    for number in range(size):
        place = max(place, holder[number])  # an entry may fill several parts
        sample[number] = log.start[place] + int(share * log.length[place]) * log.slope[place]
        share += GOLDEN
        share -= int(share)


@part
def steps_below(start: float, slope: float, length: float, edge: float) -> float:
    """How many of a ramp's values lie below the edge."""
    steps = np.ceil((edge - start) * (1.0 / max(slope, SMALLEST)))
    steps = steps if steps > 0.0 else 0.0  # noqa: FURB136  a select becomes one vector instruction, max() a call
    return steps if steps < length else length  # noqa: FURB136


@part
def values_below(log: GapLog, entries: int, edge: float) -> int:
    """Values below the edge in the first entries, with their weights."""
    below = 0
    for place in range(entries):
        steps = steps_below(log.start[place], log.slope[place], float(log.length[place]), edge)
        below += int(np.int32(steps)) * int(log.weight[place])
    return below


@part
def keep(log: GapLog, entries: int, low: float, high: float, kept: GapLog, block: Table) -> tuple[int, int, int]:
    """The values in [low, high) as a log of their own, which may replace the first: its entries, values below, values inside."""
    firsts, counts, places, found, below, inside = block[0], block[1].view(np.int64), block[2].view(np.uint64), 0, 0, 0
    for base in range(0, entries, BLOCK):
        upto = min(base + BLOCK, entries)
        starts, slopes, lengths, weights = log.start[base:upto], log.slope[base:upto], log.length[base:upto], log.weight[base:upto]
        for place in range(upto - base):
            start, slope, length, weight = starts[place], slopes[place], float(lengths[place]), int(weights[place])
            first, end = steps_below(start, slope, length, low), steps_below(start, slope, length, high)
            firsts[place], counts[place] = first, int(np.int32(end - first))
            below += int(np.int32(first)) * weight
            inside += counts[place] * weight
        many = np.uint64(0)  # without a sign, an index needs no test for places counted from the end
        for place in range(upto - base):
            places[many] = place
            many += np.uint64(counts[place] > 0)
        for number in range(int(many)):
            place = places[number]
            kept.start[found], kept.slope[found] = starts[place] + firsts[place] * slopes[place], slopes[place]
            kept.length[found], kept.weight[found] = counts[place], weights[place]
            found += 1
    return found, below, inside


@part
def nth(values: Table, first: int, last: int, rank: int) -> float:
    """The value that sorting would leave at place ``rank`` of first..last, which are reordered (Hoare, Algorithm 65, 1961)."""
    while first < last:
        pivot, left, right = values[rank], first, last
        while left <= right:
            while values[left] < pivot:
                left += 1
            while pivot < values[right]:
                right -= 1
            if left <= right:
                values[left], values[right] = values[right], values[left]
                left += 1
                right -= 1
        if right < rank:
            first = left
        if rank < left:
            last = right
    return values[rank]


@part
def listed(log: GapLog, entries: int, values: Table) -> int:
    """Write out every value; how many they are."""
    count = 0
    for place in range(entries):
        for step in range(log.length[place]):
            for _ in range(log.weight[place]):
                values[count] = log.start[place] + step * log.slope[place]
                count += 1
    return count


@part
def places_around(rank: int, total: int, size: int) -> tuple[int, int]:
    """Places of a sorted sample between whose values number ``rank`` of all ``total`` lies, MARGIN allowing."""
    middle = rank / total * size
    half = MARGIN * (middle * (1.0 - rank / total)) ** 0.5 + 2.0
    return int(max(middle - half, 0.0)), int(min(middle + half, size - 1.0))


@part
def edges_beside(low: float, high: float) -> tuple[float, float]:
    """Edges below a value and above another one."""
    return low * (1.0 - BESIDE) - ZERO, high * (1.0 + BESIDE) + ZERO


@part
def narrow(log: GapLog, entries: int, total: int, rank: int, sample: Table, holder: Table, block: Table) -> float:
    """Value number ``rank`` of the ``total`` values of a log, which it overwrites; NaN beyond them."""
    size = sample.shape[0]
    while total > size and rank <= total:
        draw(log, entries, sample, holder)
        at, to = places_around(rank, total, size)
        lowest, highest = nth(sample, 0, size - 1, at), nth(sample, at, size - 1, to)
        low, high = edges_beside(lowest, highest)
        below, upto = values_below(log, entries, low), values_below(log, entries, high)
        if rank <= below:
            low, high = 0.0, low
        elif rank > upto:
            low, high = high, np.inf
        elif upto - below == total:  # many are equal: less lies above the lowest
            low, high = edges_beside(lowest, lowest)[1], np.inf
            if rank <= values_below(log, entries, low):
                return lowest
        entries, below, total = keep(log, entries, low, high, log, block)
        rank -= below
    return nth(sample, 0, listed(log, entries, sample) - 1, rank - 1) if rank <= total else np.nan


@compiled
def sample_gaps(log: GapLog, sample: Table, holder: Table) -> None:
    """``draw`` from the whole log."""
    draw(log, log.start.shape[0], sample, holder)


@compiled
def select(
    log: GapLog, ranks: Table, total: int, ordered: Table, kept: GapLog, sample: Table, holder: Table, block: Table, answers: Table
) -> None:
    """The value of each rank: it lies between two values of an ordered sample of the whole log or, seldom, beside them."""
    size, low, high = log.start.shape[0], 0.0, np.inf
    for which in range(ranks.shape[0]):
        rank = ranks[which]
        if ordered.shape[0] > 0:
            at, to = places_around(rank, total, ordered.shape[0])
            low, high = edges_beside(ordered[at], ordered[to])
        entries, below, inside = keep(log, size, low, high, kept, block)
        if rank <= below:
            entries, below, inside = keep(log, size, 0.0, low, kept, block)
        elif rank > below + inside:
            entries, below, inside = keep(log, size, high, np.inf, kept, block)
        answers[which] = narrow(kept, entries, inside, rank - below, sample, holder, block)


def gap_ranks(log: GapLog, ranks: list[int], total: int) -> list[float]:
    """The values with these 1-based ranks among all ``total`` gaps of the log (s)."""
    ordered, holder, answers = np.empty(SAMPLE if total > SAMPLE else 0), np.empty(max(SAMPLE, AGAIN), np.int64), np.empty(len(ranks))
    if len(ordered):
        sample_gaps(log, ordered, holder)
        ordered.sort()
    kept, sample, block = GapLog.empty(len(log.start)), np.empty(AGAIN), np.empty((3, BLOCK))
    select(log, np.array(ranks), total, ordered, kept, sample, holder, block, answers)
    return answers.tolist()
