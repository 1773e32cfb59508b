"""Life of a request inside the engine: admitted to a slot, prefilled, decoding, gone.

Notation: a slot holds one running request. ``running`` requests form a list in order of admission (the last one is preempted
first, as in vLLM V1). ``join`` is the round count when it became a decoder, so it has decoded ``rounds - join`` rounds since.
"""

from __future__ import annotations

import numpy as np

from models.kernels.jit import part, rare
from models.kernels.scheduler_blocks import blocks_of, extend_prefix, past_block, release_blocks
from models.kernels.scheduler_events import leave_line, line_up, pending_push, stack_longest
from models.kernels.scheduler_state import CANCELLED, CHUNKED, CONTINUOUS, FINISHED, INSTANT, NEVER, PENDING, RESERVE_WHOLE, Table, World


@part
def clear_results(w: World) -> None:
    """Nobody has arrived yet."""
    for request in range(w.results.shape[0]):
        result = w.results[request]
        result.arrival, result.scheduled, result.first, result.last, result.max_gap = -1.0, -1.0, -1.0, -1.0, 0.0
        result.status, result.preemptions, result.hit_tokens, result.generated, result.draws, result.lost = PENDING, 0, 0, 0, 0, 0


@part
def seen(w: World) -> float:
    """Until when the scheduler knows what happened: with asynchronous scheduling, when the iteration before began."""
    return w.state[0].seen if w.settings.async_scheduling > 0 else w.state[0].time


@part
def advanced(w: World, slot: int) -> int:
    """Tokens that the decoder emitted since it joined."""
    state, settings = w.state[0], w.settings
    if settings.random > 0:
        return int(w.slots[slot].progress)
    rounds = state.rounds - w.slots[slot].join
    if settings.tokens_per_round == 1.0:
        return rounds
    return int(rounds * settings.tokens_per_round + 1e-9)


