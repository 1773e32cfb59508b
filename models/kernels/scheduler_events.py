"""Containers of the scheduler kernel: who finishes next, who arrives next, and every gap between outputs.

Line. Whoever decodes finishes after a round known from the start, so they stand in order, in an array that they leave at its head: of
equal lengths each newcomer goes last. It is twice as long as there are slots, and moves to its beginning when its end is reached.
Gaps. All decoders of an iteration see the same gap, so a run of iterations is one entry (start, slope, length, weight): gap i
is start + i slope, seen by ``weight`` requests. Exact while the log has room; beyond it entries fold into a histogram with bins of
relative width 2^-14 (mean, maximum and count stay exact).
Longest gap of a request. ``stack`` holds suffix maxima, one entry for each span of rounds without a join: the maximum since
round r is the first entry that ends after r. Spans in which no live request joined are merged, so it stays small.
"""

from __future__ import annotations

import numpy as np

from models.kernels.jit import compiled, part, rare
from models.kernels.scheduler_state import HISTOGRAM_BITS, HISTOGRAM_LOW, NEVER, SLOT_BITS, GapLog, Row, Table, World

SLOT_MASK = (1 << SLOT_BITS) - 1


@part
def next_finish(w: World) -> int:
    """Round after which the next decoder finishes."""
    state = w.state[0]
    return w.line[state.line_head] >> SLOT_BITS if state.line_head < state.line_end else NEVER


@part
def first_in_line(w: World) -> int:
    """The decoder that finishes next."""
    return w.line[w.state[0].line_head] & SLOT_MASK


@part
def line_up(w: World, slot: int, finish: int) -> None:
    """The decoder in ``slot`` finishes after round ``finish``; of equal rounds the earlier admission comes first."""
    state, line = w.state[0], w.line
    if state.line_end == line.shape[0]:
        for place in range(state.line_head, state.line_end):
            line[place - state.line_head] = line[place]
        state.line_head, state.line_end = 0, state.line_end - state.line_head
    entry, place = (finish << SLOT_BITS) + slot, state.line_end
    while place > state.line_head:
        before = line[place - 1]
        if before >> SLOT_BITS < finish or (
            before >> SLOT_BITS == finish and w.slots[before & SLOT_MASK].sequence < w.slots[slot].sequence
        ):
            break
        line[place] = before
        place -= 1
    line[place] = entry
    state.line_end += 1


@part
def leave_line(w: World, slot: int) -> None:
    """Take the decoder in ``slot`` out; it mostly stands first."""
    state, line = w.state[0], w.line
    place = state.line_head
    while line[place] & SLOT_MASK != slot:
        place += 1
    while place > state.line_head:
        line[place] = line[place - 1]
        place -= 1
    state.line_head += 1


@rare
def pending_push(state: Row, pending: Table, time: float, request: int) -> None:
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


@rare
def pending_pop(state: Row, pending: Table) -> None:
    """Drop the earliest pending arrival."""
    state.pending -= 1
    time, request, size, place = pending[state.pending].time, pending[state.pending].request, state.pending, 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            pending[right].time < pending[child].time
            or (pending[right].time == pending[child].time and pending[right].request < pending[child].request)
        ):
            child = right
        if time < pending[child].time or (time == pending[child].time and request < pending[child].request):
            break
        pending[place].time, pending[place].request = pending[child].time, pending[child].request
        place = child
    pending[place].time, pending[place].request = time, request


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
    low, left = 0, state.stack
    while left > 1:  # halving without a branch, which nobody could predict
        half = left >> 1
        low += half * (w.stack[low + half].round <= since)
        left -= half
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
