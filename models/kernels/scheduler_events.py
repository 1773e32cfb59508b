"""Containers of the scheduler kernel: who finishes next, who arrives next, and every gap between outputs.

Gaps. All decoders of an iteration see the same gap, so a run of iterations is one entry (start, slope, length, weight): gap i
is start + i slope, seen by ``weight`` requests. Exact while the log has room; beyond it entries fold into a histogram with bins of
relative width 2^-14 (mean, maximum and count stay exact).
Longest gap of a request. ``stack`` holds suffix maxima, one entry for each span of rounds without a join: the maximum since
round r is the first entry that ends after r. Spans in which no live request joined are merged, so it stays small.
"""

from __future__ import annotations

import numpy as np

from models.kernels.jit import compiled, part, rare
from models.kernels.scheduler_state import HISTOGRAM_BITS, HISTOGRAM_LOW, NEVER, ORDER_BITS, GapLog, Table, World


@part
def heap_put(w: World, place: int, order: int, slot: int) -> None:
    """Write an entry and tell its slot."""
    w.heap[place].order, w.heap[place].slot = order, slot
    w.slots[slot].heap_place = place


@part
def heap_rise(w: World, place: int, order: int, slot: int) -> None:
    """Put an entry into the hole at ``place``, or above it where it comes earlier."""
    while place > 0:
        above = w.heap[(place - 1) >> 1]
        if above.order < order:
            break
        heap_put(w, place, above.order, above.slot)
        place = (place - 1) >> 1
    heap_put(w, place, order, slot)


@part
def heap_push(w: World, slot: int, finish: int) -> None:
    """The decoder in ``slot`` finishes after round ``finish``; of equal rounds the earlier admission comes first."""
    state = w.state[0]
    state.heap += 1
    heap_rise(w, state.heap - 1, (finish << ORDER_BITS) + w.slots[slot].sequence, slot)


@part
def heap_remove(w: World, slot: int) -> None:
    """Take the decoder in ``slot`` out, wherever it stands: the hole sinks to the end without a test, the last entry fills it."""
    state = w.state[0]
    place = w.slots[slot].heap_place
    state.heap -= 1
    if place == state.heap:
        return
    child = 2 * place + 1
    while child < state.heap:
        if child + 1 < state.heap:
            child += w.heap[child + 1].order < w.heap[child].order
        heap_put(w, place, w.heap[child].order, w.heap[child].slot)
        place, child = child, 2 * child + 1
    heap_rise(w, place, w.heap[state.heap].order, w.heap[state.heap].slot)


@part
def next_finish(w: World) -> int:
    """Round after which the next decoder finishes."""
    return w.heap[0].order >> ORDER_BITS if w.state[0].heap > 0 else NEVER


@rare
def pending_push(w: World, time: float, request: int) -> None:
    """A request that follows another one (next turn, closed loop) arrives at ``time``."""
    state = w.state[0]
    place = state.pending
    state.pending += 1
    while place > 0:
        parent = (place - 1) >> 1
        if w.pending[parent].time < time or (w.pending[parent].time == time and w.pending[parent].request < request):
            break
        w.pending[place].time, w.pending[place].request = w.pending[parent].time, w.pending[parent].request
        place = parent
    w.pending[place].time, w.pending[place].request = time, request


@rare
def pending_pop(w: World) -> None:
    """Drop the earliest pending arrival."""
    state = w.state[0]
    state.pending -= 1
    time, request, size, place = w.pending[state.pending].time, w.pending[state.pending].request, state.pending, 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            w.pending[right].time < w.pending[child].time
            or (w.pending[right].time == w.pending[child].time and w.pending[right].request < w.pending[child].request)
        ):
            child = right
        if time < w.pending[child].time or (time == w.pending[child].time and request < w.pending[child].request):
            break
        w.pending[place].time, w.pending[place].request = w.pending[child].time, w.pending[child].request
        place = child
    w.pending[place].time, w.pending[place].request = time, request


@rare
def stack_compact(w: World) -> None:
    """Keep only the spans that begin at the join of a live decoder (or the latest): others serve nobody any more."""
    state = w.state[0]
    kept = 0
    for place in range(state.stack):
        low = w.stack[place].round
        high = w.stack[place + 1].round if place + 1 < state.stack else 1 << 62
        wanted = place + 1 == state.stack
        for slot in range(w.slots.shape[0]):
            if w.slots[slot].decoding > 0 and low <= w.slots[slot].since < high:
                wanted = True
                break
        if wanted:
            w.stack[kept].round, w.stack[kept].gap = low, w.stack[place].gap
            kept += 1
    state.stack = kept


@part
def stack_push(w: World, gap: float) -> None:
    """The longest gap of the rounds from ``state.rounds`` on is ``gap``; merges with spans that nobody tells apart."""
    state = w.state[0]
    top = state.stack - 1
    first = state.rounds
    if top >= 0 and w.stack[top].round >= state.last_join:
        first = w.stack[top].round
        gap = max(gap, w.stack[top].gap)
        top -= 1
    while top >= 0 and w.stack[top].gap <= gap:
        first = w.stack[top].round
        top -= 1
    if top + 2 >= w.stack.shape[0]:
        state.stack = top + 1
        stack_compact(w)
        top = state.stack - 1
    w.stack[top + 1].round, w.stack[top + 1].gap = first, gap
    state.stack = top + 2


@part
def stack_longest(w: World, since: int) -> float:
    """Longest gap of the rounds ``since`` .. now; 0 where no round has passed."""
    state = w.state[0]
    if since >= state.rounds:
        return 0.0
    low, high = 0, state.stack - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if w.stack[middle].round <= since:
            low = middle
        else:
            high = middle - 1
    return w.stack[low].gap


@part
def gap_bin(gap: float, bins: int) -> int:
    """Histogram bin of a gap: octave and 2^14 equal steps within it, which are the leading bits of a float64."""
    if gap <= 0.0:
        return 0
    place = (int(np.float64(gap).view(np.int64)) >> (52 - HISTOGRAM_BITS)) - ((1023 + HISTOGRAM_LOW) << HISTOGRAM_BITS)
    return min(max(place, 0), bins - 1)


@rare
def fold_entries(log: GapLog, histogram: Table) -> None:
    """Add every gap of the entries to the histogram."""
    for place in range(log.start.shape[0]):
        for i in range(log.length[place]):
            histogram[gap_bin(log.start[place] + i * log.slope[place], histogram.shape[0])] += log.weight[place]


@compiled
def fold_log(log: GapLog, histogram: Table) -> None:
    """``fold_entries`` for what is left in the log at the end."""
    fold_entries(log, histogram)


@rare
def fold_gaps(w: World) -> None:
    """Empty the full log into the histogram."""
    state = w.state[0]
    fold_entries(w.gaps, w.histogram)
    state.gap_entries = 0
    state.gaps_binned = 1


@part
def log_gaps(w: World, start: float, slope: float, count: int, weight: int) -> None:
    """``weight`` requests saw the gaps start, start + slope, … (``count`` of them)."""
    state, log = w.state[0], w.gaps
    if state.gap_entries == log.start.shape[0]:
        fold_gaps(w)
    place = state.gap_entries
    log.start[place], log.slope[place], log.length[place], log.weight[place] = start, slope, count, weight
    state.gap_entries += 1
    total = count * start + slope * (0.5 * count * (count - 1.0))
    state.gap_total += weight * total
    state.gap_count += weight * count
    state.gap_max = max(state.gap_max, start + slope * (count - 1.0))