@part
def uniform(seed: int, request: int, draw: int) -> float:
    """Counter-based uniform number in [0, 1): splitmix64 of (seed, request, draw), the same whatever the schedule."""
    z = np.uint64(seed) + np.uint64(request) * np.uint64(0xD1342543DE82EF95) + np.uint64(draw + 1) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return float(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@part
def accepted_tokens(w: World, request: int, draw: int) -> int:
    """Tokens of one verified round: 1 + the drafts accepted; accept[j] = product of the first j + 1 probabilities (8.5.4)."""
    settings = w.settings
    u = uniform(settings.seed, request, draw)
    count = 1
    for place in range(w.accept.shape[0]):  # they never rise, so no branch is needed, which would be a coin toss
        count += u < w.accept[place]
    return count


@part
def run_append(w: World, slot: int) -> None:
    """Newest of the running requests."""
    state = w.state[0]
    w.slots[slot].previous, w.slots[slot].next = state.run_tail, -1
    if state.run_tail >= 0:
        w.slots[state.run_tail].next = slot
    else:
        state.run_head = slot
    state.run_tail = slot
    state.running += 1


@part
def run_remove(w: World, slot: int) -> None:
    """No longer running; the slot is free."""
    state = w.state[0]
    before, after = w.slots[slot].previous, w.slots[slot].next
    if before >= 0:
        w.slots[before].next = after
    else:
        state.run_head = after
    if after >= 0:
        w.slots[after].previous = before
    else:
        state.run_tail = before
    state.running -= 1
    w.free[state.free_slots] = slot
    state.free_slots += 1


@part
def read_prefix(w: World, slot: int, block: int, change: int) -> None:
    """A decoder starts (+1) or stops (-1) reading its fully shared nodes; kernels that read them once save the rest."""
    state = w.state[0]
    first = w.path_start[w.slots[slot].request]
    for place in range(first, first + w.slots[slot].read_nodes):
        node = w.path_nodes[place]
        tokens = w.nodes[node].size * block
        if change > 0 and w.nodes[node].readers > 0:
            state.saved_context += tokens
        if change < 0 and w.nodes[node].readers > 1:
            state.saved_context -= tokens
        w.nodes[node].readers += change


@part
def context_of(w: World, slot: int) -> float:
    """Tokens that the decoder's next round attends to, possibly with a fraction."""
    state, settings = w.state[0], w.settings
    if settings.random > 0:
        return w.slots[slot].stored + w.slots[slot].progress
    return w.slots[slot].stored + (state.rounds - w.slots[slot].join) * settings.tokens_per_round


@part
def enter_window(w: World, slot: int, tokens: int) -> None:
    """Window layers read min(context, window); a decoder below the window grows until it fills it."""
    state, settings = w.state[0], w.settings
    w.slots[slot].below = 1 if tokens < settings.window and settings.constant_context == 0 else 0
    state.window_context += min(tokens, settings.window)
    if w.slots[slot].below > 0:
        state.below += 1
        if settings.random == 0:
            state.window_growth += settings.tokens_per_round


@part
def fill_window(w: World, slot: int) -> None:
    """The decoder's context has reached the window: from now on it reads the window and no more."""
    state, settings = w.state[0], w.settings
    state.window_context -= context_of(w, slot) - settings.window
    w.slots[slot].below = 0
    state.below -= 1
    if settings.random == 0:
        state.window_growth -= settings.tokens_per_round


@part
def windows_filled(w: World) -> None:
    """Decoders that have reached the window."""
    state, settings = w.state[0], w.settings
    slot = state.run_head
    while slot >= 0:
        if w.slots[slot].decoding > 0 and w.slots[slot].below > 0 and context_of(w, slot) >= settings.window:
            fill_window(w, slot)
        slot = w.slots[slot].next


@part
def rounds_below(w: World) -> int:
    """Rounds until the first decoder below the window has reached it: reads grow linearly up to there."""
    state, settings = w.state[0], w.settings
    slot, count = state.run_head, NEVER
    while slot >= 0:
        if w.slots[slot].decoding > 0 and w.slots[slot].below > 0:
            count = min(count, int((settings.window - context_of(w, slot)) / settings.tokens_per_round) + 1)
        slot = w.slots[slot].next
    return count


@part
def leave_window(w: World, slot: int) -> None:
    """The decoder reads nothing any more."""
    state, settings = w.state[0], w.settings
    if w.slots[slot].below > 0:
        fill_window(w, slot)
    state.window_context -= min(w.prompt[w.slots[slot].request], settings.window) if settings.constant_context > 0 else settings.window


@part
def join_decoders(w: World, slot: int, stored: int, generated: int) -> None:
    """The prompt is done and its first token emitted: one more row in every further round."""
    state, settings = w.state[0], w.settings
    w.slots[slot].decoding, w.slots[slot].join, w.slots[slot].stored, w.slots[slot].generated = 1, state.rounds, stored, generated
    w.slots[slot].progress = 0.0
    prepared = settings.preparation_s > 0.0 and w.slots[slot].preparing > 0
    mixed = settings.policy in (CHUNKED, CONTINUOUS) and not prepared
    if not prepared:
        w.slots[slot].emitted = state.time
    w.slots[slot].since = state.rounds if mixed else state.rounds + 1
    state.last_join = w.slots[slot].since
    state.newcomers += 0 if mixed else 1
    state.decoders += 1
    state.context += w.prompt[w.slots[slot].request] if settings.constant_context > 0 else stored
    if settings.random == 0 and settings.constant_context == 0:
        state.growth += settings.tokens_per_round
    if settings.window > 0:
        enter_window(w, slot, w.prompt[w.slots[slot].request] if settings.constant_context > 0 else stored)
    if settings.per_round == 0 and settings.total_blocks > 0 and settings.reserve != RESERVE_WHOLE:
        w.phases[past_block(w, stored - state.rounds)] += 1
    if settings.shared_read_once > 0:
        w.slots[slot].read_nodes = w.slots[slot].path_place
        if w.slots[slot].read_nodes > 0:
            read_prefix(w, slot, settings.block_tokens, 1)


@part
def begin_decoding(w: World, slot: int) -> None:
    """One more decoder, and the round after which it will be done."""
    state, settings = w.state[0], w.settings
    request = w.slots[slot].request
    join_decoders(w, slot, w.slots[slot].target, w.results[request].generated)
    if settings.random == 0:
        left = w.output[request] - w.results[request].generated
        rounds = left if settings.tokens_per_round == 1.0 else int(-(-(left / settings.tokens_per_round - 1e-9) // 1.0))
        line_up(w, slot, state.rounds + rounds)


@part
def leave_decoders(w: World, slot: int) -> None:
    """The decoder takes no further rows; its longest gap is settled. Its blocks are untouched, ``held`` is brought up to date."""
    state, settings = w.state[0], w.settings
    request, rounds = w.slots[slot].request, state.rounds - w.slots[slot].join
    w.results[request].max_gap = max(w.results[request].max_gap, stack_longest(w, w.slots[slot].since))
    if settings.random == 0:
        leave_line(w, slot)
    state.decoders -= 1
    if settings.window > 0:
        leave_window(w, slot)
    if settings.constant_context > 0:
        state.context -= w.prompt[request]
    else:
        state.context -= context_of(w, slot)
        state.growth -= 0.0 if settings.random > 0 else settings.tokens_per_round
    if state.decoders == 0:
        state.context, state.growth, state.window_context, state.window_growth = 0.0, 0.0, 0.0, 0.0
    if settings.per_round == 0 and settings.total_blocks > 0 and settings.reserve != RESERVE_WHOLE:
        w.phases[past_block(w, w.slots[slot].stored - w.slots[slot].join)] -= 1
        w.slots[slot].held = blocks_of(w, w.slots[slot].stored + rounds + state.round_blocks_taken)
    if settings.shared_read_once > 0 and w.slots[slot].read_nodes > 0:
        read_prefix(w, slot, settings.block_tokens, -1)
    if w.slots[slot].since > state.rounds:
        state.newcomers -= 1
    w.slots[slot].decoding = 0


@part
def waiting(w: World) -> int:
    """Requests inside the engine that do not run."""
    state = w.state[0]
    behind = state.late_tail - state.late_head if w.settings.late_wait > 0 else 0
    return state.queue_tail - state.queue_head + behind + (state.resume if w.settings.total_blocks > 0 else 0)


@part
def end_request(w: World, request: int, status: int, when: float) -> None:
    """Nothing more happens to the request; the one that waited for it may arrive."""
    state, settings = w.state[0], w.settings
    w.results[request].status, w.results[request].last = status, when
    state.done += 1
    if settings.followers > 0 and w.follower[request] >= 0:
        told = when + settings.delivery_s if status == FINISHED else when  # of a refusal at once, of an answer when it is there
        pending_push(state, w.pending, told + w.delay[w.follower[request]], w.follower[request])


@part
def judge_good(w: World, request: int) -> None:
    """Within every deadline of its class (ttft, e2e, longest gap, mean gap)? Counts it and stops a hopeless trial early."""
    state, settings = w.state[0], w.settings
    if w.results[request].status != FINISHED:
        return
    state.finished += 1
    if w.limits.shape[0] == 0:
        state.good += 1
        return
    kind, entry = w.klass[request] if w.klass.shape[0] > 0 else 0, w.results[request]
    mean = (entry.last - entry.first) / (w.output[request] - 1) if w.output[request] > 1 else 0.0
    if (
        entry.first - entry.arrival + settings.delivery_s <= w.limits[kind, 0]
        and entry.last - entry.arrival + settings.delivery_s <= w.limits[kind, 1]
        and entry.max_gap <= w.limits[kind, 2]
        and mean <= w.limits[kind, 3]
    ):
        state.good += 1
    if state.finished == settings.check_after and state.good < settings.check_good:
        state.stopped = 1


@part
def preempt(w: World, slot: int) -> None:
    """Recompute later: blocks go back, the request waits in front of everybody who has not started (vLLM V1)."""
    state = w.state[0]
    request = w.slots[slot].request
    if w.slots[slot].decoding > 0:
        tokens = advanced(w, slot)
        w.results[request].generated = w.slots[slot].generated + tokens
        computed = w.slots[slot].stored + tokens
        w.results[request].last = (
            w.slots[slot].emitted if w.slots[slot].since > state.rounds else max(w.slots[slot].emitted, state.round_end)
        )
        leave_decoders(w, slot)
    else:
        computed = w.slots[slot].computed
        if w.slots[slot].preparing > 0:
            w.results[request].last = w.slots[slot].emitted
        drop_prefill(w, slot)
    extend_prefix(w, slot, computed)
    release_blocks(w, slot)
    run_remove(w, slot)
    w.results[request].preemptions += 1
    w.results[request].lost = computed
    state.preemptions += 1
    state.preempted_now = 1
    w.resume[state.resume] = request
    state.resume += 1


@part
def without(listed: Table, count: int, slot: int) -> int:
    """Close the gap that ``slot`` leaves among the first ``count`` entries, in order; how many remain."""
    kept = 0
    for place in range(count):
        if listed[place] != slot:
            listed[kept] = listed[place]
            kept += 1
    return kept


@part
def drop_prefill(w: World, slot: int) -> None:
    """Take a slot out of the list of unfinished prompts (or of drafts being prepared), keeping its order."""
    state = w.state[0]
    if state.preparing > 0:
        drop_prepare(w, slot)
    state.prefilling = without(w.prefills, state.prefilling, slot)


@rare
def drop_prepare(w: World, slot: int) -> None:
    """Take a slot out of the list of drafts being prepared, keeping its order."""
    state = w.state[0]
    state.preparing = without(w.prepares, state.preparing, slot)
    w.slots[slot].preparing = 0


@part
def prepare_draft(w: World, slot: int) -> None:
    """The first token is out; the draft's index is built before the first round (section 8.5.2)."""
    state = w.state[0]
    w.slots[slot].preparing, w.slots[slot].chunk, w.slots[slot].emitted = 1, 0, state.time
    w.prepares[state.preparing] = slot
    state.preparing += 1


@part
def next_prepared_time(w: World) -> float:
    """When the next draft is prepared."""
    if w.settings.preparation_s == 0.0 or w.state[0].preparing == 0:
        return float(NEVER)
    return w.slots[w.prepares[0]].emitted + w.settings.preparation_s


@rare
def prepared_due(w: World) -> None:
    """Drafts that are prepared: their requests decode from the next round on."""
    while next_prepared_time(w) <= seen(w) + INSTANT:
        slot = w.prepares[0]
        begin_decoding(w, slot)
        drop_prepare(w, slot)


@part
def next_cancel_time(w: World) -> float:
    """When the next cancellation may take effect."""
    state, settings = w.state[0], w.settings
    if settings.cancel_count == 0 or state.next_cancel >= settings.cancel_count:
        return float(NEVER)
    return w.cancel[w.cancel_order[state.next_cancel]]


@part
def finish_slot(w: World, slot: int, status: int) -> None:
    """The request is complete or cancelled: blocks and slot are free from now on. Who gave up before the end got no answer."""
    state, settings = w.state[0], w.settings
    request = w.slots[slot].request
    if settings.cancel_count > 0 and w.cancel[request] < state.time - INSTANT:
        status = CANCELLED
    release_blocks(w, slot)
    run_remove(w, slot)
    state.in_system -= 1
    end_request(w, request, status, state.time)
