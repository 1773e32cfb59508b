"""What the next iteration does: decodes, then unfinished prompts, then waiting requests, within tokens, slots and blocks.

Order of a scheduling decision (CHUNKED is vLLM V1 and Sarathi; CONTINUOUS is Orca: whole prompts join the decodes):
1. every decoder gets its rows; where blocks run out, the last admitted request is preempted until they suffice;
2. unfinished prompts in order of admission get min(rest, chunk cap, budget left);
3. unless somebody was preempted, waiting requests are admitted first come first served, the preempted ones before all.
PREFILL_FIRST (SGLang without mixed chunks, vLLM V0) does 2 and 3 first and decodes only when they have nothing.
FIXED admits a whole group when the previous one is done, prefills all of it, then decodes to the end.
"""

from __future__ import annotations

from models.kernels.jit import compiled
from models.kernels.scheduler_blocks import acquire_prefix, available, blocks_of, cached_prefix, extend_prefix, take_blocks
from models.kernels.scheduler_slots import advanced, end_request, preempt, run_append
from models.kernels.scheduler_state import (
    CACHE_OFF,
    CHUNKED,
    CONTINUOUS,
    FIXED,
    LATE,
    NEVER,
    OVER_LIMIT,
    PENDING,
    PREFILL_FIRST,
    RESERVE_PROMPT,
    RESERVE_WHOLE,
    TOO_LARGE,
)
from models.kernels.scheduler_step import padded, shape_seconds, step_line


@compiled
def impossible(settings, tokens_in, tokens_out):  # type: ignore[no-untyped-def]
    """Whether the request can never run: longer than the context, the pool, or (unchunked) the budget."""
    total = tokens_in + tokens_out - 1
    if settings.max_model_len > 0 and tokens_in + tokens_out > settings.max_model_len:
        return True
    if settings.policy == CONTINUOUS and tokens_in > settings.token_budget:
        return True
    return settings.total_blocks > 0 and blocks_of(total + settings.rows - 1, settings.block_tokens) > settings.total_blocks


@compiled
def next_arrival_time(state, arrival, follows, pending):  # type: ignore[no-untyped-def]
    """Earliest arrival that the scheduler has not seen."""
    time = float(NEVER)
    if state.next_arrival < arrival.shape[0]:
        time = arrival[state.next_arrival]
    if state.pending > 0 and pending[0].time < time:
        time = pending[0].time
    return time


@compiled
def skip_followers(state, arrival, follows):  # type: ignore[no-untyped-def]
    """Requests that wait for another one do not arrive by the clock."""
    while follows.shape[0] > 0 and state.next_arrival < arrival.shape[0] and follows[state.next_arrival] > 0:
        state.next_arrival += 1


@compiled
def receive(state, settings, results, request, time, prompt, output, queue, follower, delay, pending):  # type: ignore[no-untyped-def]
    """A request arrives: refused for good, or queued."""
    results[request].arrival = time
    if impossible(settings, prompt[request], output[request]):
        end_request(state, results, request, TOO_LARGE, time, follower, delay, pending)
        return
    if settings.admission_limit > 0 and state.in_system >= settings.admission_limit:
        end_request(state, results, request, OVER_LIMIT, state.time, follower, delay, pending)
        return
    state.in_system += 1
    queue[state.queue_tail] = request
    state.queue_tail += 1


@compiled
def evict_group(state, settings, slots, needed, free, phases, heap, stack, results, nodes, path_start, path_nodes, links, prompt, resume, prefills, keep):  # type: ignore[no-untyped-def]
    """Preempt from the end of the list until ``needed`` blocks are available; False where slot ``keep`` itself had to go."""
    while available(state) < needed:
        victim = state.run_tail
        preempt(state, settings, slots, free, victim, phases, heap, stack, results, nodes, path_start, path_nodes, links, prompt, resume, prefills)
        if victim == keep:
            return False
    return True


@compiled
def round_need(state, settings, slots, phases):  # type: ignore[no-untyped-def]
    """Blocks that the next round of all decoders allocates."""
    if settings.per_round == 0:
        return phases[-state.rounds % settings.block_tokens]
    need, slot = 0, state.run_head
    while slot >= 0:
        if slots[slot].decoding > 0:
            reach = slots[slot].stored + advanced(state, settings, slots, slot) + settings.rows
            need += max(blocks_of(reach, settings.block_tokens) - slots[slot].held, 0)
        slot = slots[slot].next
    return need


@compiled
def hold_round(state, settings, slots):  # type: ignore[no-untyped-def]
    """Per-round mode: each decoder holds its K + 1 slots."""
    slot = state.run_head
    while slot >= 0:
        if slots[slot].decoding > 0:
            reach = slots[slot].stored + advanced(state, settings, slots, slot) + settings.rows
            slots[slot].held = max(slots[slot].held, blocks_of(reach, settings.block_tokens))
        slot = slots[slot].next


