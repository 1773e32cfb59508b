"""Containers of the scheduler kernel: who finishes next, who arrives next, and every gap between outputs.

Gaps. All decoders of an iteration see the same gap, so a run of iterations is one entry (start, slope, count, weight): gap i
is start + i slope, seen by ``weight`` requests. Exact while the log has room; beyond it entries fold into a histogram with bins of
relative width 2^-14 (mean, maximum and count stay exact).
Longest gap of a request. ``stack`` holds suffix maxima, one entry for each span of rounds without a join: the maximum since
round r is the first entry that ends after r. Spans in which no live request joined are merged, so it stays small.
"""

from __future__ import annotations

import math

from models.kernels.jit import compiled
from models.kernels.scheduler_state import HISTOGRAM_BITS, HISTOGRAM_LOW


@compiled
def heap_before(heap, a, b):  # type: ignore[no-untyped-def]
    """Whether entry a leaves the heap before entry b: earlier round, then earlier admission."""
    return heap[a].key < heap[b].key or (heap[a].key == heap[b].key and heap[a].sequence < heap[b].sequence)


@compiled
def heap_swap(heap, slots, a, b):  # type: ignore[no-untyped-def]
    """Exchange two entries and tell their slots."""
    key, sequence, slot = heap[a].key, heap[a].sequence, heap[a].slot
    heap[a].key, heap[a].sequence, heap[a].slot = heap[b].key, heap[b].sequence, heap[b].slot
    heap[b].key, heap[b].sequence, heap[b].slot = key, sequence, slot
    slots[heap[a].slot].heap_place = a
    slots[heap[b].slot].heap_place = b


@compiled
def heap_settle(heap, slots, size, place):  # type: ignore[no-untyped-def]
    """Move the entry at ``place`` to where it belongs."""
    while place > 0 and heap_before(heap, place, (place - 1) >> 1):
        heap_swap(heap, slots, place, (place - 1) >> 1)
        place = (place - 1) >> 1
    while True:
        child = 2 * place + 1
        if child >= size:
            return
        if child + 1 < size and heap_before(heap, child + 1, child):
            child += 1
        if not heap_before(heap, child, place):
            return
        heap_swap(heap, slots, place, child)
        place = child


@compiled
def heap_push(state, heap, slots, slot, finish):  # type: ignore[no-untyped-def]
    """The decoder in ``slot`` finishes after round ``finish``."""
    place = state.heap
    heap[place].key, heap[place].sequence, heap[place].slot = finish, slots[slot].sequence, slot
    slots[slot].heap_place = place
    state.heap += 1
    heap_settle(heap, slots, state.heap, place)


@compiled
def heap_remove(state, heap, slots, slot):  # type: ignore[no-untyped-def]
    """Take the decoder in ``slot`` out, wherever it stands."""
    place = slots[slot].heap_place
    state.heap -= 1
    if place != state.heap:
        heap_swap(heap, slots, place, state.heap)
        heap_settle(heap, slots, state.heap, place)


@compiled
def pending_push(state, pending, time, request):  # type: ignore[no-untyped-def]
    """A request that follows another one (next turn, closed loop) arrives at ``time``."""
    place = state.pending
    state.pending += 1
    while place > 0:
        parent = (place - 1) >> 1
        if pending[parent].time < time or (pending[parent].time == time and pending[parent].request < request):
            break
        pending[place].time, pending[place].request = pending[parent].time, pending[parent].request
        place = parent
    pending[place].time, pending[place].request = time, request


@compiled
def pending_pop(state, pending):  # type: ignore[no-untyped-def]
    """Drop the earliest pending arrival."""
    state.pending -= 1
    time, request, size, place = pending[state.pending].time, pending[state.pending].request, state.pending, 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (pending[right].time < pending[child].time or (pending[right].time == pending[child].time and pending[right].request < pending[child].request)):
            child = right
        if time < pending[child].time or (time == pending[child].time and request < pending[child].request):
            break
        pending[place].time, pending[place].request = pending[child].time, pending[child].request
        place = child
    pending[place].time, pending[place].request = time, request


@compiled
def stack_compact(state, stack, slots):  # type: ignore[no-untyped-def]
    """Keep only the spans that begin at the join of a live decoder (or the latest): others serve nobody any more."""
    kept = 0
    for place in range(state.stack):
        low = stack[place].round
        high = stack[place + 1].round if place + 1 < state.stack else 1 << 62
        wanted = place + 1 == state.stack
        for slot in range(slots.shape[0]):
            if slots[slot].decoding > 0 and low <= slots[slot].since < high:
                wanted = True
                break
        if wanted:
            stack[kept].round, stack[kept].gap = low, stack[place].gap
            kept += 1
    state.stack = kept


@compiled
def stack_push(state, stack, slots, gap):  # type: ignore[no-untyped-def]
    """The longest gap of the rounds from ``state.rounds`` on is ``gap``; merges with spans that nobody tells apart."""
    top = state.stack - 1
    first = state.rounds
    if top >= 0 and stack[top].round >= state.last_join:
        first = stack[top].round
        gap = max(gap, stack[top].gap)
        top -= 1
    while top >= 0 and stack[top].gap <= gap:
        first = stack[top].round
        top -= 1
    if top + 2 >= stack.shape[0]:
        state.stack = top + 1
        stack_compact(state, stack, slots)
        top = state.stack - 1
    stack[top + 1].round, stack[top + 1].gap = first, gap
    state.stack = top + 2


@compiled
def stack_longest(state, stack, since):  # type: ignore[no-untyped-def]
    """Longest gap of the rounds ``since`` .. now; 0 where no round has passed."""
    if since >= state.rounds:
        return 0.0
    low, high = 0, state.stack - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if stack[middle].round <= since:
            low = middle
        else:
            high = middle - 1
    return stack[low].gap


@compiled
def gap_bin(gap, bins):  # type: ignore[no-untyped-def]
    """Histogram bin of a gap: octave and 2^14 equal steps within it."""
    if gap <= 0.0:
        return 0
    mantissa, exponent = math.frexp(gap)
    place = ((exponent - 1 - HISTOGRAM_LOW) << HISTOGRAM_BITS) + int((2.0 * mantissa - 1.0) * (1 << HISTOGRAM_BITS))
    return min(max(place, 0), bins - 1)


@compiled
def fold_gaps(state, gaps, histogram):  # type: ignore[no-untyped-def]
    """Empty the full log into the histogram."""
    for place in range(state.gap_entries):
        entry = gaps[place]
        for i in range(entry.count):
            histogram[gap_bin(entry.start + i * entry.slope, histogram.shape[0])] += entry.weight
    state.gap_entries = 0
    state.gaps_binned = 1


@compiled
def log_gaps(state, gaps, histogram, start, slope, count, weight):  # type: ignore[no-untyped-def]
    """``weight`` requests saw the gaps start, start + slope, … (``count`` of them)."""
    if state.gap_entries == gaps.shape[0]:
        fold_gaps(state, gaps, histogram)
    entry = gaps[state.gap_entries]
    entry.start, entry.slope, entry.count, entry.weight = start, slope, count, weight
    state.gap_entries += 1
    total = count * start + slope * (0.5 * count * (count - 1.0))
    state.gap_total += weight * total
    state.gap_count += weight * count
    state.gap_max = max(state.gap_max, start + slope * (count - 1.0))
