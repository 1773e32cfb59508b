"""The scheduler loop: traffic in, per-request times out, one run of iterations at a time.

Between two events (an arrival that could be admitted, the last chunk of a prompt, a completion, exhausted blocks, a
cancellation) every iteration does the same to the same requests, and its time grows linearly (``scheduler_step``), so the
whole run is added up in closed form. Notation: ``scheduler_state``. Rows of the arrays are described in ``models.simulate``.
"""

from __future__ import annotations

from models.kernels.jit import compiled, part, rare
from models.kernels.scheduler_batch import (
    admit_waiting,
    admits,
    clear_batch,
    continue_prompts,
    could_admit,
    decodes_after,
    mixes,
    next_arrival_time,
    receive,
    schedule_decodes,
    skip_followers,
)
from models.kernels.scheduler_blocks import available, chain_meets_idle, chains_meet, extend_prefix, full_blocks, note_peak, take_blocks
from models.kernels.scheduler_events import first_in_line, log_gaps, next_finish, pending_pop, stack_push
from models.kernels.scheduler_growth import hold_chunks, rounds_need, rounds_within
from models.kernels.scheduler_record import record_rows, record_sample
from models.kernels.scheduler_slots import (
    accepted_tokens,
    begin_decoding,
    clear_results,
    drop_prefill,
    end_request,
    finish_slot,
    judge_good,
    leave_decoders,
    next_cancel_time,
    next_prepared_time,
    prepare_draft,
    prepared_due,
    rounds_below,
    seen,
    windows_filled,
)
from models.kernels.scheduler_state import (
    CACHE_OFF,
    CANCELLED,
    FINISHED,
    INSTANT,
    NEVER,
    PENDING,
    RESERVE_WHOLE,
    World,
)
from models.kernels.scheduler_step import iterations_until, linear_run, run_seconds


@part
def waited(w: World) -> bool:
    """Whether a decoder waited since its last token: it joined outside an iteration, or others were prefilled between two rounds."""
    state = w.state[0]
    if mixes(w):
        return w.settings.preparation_s > 0.0 and state.newcomers > 0
    return state.newcomers > 0 or state.round_end < state.time


@part
def longest_run(w: World) -> int:
    """Iterations for which the batch stays the same, time-driven events aside."""
    state, settings = w.state[0], w.settings
    if settings.every_iteration > 0 or settings.per_round > 0 or (settings.total_blocks > 0 and state.preempted_now > 0):
        return 1
    if state.decoding > 0 and waited(w):
        return 1
    most = state.same_for
    if state.decoding > 0:
        most = min(most, next_finish(w) - state.rounds)
        if settings.window > 0 and state.below > 0:
            most = min(most, rounds_below(w))
    if settings.cache != CACHE_OFF and state.sequences > 0.0 and could_admit(w):
        return 1  # what these prompts add to the cache may let the head of the line in
    return most


