"""What the next iteration does: decodes, then unfinished prompts, then waiting requests, within tokens, slots and blocks.

Order of a scheduling decision (CHUNKED is vLLM V1 and Sarathi; CONTINUOUS is Orca: whole prompts join the decodes):
1. every decoder gets its rows; where blocks run out, the last admitted request is preempted until they suffice;
2. unfinished prompts in order of admission get min(rest, chunk cap, budget left);
3. unless somebody was preempted, waiting requests are admitted first come first served, the preempted ones before all. With
   deadlines in view the head of the line is refused when it would be late, or goes behind everybody who may still be on time.
PREFILL_FIRST (SGLang without mixed chunks, vLLM V0) does 2 and 3 first and decodes only when they have nothing.
What happens within a nanosecond after an iteration's end is seen at its end: equal steps often meet even arrivals.
FIXED admits a whole group when the previous one is done, prefills all of it, then decodes to the end.
"""

from __future__ import annotations

from models.kernels.jit import part, rare
from models.kernels.scheduler_blocks import acquire_prefix, available, blocks_of, cached_prefix, extend_prefix, full_blocks, take_blocks
from models.kernels.scheduler_growth import hold_round, round_need
from models.kernels.scheduler_slots import end_request, preempt, run_append, waiting
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
    World,
)
from models.kernels.scheduler_step import copied, padded, shape_seconds, step_line


@part
def impossible(w: World, tokens_in: int, tokens_out: int) -> bool:
    """Whether the request can never run: longer than the context, the pool, or (unchunked) the budget."""
    settings = w.settings
    total = tokens_in + tokens_out - 1
    if settings.max_model_len > 0 and tokens_in + tokens_out > settings.max_model_len:
        return True
    if settings.policy == CONTINUOUS and tokens_in > settings.token_budget:
        return True
    return settings.total_blocks > 0 and blocks_of(w, total + settings.rows - 1) > settings.total_blocks


@part
def next_arrival_time(w: World) -> float:
    """Earliest arrival that the scheduler has not seen."""
    state = w.state[0]
    time = float(NEVER)
    if state.next_arrival < w.arrival.shape[0]:
        time = w.arrival[state.next_arrival]
    if w.settings.followers > 0 and state.pending > 0 and w.pending[0].time < time:
        time = w.pending[0].time
    return time


@part
def skip_followers(w: World) -> None:
    """Requests that wait for another one do not arrive by the clock."""
    state, settings = w.state[0], w.settings
    while settings.followers > 0 and state.next_arrival < w.arrival.shape[0] and w.follows[state.next_arrival] > 0:
        state.next_arrival += 1


@part
def receive(w: World, request: int, time: float) -> None:
    """A request arrives: refused for good, or queued."""
    state, settings = w.state[0], w.settings
    w.results[request].arrival = time
    state.first_arrival, state.last_arrival = min(state.first_arrival, time), time
    if impossible(w, w.prompt[request], w.output[request]):
        end_request(w, request, TOO_LARGE, time)
        return
    if settings.admission_limit > 0 and state.in_system >= settings.admission_limit:
        end_request(w, request, OVER_LIMIT, state.time)
        return
    state.in_system += 1
    w.queue[state.queue_tail] = request
    state.queue_tail += 1


@part
def evict_group(w: World, needed: int, keep: int) -> bool:
    """Preempt from the end of the list until ``needed`` blocks are available; False where slot ``keep`` itself had to go."""
    state = w.state[0]
    while available(w) < needed:
        victim = state.run_tail
        preempt(w, victim)
        if victim == keep:
            return False
    return True


@part
def schedule_decodes(w: World) -> None:
    """Step 1: rows and blocks for every decoder."""
    state, settings = w.state[0], w.settings
    if settings.total_blocks > 0 and settings.reserve != RESERVE_WHOLE:
        need = round_need(w)
        while need > available(w) and state.decoders > 0:
            preempt(w, state.run_tail)
            need = round_need(w)
        if state.decoders > 0:
            take_blocks(w, need)
            state.round_blocks_taken = 1
            if settings.per_round > 0:
                hold_round(w)
    state.decoding = 1 if state.decoders > 0 else 0


