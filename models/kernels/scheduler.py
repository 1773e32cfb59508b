"""The scheduler loop: traffic in, per-request times out, one run of iterations at a time.

Between two events (an arrival that could be admitted, the last chunk of a prompt, a completion, exhausted blocks, a
cancellation) every iteration does the same to the same requests, and its time grows linearly (``scheduler_step``), so the
whole run is added up in closed form. Notation: ``scheduler_state``. Rows of the arrays are described in ``models.simulate``.
"""

from __future__ import annotations

from models.kernels.jit import compiled
from models.kernels.scheduler_batch import (
    admit_waiting,
    admits,
    clear_batch,
    continue_prompts,
    decodes_after,
    mixes,
    next_arrival_time,
    receive,
    schedule_decodes,
    skip_followers,
)
from models.kernels.scheduler_blocks import available, blocks_of, extend_prefix, take_blocks
from models.kernels.scheduler_events import heap_push, log_gaps, pending_pop, stack_push
from models.kernels.scheduler_slots import (
    accepted_tokens,
    drop_prefill,
    end_request,
    finish_slot,
    join_decoders,
    judge_good,
    leave_decoders,
    next_cancel_time,
)
from models.kernels.scheduler_state import (
    CACHE_OFF,
    CANCELLED,
    DECODE_ROW,
    FINISHED,
    NEVER,
    PENDING,
    PREFILL_ROW,
    RESERVE_WHOLE,
)
from models.kernels.scheduler_step import iterations_until, linear_run, run_seconds


@compiled
def rounds_need(phases, block, first, count):  # type: ignore[no-untyped-def]
    """Blocks that ``count`` rounds from round ``first`` on allocate: a decoder needs one whenever its tail block is full."""
    whole = count // block
    need = 0
    if whole > 0:
        for place in range(block):
            need += phases[place]
        need *= whole
    for place in range(first, first + count % block):
        need += phases[-place % block]
    return need


@compiled
def rounds_within(state, phases, block, room, most):  # type: ignore[no-untyped-def]
    """Rounds after the next one (at most ``most``) whose blocks fit into ``room``."""
    cycles = room // max(state.decoders, 1)
    count = min(most, cycles * block)
    if count == most:
        return most
    room -= cycles * state.decoders
    while count < most:
        room -= phases[-(state.rounds + 1 + count) % block]
        if room < 0:
            break
        count += 1
    return count


@compiled
def longest_run(state, settings, heap, phases):  # type: ignore[no-untyped-def]
    """Iterations for which the batch stays the same, time-driven events aside."""
    if settings.every_iteration > 0 or settings.per_round > 0 or state.preempted_now > 0:
        return 1
    if state.decoding > 0 and (state.newcomers > 0 or (not mixes(settings) and state.round_end < state.time)):
        return 1
    most = state.same_for
    if state.decoding > 0:
        most = min(most, heap[0].key - state.rounds)
    waiting = state.resume > 0 or state.queue_head < state.queue_tail
    if settings.cache != CACHE_OFF and waiting and state.sequences > 0.0:
        return 1
    if settings.total_blocks == 0 or settings.reserve == RESERVE_WHOLE or most <= 1:
        return most
    if state.sequences == 0.0:
        return 1 + rounds_within(state, phases, settings.block_tokens, available(state), most - 1)
    tokens = int(state.new_tokens) + (state.decoders if state.decoding > 0 else 0)
    bound = tokens * (most - 1) // settings.block_tokens + state.decoders + int(state.sequences)
    return most if bound <= available(state) else 1


@compiled
def record_rows(state, settings, slots, rows, seconds):  # type: ignore[no-untyped-def]
    """Timeline: who did what in this iteration."""
    slot = state.run_head
    while slot >= 0 and state.rows_recorded < rows.shape[0]:
        decodes = slots[slot].decoding > 0
        if (decodes and state.decoding > 0) or (not decodes and slots[slot].chunk > 0):
            row = rows[state.rows_recorded]
            row.start, row.end, row.request = state.time, state.time + seconds, slots[slot].request
            row.kind, row.tokens = (DECODE_ROW, settings.rows) if decodes else (PREFILL_ROW, slots[slot].chunk)
            state.rows_recorded += 1
        slot = slots[slot].next