@part
def blocks_allow(w: World, most: int) -> int:
    """Iterations, of at most ``most``, whose blocks are there: no preemption, and no eviction that a prompt's chain would see."""
    state, settings = w.state[0], w.settings
    if settings.cache != CACHE_OFF and most > 1 and chains_meet(w):
        return 1
    if settings.total_blocks == 0 or settings.reserve == RESERVE_WHOLE or most <= 1:
        return most
    if state.sequences == 0.0:
        return 1 + rounds_within(w, available(w), most - 1)
    tokens = int(state.new_tokens) + (state.decoders if state.decoding > 0 else 0)
    begun, whole = state.decoders + int(state.sequences), full_blocks(w, tokens * (most - 1))  # each may begin one block more
    if settings.cache != CACHE_OFF and begun + whole > state.pristine and chain_meets_idle(w, most):
        return 1
    room = available(w) - begun
    return most if whole <= room else max(1, 1 + room * settings.block_tokens // tokens)


@part
def log_round_gaps(w: World, first: float, slope: float, count: int) -> None:
    """Gaps of the decoders of this run; a decoder that waited since its first token sees its own first gap."""
    state = w.state[0]
    before = state.time if mixes(w) else state.round_end  # when all others emitted last: those who just joined, now
    if not waited(w):
        log_gaps(w, first, slope, count, state.decoders)
        stack_push(w, first + slope * (count - 1.0))
        return
    end = state.time + first
    if state.newcomers < state.decoders:
        log_gaps(w, end - before, 0.0, 1, state.decoders - state.newcomers)
        stack_push(w, end - before)
    else:
        stack_push(w, 0.0)
    slot = state.run_head
    while slot >= 0 and state.newcomers > 0:
        if w.slots[slot].decoding > 0 and w.slots[slot].since > state.rounds:
            gap = end - w.slots[slot].emitted
            log_gaps(w, gap, 0.0, 1, 1)
            w.results[w.slots[slot].request].max_gap = max(w.results[w.slots[slot].request].max_gap, gap)
            state.newcomers -= 1
        slot = w.slots[slot].next


@part
def draw_round(w: World) -> None:
    """Random acceptance: every decoder advances by what its round yielded."""
    state, settings = w.state[0], w.settings
    slot = state.run_head
    while slot >= 0:
        if w.slots[slot].decoding > 0:
            request = w.slots[slot].request
            tokens = accepted_tokens(w, request, w.results[request].draws)
            w.results[request].draws += 1
            w.slots[slot].progress += tokens
            if settings.constant_context == 0:
                state.context += tokens
                if w.slots[slot].below > 0:
                    state.window_context += tokens
        slot = w.slots[slot].next


@part
def advance(w: World, first: float, slope: float, count: int) -> None:
    """The clock moves over ``count`` iterations of the batch.

    Asynchronous scheduling decides a batch as soon as the one before begins: what comes later (``seen``) waits for the batch after it.
    """
    state, settings = w.state[0], w.settings
    seconds = run_seconds(first, slope, count)
    if state.decoding > 0:
        log_round_gaps(w, first, slope, count)
        if count > 1 and settings.total_blocks > 0 and settings.reserve != RESERVE_WHOLE and settings.per_round == 0:
            take_blocks(w, rounds_need(w, state.rounds + 1, count - 1))
        state.rounds += count
        state.context += count * state.growth
        if settings.window > 0:
            state.window_context += count * state.window_growth
    if settings.async_scheduling > 0:
        state.seen = state.time + run_seconds(first, slope, count - 1)
    state.time += seconds
    state.busy_s += seconds
    state.iterations += count
    if state.decoding > 0:
        state.round_end = state.time
        if settings.random > 0:
            draw_round(w)
        if settings.window > 0 and state.below > 0:
            windows_filled(w)
    state.round_blocks_taken = 0
    state.prefilled += int(state.new_tokens) * count
    if settings.paged > 0 and count > 1 and state.sequences > 0.0:
        hold_chunks(w, count)


@part
def finish_decoders(w: World) -> None:
    """Decoders that have emitted their last token leave, in order of admission."""
    state, settings = w.state[0], w.settings
    slot = state.run_head if settings.random > 0 else (first_in_line(w) if next_finish(w) <= state.rounds else -1)
    while slot >= 0:
        request, after = w.slots[slot].request, w.slots[slot].next
        whole = settings.random == 0 or (
            w.slots[slot].decoding > 0 and w.slots[slot].generated + w.slots[slot].progress >= w.output[request]
        )
        if whole:
            leave_decoders(w, slot)
            extend_prefix(w, slot, w.prompt[request] + w.output[request] - 1)
            w.results[request].generated = w.output[request]
            finish_slot(w, slot, FINISHED)
            judge_good(w, request)
        if settings.random == 0:
            after = first_in_line(w) if next_finish(w) <= state.rounds else -1
        slot = after


@part
def finish_prompts(w: World, count: int) -> None:
    """Every prompt has gone on by ``count`` chunks; those that are complete emit a token and start to decode."""
    state, settings = w.state[0], w.settings
    place, total = 0, state.prefilling
    kept = 0
    for place in range(total):
        slot = w.prefills[place]
        w.slots[slot].computed += w.slots[slot].chunk * count
        if w.slots[slot].computed < w.slots[slot].target:
            w.prefills[kept] = slot
            kept += 1
            continue
        request = w.slots[slot].request
        if w.results[request].generated == 0:
            w.results[request].first = state.time
        else:
            gap = state.time - w.results[request].last
            w.results[request].max_gap = max(w.results[request].max_gap, gap)
            log_gaps(w, gap, 0.0, 1, 1)
        w.results[request].generated += 1
        left = w.output[request] - w.results[request].generated
        if left == 0:
            finish_slot(w, slot, FINISHED)
            judge_good(w, request)
            continue
        if settings.preparation_s > 0.0 and w.results[request].generated == 1:
            prepare_draft(w, slot)
        else:
            begin_decoding(w, slot)
    state.prefilling = kept


@rare
def cancel_due(w: World) -> None:
    """Cancelled requests stop here: the iterations submitted have ended, so their blocks are free (section 8.3.2)."""
    state = w.state[0]
    while next_cancel_time(w) <= seen(w) + INSTANT:
        request = w.cancel_order[state.next_cancel]
        state.next_cancel += 1
        if w.results[request].status != PENDING or w.results[request].arrival < 0.0:
            continue
        slot = state.run_head
        while slot >= 0 and w.slots[slot].request != request:
            slot = w.slots[slot].next
        if slot < 0:
            state.in_system -= 1
            end_request(w, request, CANCELLED, state.time)
            continue
        if w.slots[slot].decoding > 0:
            leave_decoders(w, slot)
        else:
            drop_prefill(w, slot)
        finish_slot(w, slot, CANCELLED)


@part
def receive_next(w: World) -> None:
    """Take the earliest arrival, whether by the clock or after another request."""
    state = w.state[0]
    by_clock = state.next_arrival < w.arrival.shape[0]
    if state.pending > 0 and (
        not by_clock
        or w.pending[0].time < w.arrival[state.next_arrival]
        or (w.pending[0].time == w.arrival[state.next_arrival] and w.pending[0].request < state.next_arrival)
    ):
        request, time = w.pending[0].request, w.pending[0].time
        pending_pop(state, w.pending)
    else:
        request, time = state.next_arrival, w.arrival[state.next_arrival]
        state.next_arrival += 1
        skip_followers(w)
    receive(w, request, time)


@part
def idle(w: World) -> bool:
    """Nothing to run: jump to the next arrival. False where there is none (a request can never be scheduled)."""
    state = w.state[0]
    skip_followers(w)
    time = next_arrival_time(w)
    if state.preparing > 0:
        time = min(time, next_prepared_time(w), next_cancel_time(w))
    if state.preempted_now > 0 or state.done == w.arrival.shape[0] or time <= state.time:
        return True
    if time >= float(NEVER):
        time = next_cancel_time(w)
    if time >= float(NEVER):
        state.stuck = 1
        return False
    state.time = max(state.time, time)
    return True


@part
def take_events(w: World) -> None:
    """Arrivals, cancellations and prepared drafts since the last decision."""
    skip_followers(w)
    now = seen(w) + INSTANT
    while next_arrival_time(w) <= now:
        receive_next(w)
    if next_cancel_time(w) <= now:
        cancel_due(w)
    if next_prepared_time(w) <= now:
        prepared_due(w)


@part
def build_batch(w: World) -> None:
    """One scheduling decision; the order of the three steps is the policy."""
    state, settings = w.state[0], w.settings
    clear_batch(w)
    if mixes(w):
        schedule_decodes(w)
        state.budget_left -= state.decoders * settings.rows
    may_admit = admits(w)
    continue_prompts(w)
    if may_admit and state.preempted_now == 0:
        admit_waiting(w)
    if decodes_after(w):
        schedule_decodes(w)
    if mixes(w):
        state.decoding = 1 if state.decoders > 0 else 0


@part
def next_event(w: World) -> float:
    """When a run has to stop because of the clock: an arrival that could be admitted or refused, or a cancellation."""
    state, settings = w.state[0], w.settings
    until = min(next_cancel_time(w), next_prepared_time(w))
    if state.open > 0 or settings.admission_limit > 0:
        until = min(until, next_arrival_time(w))
    return until - INSTANT


@compiled
def run_scheduler(w: World) -> None:
    """Simulate until every request has ended (or the early stop says enough)."""
    state, settings = w.state[0], w.settings
    clear_results(w)
    while state.done < w.arrival.shape[0] and state.stopped == 0:
        take_events(w)
        build_batch(w)
        if state.sequences == 0.0 and state.decoding == 0:
            if not idle(w):
                return
            state.seen = state.time
            continue
        first, slope, count = linear_run(w, blocks_allow(w, longest_run(w)))
        if count > 1:
            wait = next_event(w) - state.time  # what came and is not seen yet waits for this iteration alone
            count = min(count, iterations_until(first, slope, wait, count) + settings.async_scheduling) if wait > 0.0 else 1
        if settings.every_iteration > 0:
            record_rows(w, first)
        advance(w, first, slope, count)
        finish_decoders(w)
        if state.sequences > 0.0:
            finish_prompts(w, count)
        if state.time >= state.next_sample:
            record_sample(w)
    note_peak(w)