@compiled
def schedule_decodes(state, settings, slots, free, phases, heap, stack, results, nodes, path_start, path_nodes, links, prompt, resume, prefills):  # type: ignore[no-untyped-def]
    """Step 1: rows and blocks for every decoder."""
    if settings.total_blocks > 0 and settings.reserve != RESERVE_WHOLE:
        need = round_need(state, settings, slots, phases)
        while need > available(state) and state.decoders > 0:
            preempt(
                state, settings, slots, free, state.run_tail, phases, heap, stack, results, nodes, path_start, path_nodes, links, prompt, resume, prefills
            )
            need = round_need(state, settings, slots, phases)
        if state.decoders > 0:
            take_blocks(state, settings, links, nodes, need)
            state.round_blocks_taken = 1
            if settings.per_round > 0:
                hold_round(state, settings, slots)
    state.decoding = 1 if state.decoders > 0 else 0


@compiled
def add_chunk(state, slots, slot, chunk):  # type: ignore[no-untyped-def]
    """``chunk`` more tokens of a prompt: c h + c (c + 1) / 2 pairs, growing by c^2 from one full chunk to the next (8.2.3)."""
    cached, size = float(slots[slot].computed), float(chunk)
    left = slots[slot].target - slots[slot].computed
    slots[slot].chunk = chunk
    state.sequences += 1.0
    state.new_tokens += size
    state.pairs += size * cached + size * (size + 1.0) * 0.5
    state.kv_tokens += cached
    state.pairs_step += size * size
    state.kv_step += size
    if left == chunk:
        state.logit_rows += 1.0
        state.same_for = 1
    else:
        state.same_for = min(state.same_for, (left - 1) // chunk)
    state.budget_left -= chunk


@compiled
def chunk_of(state, settings, left):  # type: ignore[no-untyped-def]
    """Tokens of this prompt in this iteration; 0 where it has to wait."""
    if settings.policy == CONTINUOUS:
        return left if left <= state.budget_left or state.sequences == 0.0 else 0
    if settings.chunk_cap > 0:
        left = min(left, settings.chunk_cap)
    return max(min(left, state.budget_left), 0)


@compiled
def continue_prompts(state, settings, slots, free, phases, heap, stack, results, nodes, path_start, path_nodes, links, prompt, resume, prefills):  # type: ignore[no-untyped-def]
    """Step 2: the next chunk of every unfinished prompt."""
    place = 0
    while place < state.prefilling:
        slot = prefills[place]
        chunk = chunk_of(state, settings, slots[slot].target - slots[slot].computed)
        slots[slot].chunk = 0
        place += 1
        if chunk == 0:
            continue
        need = blocks_of(slots[slot].computed + chunk, settings.block_tokens) - slots[slot].held
        if need > 0:
            if settings.total_blocks > 0 and not evict_group(
                state, settings, slots, need, free, phases, heap, stack, results, nodes, path_start, path_nodes, links, prompt, resume, prefills, slot
            ):
                return
            take_blocks(state, settings, links, nodes, need)
            slots[slot].held += need
        add_chunk(state, slots, slot, chunk)
        extend_prefix(state, settings, slots, slot, links, nodes, path_start, path_nodes, slots[slot].computed + chunk)


@compiled
def too_late(state, settings, models, pad, extra, limits, arrival, kind, hit, target, left):  # type: ignore[no-untyped-def]
    """Deadline-aware admission: alone in its prefill, then decoding with those present, would it miss TTFT or e2e?"""
    new, cached = float(target - hit), float(hit)
    pairs = new * cached + new * (new + 1.0) * 0.5
    n = padded(new, pad)
    prefill = step_line(models[0], n, 1.0, pairs, settings.kv_bytes * cached + settings.state_bytes, 1.0, 0.0, 0.0)[0] + shape_seconds(n, extra)
    verify, count = float(settings.rows), float(state.decoders + 1)
    context = state.context + target
    q, k = verify * context + count * verify * (verify + 1.0) * 0.5, settings.kv_bytes * (context - state.saved_context) + settings.state_bytes * count
    n = padded(count * verify, pad)
    step = step_line(models[1], n, count * verify, q, k, count, 0.0, 0.0)[0] + shape_seconds(n, extra)
    rounds = left / settings.tokens_per_round
    return state.time + prefill > arrival + limits[kind, 0] or state.time + prefill + rounds * step > arrival + limits[kind, 1]


@compiled
def place_request(state, settings, slots, free, request, results, target, hit, links, nodes, path_start, path_nodes, prefills):  # type: ignore[no-untyped-def]
    """Admit: a slot, the cached part of the prefix, a place among the unfinished prompts."""
    state.free_slots -= 1
    slot = free[state.free_slots]
    slots[slot].request, slots[slot].sequence, slots[slot].decoding = request, state.sequence, 0
    slots[slot].target, slots[slot].computed, slots[slot].chunk = target, hit * settings.block_tokens, 0
    slots[slot].shared, slots[slot].held, slots[slot].nodes, slots[slot].path_place, slots[slot].chained = 0, 0, 0, 0, 1
    state.sequence += 1
    run_append(state, slots, slot)
    prefills[state.prefilling] = slot
    state.prefilling += 1
    if settings.cache != CACHE_OFF:
        acquire_prefix(state, slots, slot, links, nodes, path_start, path_nodes, hit)
        state.lookups_tokens += target
        state.hit_tokens += slots[slot].computed
        results[request].hit_tokens += slots[slot].computed
    state.recomputed += max(results[request].lost - slots[slot].computed, 0)
    results[request].lost = 0
    if results[request].scheduled < 0.0:
        results[request].scheduled = state.time
    return slot


@compiled
def fits(state, settings, hit, idle, target, chunk, total):  # type: ignore[no-untyped-def]
    """Blocks to take now for the admission, or -1 where the pool cannot serve it yet."""
    reach = hit * settings.block_tokens + chunk
    if settings.reserve == RESERVE_WHOLE:
        reach = total
    need = blocks_of(reach, settings.block_tokens) - hit
    check = need
    if settings.reserve == RESERVE_PROMPT:
        check = blocks_of(target, settings.block_tokens) - hit
    if settings.total_blocks > 0 and check > available(state) - idle:
        return -1
    return need


@compiled
def admit_waiting(
    state, settings, slots, free, results, models, pad, extra, limits, klass, prompt, output, queue, resume, prefills, links, nodes, path_start, path_nodes, follower, delay, pending
):  # type: ignore[no-untyped-def]
    """Step 3: first come first served while slots, budget and blocks last; the head of the line blocks those behind it."""
    while state.running < settings.max_num_seqs and (state.budget_left > 0 or settings.policy == FIXED):
        again = state.resume > 0
        if not again and state.queue_head == state.queue_tail:
            state.open = 1
            return
        request = resume[state.resume - 1] if again else queue[state.queue_head]
        target, left = prompt[request] + results[request].generated, output[request] - results[request].generated - 1
        gone = results[request].status != PENDING
        hit, idle = (0, 0) if gone else cached_prefix(settings, nodes, path_start, path_nodes, request, (target - 1) // settings.block_tokens, links)
        kind = klass[request] if klass.shape[0] > 0 else 0
        if not gone and settings.deadline_aware > 0 and too_late(state, settings, models, pad, extra, limits, results[request].arrival, kind, hit * settings.block_tokens, target, left):
            gone = True
            state.in_system -= 1
            end_request(state, results, request, LATE, state.time, follower, delay, pending)
        chunk = 0 if gone else chunk_of(state, settings, target - hit * settings.block_tokens)
        if not gone and chunk == 0 and settings.policy != FIXED:
            return
        total = prompt[request] + output[request] - 1 + settings.rows - 1
        need = 0 if gone else fits(state, settings, hit, idle, target, chunk, total)
        if need < 0 and state.running == 0 and hit > 0:  # alone, and still blocked by cached blocks it would hold: start afresh
            hit, chunk = 0, chunk_of(state, settings, target)
            need = fits(state, settings, 0, 0, target, chunk, total)
        if need < 0:
            return
        if again:
            state.resume -= 1
        else:
            state.queue_head += 1
        if gone:
            continue
        slot = place_request(state, settings, slots, free, request, results, target, hit, links, nodes, path_start, path_nodes, prefills)
        take_blocks(state, settings, links, nodes, need)
        slots[slot].held += need
        if chunk > 0:
            add_chunk(state, slots, slot, chunk)
            extend_prefix(state, settings, slots, slot, links, nodes, path_start, path_nodes, slots[slot].computed + chunk)


@compiled
def clear_batch(state, settings):  # type: ignore[no-untyped-def]
    """Start from an empty iteration."""
    state.new_tokens, state.logit_rows, state.pairs, state.kv_tokens, state.sequences = 0.0, 0.0, 0.0, 0.0, 0.0
    state.pairs_step, state.kv_step = 0.0, 0.0
    state.same_for, state.decoding, state.preempted_now, state.open, state.round_blocks_taken = NEVER, 0, 0, 0, 0
    state.budget_left = settings.token_budget


@compiled
def mixes(settings):  # type: ignore[no-untyped-def]
    """Whether prefill and decode share iterations."""
    return settings.policy in (CHUNKED, CONTINUOUS)


@compiled
def admits(state, settings):  # type: ignore[no-untyped-def]
    """Whether this decision may admit: always, except that a fixed group closes when it starts."""
    return state.preempted_now == 0 and (settings.policy != FIXED or state.running == 0)


@compiled
def decodes_after(state, settings):  # type: ignore[no-untyped-def]
    """Policies that do not mix decode when no prompt is being processed."""
    return state.sequences == 0.0 and state.decoders > 0 and settings.policy in (PREFILL_FIRST, FIXED)