@part
def price_short_pairs(w: World, cached: float, chunk: int) -> None:
    """In micro-batches of u rows the last one has (c - 1) mod u + 1; where those are few, their pairs run the kernel of short ones."""
    state, settings = w.state[0], w.settings
    whole, size = settings.micro_batch if settings.micro_batch > 0 else chunk, float(chunk)
    tail = float((chunk - 1) % whole + 1)
    state.micro_batches += float((chunk - 1) // whole + 1)
    if tail < settings.tiled_from:
        short, dearer = size if whole < settings.tiled_from else tail, settings.short_pair_cost - 1.0
        state.pairs += dearer * (short * (cached + size - short) + short * (short + 1.0) * 0.5)
        state.pairs_step += dearer * short * size


@part
def add_chunk(w: World, slot: int, chunk: int) -> None:
    """``chunk`` more tokens of a prompt: c h + c (c + 1) / 2 pairs, growing by c^2 from one full chunk to the next (8.2.3)."""
    state, settings = w.state[0], w.settings
    cached, size = float(w.slots[slot].computed), float(chunk)
    left = w.slots[slot].target - w.slots[slot].computed
    w.slots[slot].chunk = chunk
    state.sequences += 1.0
    state.new_tokens += size
    state.pairs += size * cached + size * (size + 1.0) * 0.5
    state.kv_tokens += cached
    if settings.window > 0:
        state.window_kv += min(cached, float(settings.window))
    state.pairs_step += size * size
    if settings.micro_batch > 0 or settings.tiled_from > 0:
        price_short_pairs(w, cached, chunk)
    if left == chunk:
        state.logit_rows += 1.0
        state.same_for = 1
    else:
        state.same_for = min(state.same_for, 1 if cached < settings.window else (left - 1) // chunk)
    state.budget_left -= chunk


@part
def chunk_of(w: World, left: int) -> int:
    """Tokens of this prompt in this iteration; 0 where it has to wait."""
    state, settings = w.state[0], w.settings
    if settings.policy == CONTINUOUS:
        return left if left <= state.budget_left or state.sequences == 0.0 else 0
    if settings.chunk_cap > 0:
        left = min(left, settings.chunk_cap)
    return max(min(left, state.budget_left), 0)


@part
def continue_prompts(w: World) -> None:
    """Step 2: the next chunk of every unfinished prompt."""
    state, settings = w.state[0], w.settings
    place = 0
    while place < state.prefilling:
        slot = w.prefills[place]
        chunk = chunk_of(w, w.slots[slot].target - w.slots[slot].computed)
        w.slots[slot].chunk = 0
        place += 1
        if chunk == 0:
            continue
        need = blocks_of(w, w.slots[slot].computed + chunk) - w.slots[slot].held if settings.paged > 0 else 0
        if need > 0:
            if settings.total_blocks > 0 and not evict_group(w, need, slot):
                return
            take_blocks(w, need)
            w.slots[slot].held += need
        add_chunk(w, slot, chunk)
        extend_prefix(w, slot, w.slots[slot].computed + chunk)


@rare
def too_late(w: World, request: int, hit: int, target: int, left: int) -> bool:
    """Deadline-aware admission: whether the request misses TTFT or e2e when prefilled alone and decoding with those present."""
    state, settings = w.state[0], w.settings
    arrival, kind = w.results[request].arrival, w.klass[request] if w.klass.shape[0] > 0 else 0
    new, cached = float(target - hit), float(hit)
    pairs = new * cached + new * (new + 1.0) * 0.5
    n = padded(w, new)
    read = settings.kv_bytes * cached + settings.window_bytes * min(cached, float(settings.window)) + settings.state_bytes
    prefill = step_line(w.models[0], settings.floored, n, 1.0, pairs, read, 1.0, 0.0, 0.0)[0] + shape_seconds(w, n)
    verify, count = float(settings.rows), float(state.decoders + 1)
    context = state.context + target
    q = verify * context + count * verify * (verify + 1.0) * 0.5
    k = settings.kv_bytes * (context - state.saved_context) + settings.state_bytes * count
    k += settings.window_bytes * (state.window_context + min(target, settings.window))
    n = padded(w, count * verify)
    step = step_line(w.models[1], settings.floored, n, count * verify, q, k, count, 0.0, 0.0)[0] + shape_seconds(w, n)
    prefill, step = copied(w, prefill, 0.0)[0], copied(w, step, 0.0)[0]
    rounds = left / settings.tokens_per_round
    return (
        state.time + prefill + settings.delivery_s > arrival + w.limits[kind, 0]
        or state.time + prefill + settings.delivery_s + settings.preparation_s + rounds * step > arrival + w.limits[kind, 1]
    )


@part
def place_request(w: World, request: int, target: int, hit: int) -> int:
    """Admit: a slot, the cached part of the prefix, a place among the unfinished prompts."""
    state, settings = w.state[0], w.settings
    state.free_slots -= 1
    slot = w.free[state.free_slots]
    w.slots[slot].request, w.slots[slot].sequence, w.slots[slot].decoding, w.slots[slot].preparing = request, state.sequence, 0, 0
    w.slots[slot].target, w.slots[slot].computed, w.slots[slot].chunk = target, hit * settings.block_tokens, 0
    w.slots[slot].shared, w.slots[slot].held, w.slots[slot].nodes, w.slots[slot].path_place, w.slots[slot].chained = 0, 0, 0, 0, 1
    state.sequence += 1
    run_append(w, slot)
    w.prefills[state.prefilling] = slot
    state.prefilling += 1
    if settings.cache != CACHE_OFF:
        acquire_prefix(w, slot, hit)
        state.lookups_tokens += target
        state.hit_tokens += w.slots[slot].computed
        w.results[request].hit_tokens += w.slots[slot].computed
    if settings.total_blocks > 0:
        state.recomputed += max(w.results[request].lost - w.slots[slot].computed, 0)
        w.results[request].lost = 0
    if w.results[request].scheduled < 0.0:
        w.results[request].scheduled = max(state.time, w.results[request].arrival)
    return slot


@part
def fits(w: World, hit: int, idle: int, target: int, chunk: int, total: int) -> int:
    """Blocks to take now for the admission, or -1 where the pool cannot serve it yet."""
    settings = w.settings
    if settings.paged == 0:
        return 0
    reach = hit * settings.block_tokens + chunk
    if settings.reserve == RESERVE_WHOLE:
        reach = total
    need = blocks_of(w, reach) - hit
    check = need
    if settings.reserve == RESERVE_PROMPT:
        check = blocks_of(w, target) - hit
    if settings.total_blocks > 0 and check > available(w) - idle:
        return -1
    return need


@part
def drop_head(w: World) -> None:
    """The head of the line leaves it: preempted requests stand before those that never ran, those too late behind all."""
    state = w.state[0]
    if w.settings.total_blocks > 0 and state.resume > 0:
        state.resume -= 1
    elif w.settings.late_wait == 0 or state.queue_head < state.queue_tail:
        state.queue_head += 1
    else:
        state.late_head += 1


@part
def head_of_line(w: World) -> int:
    """The request that is next in line."""
    state = w.state[0]
    if w.settings.total_blocks > 0 and state.resume > 0:
        return w.resume[state.resume - 1]
    return w.queue[state.queue_head if w.settings.late_wait == 0 or state.queue_head < state.queue_tail else state.late_head]


@rare
def turn_away(w: World, request: int) -> None:
    """Too late: refused, or to the end of the line, in the places that those before it in the queue have left."""
    state, settings = w.state[0], w.settings
    if settings.late_wait > 0:
        w.queue[state.late_tail] = request
        state.late_tail += 1
    else:
        state.in_system -= 1
        end_request(w, request, LATE, state.time)


@part
def admit_head(w: World, request: int) -> bool:
    """Admit the head of the line or refuse it as too late; False where it has to wait (and everybody behind it)."""
    state, settings = w.state[0], w.settings
    target, left = w.prompt[request] + w.results[request].generated, w.output[request] - w.results[request].generated - 1
    hit, idle = cached_prefix(w, request, full_blocks(w, target - 1))
    chunk = chunk_of(w, target - hit * settings.block_tokens)
    if chunk == 0 and settings.policy != FIXED:
        return False
    total = w.prompt[request] + w.output[request] - 1 + settings.rows - 1
    need = fits(w, hit, idle, target, chunk, total)
    if need < 0 and state.running == 0 and hit > 0:  # alone, and still blocked by cached blocks it would hold: start afresh
        hit, chunk = 0, chunk_of(w, target)
        need = fits(w, 0, 0, target, chunk, total)
    if need < 0:
        return False
    asked = settings.deadline_aware > 0 and (settings.late_wait == 0 or (state.resume == 0 and state.queue_head < state.queue_tail))
    drop_head(w)
    if asked and too_late(w, request, hit * settings.block_tokens, target, left):
        turn_away(w, request)
        return True
    slot = place_request(w, request, target, hit)
    take_blocks(w, need)
    w.slots[slot].held += need
    if chunk > 0:
        add_chunk(w, slot, chunk)
        extend_prefix(w, slot, w.slots[slot].computed + chunk)
    return True


@part
def could_admit(w: World) -> bool:
    """Whether somebody waits for whom slots and tokens of this iteration are left; blocks aside."""
    return waiting(w) > 0 and has_room(w)


@part
def has_room(w: World) -> bool:
    """Whether slots and tokens of this iteration are left; blocks aside."""
    state, settings = w.state[0], w.settings
    return state.running < settings.max_num_seqs and (state.budget_left > 0 or settings.policy == FIXED)


@part
def admit_waiting(w: World) -> None:
    """Step 3: first come first served while slots, budget and blocks last."""
    state, settings = w.state[0], w.settings
    while has_room(w):
        if waiting(w) == 0:
            state.open = 1
            return
        request = head_of_line(w)
        if w.results[request].status != PENDING:
            drop_head(w)
        elif not admit_head(w, request):
            # whoever arrives now stands before those who are late, and may fit where their first does not
            state.open = 1 if settings.late_wait > 0 and state.resume == 0 and state.queue_head == state.queue_tail else 0
            return


@part
def clear_batch(w: World) -> None:
    """Start from an empty iteration."""
    state, settings = w.state[0], w.settings
    state.new_tokens, state.logit_rows, state.pairs, state.kv_tokens, state.sequences = 0.0, 0.0, 0.0, 0.0, 0.0
    state.pairs_step, state.micro_batches, state.window_kv = 0.0, 0.0, 0.0
    state.same_for, state.decoding, state.preempted_now, state.open, state.round_blocks_taken = NEVER, 0, 0, 0, 0
    state.budget_left = settings.token_budget


@part
def mixes(w: World) -> bool:
    """Whether prefill and decode share iterations."""
    settings = w.settings
    return settings.policy in (CHUNKED, CONTINUOUS)


@part
def admits(w: World) -> bool:
    """Whether this decision may admit: always, except that a fixed group closes when it starts."""
    state, settings = w.state[0], w.settings
    return state.preempted_now == 0 and (settings.policy != FIXED or state.running == 0)


@part
def decodes_after(w: World) -> bool:
    """Policies that do not mix decode when no prompt is being processed."""
    state, settings = w.state[0], w.settings
    return state.sequences == 0.0 and state.decoders > 0 and settings.policy in (PREFILL_FIRST, FIXED)