@compiled
def record_sample(state, settings, samples):  # type: ignore[no-untyped-def]
    """State over time, at most as many samples as there is room for: when full, every second one goes."""
    if state.samples == samples.shape[0]:
        for place in range(samples.shape[0] // 2):
            samples[place] = samples[2 * place]
        state.samples = samples.shape[0] // 2
        state.sample_s *= 2.0
    sample = samples[state.samples]
    sample.time, sample.running = state.time, state.running
    sample.waiting = state.queue_tail - state.queue_head + state.resume
    sample.used_blocks = settings.total_blocks - state.pristine - state.evictable if settings.total_blocks > 0 else 0
    sample.hit_tokens, sample.lookup_tokens = state.hit_tokens, state.lookups_tokens
    sample.preemptions, sample.recomputed = state.preemptions, state.recomputed
    state.samples += 1
    state.next_sample = state.time + state.sample_s


@compiled
def log_round_gaps(state, settings, slots, stack, gaps, histogram, results, first, slope, count):  # type: ignore[no-untyped-def]
    """Gaps of the decoders of this run; a decoder that waited since its first token sees its own first gap."""
    if mixes(settings) or (state.newcomers == 0 and state.round_end == state.time):
        log_gaps(state, gaps, histogram, first, slope, count, state.decoders)
        stack_push(state, stack, slots, first + slope * (count - 1.0))
        return
    end = state.time + first
    if state.newcomers < state.decoders:
        log_gaps(state, gaps, histogram, end - state.round_end, 0.0, 1, state.decoders - state.newcomers)
        stack_push(state, stack, slots, end - state.round_end)
    else:
        stack_push(state, stack, slots, 0.0)
    slot = state.run_head
    while slot >= 0 and state.newcomers > 0:
        if slots[slot].decoding > 0 and slots[slot].since > state.rounds:
            gap = end - slots[slot].emitted
            log_gaps(state, gaps, histogram, gap, 0.0, 1, 1)
            results[slots[slot].request].max_gap = max(results[slots[slot].request].max_gap, gap)
            state.newcomers -= 1
        slot = slots[slot].next


@compiled
def draw_round(state, settings, slots, accept, results):  # type: ignore[no-untyped-def]
    """Random acceptance: every decoder advances by what its round yielded."""
    slot = state.run_head
    while slot >= 0:
        if slots[slot].decoding > 0:
            request = slots[slot].request
            tokens = accepted_tokens(settings, accept, request, results[request].draws)
            results[request].draws += 1
            slots[slot].progress += tokens
            if settings.constant_context == 0:
                state.context += tokens
        slot = slots[slot].next


@compiled
def advance(state, settings, slots, prefills, stack, gaps, histogram, results, accept, phases, links, nodes, path_start, path_nodes, first, slope, count):  # type: ignore[no-untyped-def]
    """The clock moves over ``count`` iterations of the batch."""
    seconds = run_seconds(first, slope, count)
    if state.decoding > 0:
        log_round_gaps(state, settings, slots, stack, gaps, histogram, results, first, slope, count)
        if count > 1 and settings.total_blocks > 0 and settings.reserve != RESERVE_WHOLE and settings.per_round == 0:
            take_blocks(state, settings, links, nodes, rounds_need(phases, settings.block_tokens, state.rounds + 1, count - 1))
        state.rounds += count
        state.context += count * state.growth
    state.time += seconds
    state.busy_s += seconds
    state.iterations += count
    if state.decoding > 0:
        state.round_end = state.time
        if settings.random > 0:
            draw_round(state, settings, slots, accept, results)
    state.round_blocks_taken = 0
    if state.sequences > 0.0:
        for place in range(state.prefilling):
            slot = prefills[place]
            slots[slot].computed += slots[slot].chunk * count
            state.prefilled += slots[slot].chunk * count
            if count > 1 and slots[slot].chunk > 0:
                need = blocks_of(slots[slot].computed, settings.block_tokens) - slots[slot].held
                if need > 0:
                    take_blocks(state, settings, links, nodes, need)
                    slots[slot].held += need
                extend_prefix(state, settings, slots, slot, links, nodes, path_start, path_nodes, slots[slot].computed)


@compiled
def finish_decoders(
    state, settings, slots, free, heap, phases, stack, results, links, nodes, path_start, path_nodes, prompt, output, klass, limits, follower, delay, pending
):  # type: ignore[no-untyped-def]
    """Decoders that have emitted their last token leave, in order of admission."""
    slot = state.run_head if settings.random > 0 else (heap[0].slot if state.heap > 0 and heap[0].key <= state.rounds else -1)
    while slot >= 0:
        request, after = slots[slot].request, slots[slot].next
        whole = settings.random == 0 or (slots[slot].decoding > 0 and slots[slot].generated + slots[slot].progress >= output[request])
        if whole:
            leave_decoders(state, settings, slots, slot, phases, heap, stack, results, nodes, path_start, path_nodes, prompt[request])
            extend_prefix(state, settings, slots, slot, links, nodes, path_start, path_nodes, prompt[request] + output[request] - 1)
            results[request].generated = output[request]
            finish_slot(state, settings, slots, free, slot, FINISHED, results, nodes, path_start, path_nodes, links, follower, delay, pending)
            judge_good(state, settings, results, request, output, limits, klass)
        if settings.random == 0:
            after = heap[0].slot if state.heap > 0 and heap[0].key <= state.rounds else -1
        slot = after


@compiled
def finish_prompts(
    state, settings, slots, free, prefills, heap, phases, gaps, histogram, results, links, nodes, path_start, path_nodes, prompt, output, klass, limits, follower, delay, pending
):  # type: ignore[no-untyped-def]
    """Prompts that are complete emit a token and start to decode."""
    place, total = 0, state.prefilling
    kept = 0
    for place in range(total):
        slot = prefills[place]
        if slots[slot].computed < slots[slot].target:
            prefills[kept] = slot
            kept += 1
            continue
        request = slots[slot].request
        if results[request].generated == 0:
            results[request].first = state.time
        else:
            gap = state.time - results[request].last
            results[request].max_gap = max(results[request].max_gap, gap)
            log_gaps(state, gaps, histogram, gap, 0.0, 1, 1)
        results[request].generated += 1
        left = output[request] - results[request].generated
        if left == 0:
            finish_slot(state, settings, slots, free, slot, FINISHED, results, nodes, path_start, path_nodes, links, follower, delay, pending)
            judge_good(state, settings, results, request, output, limits, klass)
            continue
        join_decoders(
            state, settings, slots, slot, slots[slot].target, results[request].generated, phases, nodes, path_start, path_nodes, prompt[request]
        )
        if settings.random == 0:
            rounds = left if settings.tokens_per_round == 1.0 else int(-(-(left / settings.tokens_per_round - 1e-9) // 1.0))
            heap_push(state, heap, slots, slot, state.rounds + rounds)
    state.prefilling = kept


@compiled
def cancel_due(
    state, settings, slots, free, prefills, heap, phases, stack, results, links, nodes, path_start, path_nodes, prompt, cancel, cancel_order, follower, delay, pending
):  # type: ignore[no-untyped-def]
    """Cancelled requests stop here: the iteration in flight has ended, so their blocks are free (section 8.3.2)."""
    while next_cancel_time(state, settings, cancel, cancel_order) <= state.time:
        request = cancel_order[state.next_cancel]
        state.next_cancel += 1
        if results[request].status != PENDING or results[request].arrival < 0.0:
            continue
        slot = state.run_head
        while slot >= 0 and slots[slot].request != request:
            slot = slots[slot].next
        if slot < 0:
            state.in_system -= 1
            end_request(state, results, request, CANCELLED, state.time, follower, delay, pending)
            continue
        if slots[slot].decoding > 0:
            leave_decoders(state, settings, slots, slot, phases, heap, stack, results, nodes, path_start, path_nodes, prompt[request])
        else:
            drop_prefill(state, prefills, slot)
        finish_slot(state, settings, slots, free, slot, CANCELLED, results, nodes, path_start, path_nodes, links, follower, delay, pending)


@compiled
def receive_next(state, settings, results, arrival, prompt, output, queue, follows, follower, delay, pending):  # type: ignore[no-untyped-def]
    """Take the earliest arrival, whether by the clock or after another request."""
    by_clock = state.next_arrival < arrival.shape[0]
    if state.pending > 0 and (not by_clock or pending[0].time < arrival[state.next_arrival] or (pending[0].time == arrival[state.next_arrival] and pending[0].request < state.next_arrival)):
        request, time = pending[0].request, pending[0].time
        pending_pop(state, pending)
    else:
        request, time = state.next_arrival, arrival[state.next_arrival]
        state.next_arrival += 1
        skip_followers(state, arrival, follows)
    receive(state, settings, results, request, time, prompt, output, queue, follower, delay, pending)


@compiled
def idle(state, settings, arrival, follows, pending, cancel, cancel_order):  # type: ignore[no-untyped-def]
    """Nothing to run: jump to the next arrival. False where there is none (a request can never be scheduled)."""
    skip_followers(state, arrival, follows)
    time = next_arrival_time(state, arrival, follows, pending)
    if state.preempted_now > 0 or state.done == arrival.shape[0] or time <= state.time:
        return True
    if time >= float(NEVER):
        time = next_cancel_time(state, settings, cancel, cancel_order)
    if time >= float(NEVER):
        state.stuck = 1
        return False
    state.time = max(state.time, time)
    return True


@compiled
def run_scheduler(
    state_of, settings_of, models, pad, extra, accept, limits, arrival, prompt, output, klass, follows, follower, delay, cancel, cancel_order,
    path_start, path_nodes, nodes, links, results, slots, free, prefills, heap, phases, queue, resume, pending, stack, gaps, histogram, samples, rows,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """Simulate until every request has ended (or the early stop says enough)."""
    state, settings = state_of[0], settings_of[0]
    while state.done < arrival.shape[0] and state.stopped == 0:
        skip_followers(state, arrival, follows)
        while next_arrival_time(state, arrival, follows, pending) <= state.time:
            receive_next(state, settings, results, arrival, prompt, output, queue, follows, follower, delay, pending)
        if settings.cancel_count > 0:
            cancel_due(state, settings, slots, free, prefills, heap, phases, stack, results, links, nodes, path_start, path_nodes, prompt, cancel, cancel_order, follower, delay, pending)
        clear_batch(state, settings)
        if mixes(settings):
            schedule_decodes(state, settings, slots, free, phases, heap, stack, results, nodes, path_start, path_nodes, links, prompt, resume, prefills)
            state.budget_left -= state.decoders * settings.rows
        may_admit = admits(state, settings)
        continue_prompts(state, settings, slots, free, phases, heap, stack, results, nodes, path_start, path_nodes, links, prompt, resume, prefills)
        if may_admit and state.preempted_now == 0:
            admit_waiting(state, settings, slots, free, results, models, pad, extra, limits, klass, prompt, output, queue, resume, prefills, links, nodes, path_start, path_nodes, follower, delay, pending)
        if decodes_after(state, settings):
            schedule_decodes(state, settings, slots, free, phases, heap, stack, results, nodes, path_start, path_nodes, links, prompt, resume, prefills)
        if mixes(settings):
            state.decoding = 1 if state.decoders > 0 else 0
        if state.sequences == 0.0 and state.decoding == 0:
            if not idle(state, settings, arrival, follows, pending, cancel, cancel_order):
                return
            continue
        first, slope, count = linear_run(state, settings, models, pad, extra, longest_run(state, settings, heap, phases))
        until = float(NEVER)
        if count > 1:
            if state.open > 0 or settings.admission_limit > 0:
                until = next_arrival_time(state, arrival, follows, pending)
            until = min(until, next_cancel_time(state, settings, cancel, cancel_order))
            count = iterations_until(first, slope, until - state.time, count)
        if settings.every_iteration > 0:
            record_rows(state, settings, slots, rows, first)
        advance(state, settings, slots, prefills, stack, gaps, histogram, results, accept, phases, links, nodes, path_start, path_nodes, first, slope, count)
        finish_decoders(state, settings, slots, free, heap, phases, stack, results, links, nodes, path_start, path_nodes, prompt, output, klass, limits, follower, delay, pending)
        if state.sequences > 0.0:
            finish_prompts(state, settings, slots, free, prefills, heap, phases, gaps, histogram, results, links, nodes, path_start, path_nodes, prompt, output, klass, limits, follower, delay, pending)
        if state.time >= state.next_sample:
            record_sample(state, settings, samples)
