"""Life of a request inside the engine: admitted to a slot, prefilled, decoding, gone.

Notation: a slot holds one running request. ``running`` requests form a list in order of admission (the last one is preempted
first, as in vLLM V1). ``join`` is the round count when it became a decoder, so it has decoded ``rounds - join`` rounds since.
"""

from __future__ import annotations

import numpy as np

from models.kernels.jit import compiled
from models.kernels.scheduler_blocks import blocks_of, release_blocks
from models.kernels.scheduler_events import heap_remove, pending_push, stack_longest
from models.kernels.scheduler_state import CHUNKED, CONTINUOUS, NEVER, RESERVE_WHOLE


@compiled
def advanced(state, settings, slots, slot):  # type: ignore[no-untyped-def]
    """Tokens that the decoder emitted since it joined."""
    if settings.random > 0:
        return int(slots[slot].progress)
    rounds = state.rounds - slots[slot].join
    if settings.tokens_per_round == 1.0:
        return rounds
    return int(rounds * settings.tokens_per_round + 1e-9)


@compiled
def uniform(seed, request, draw):  # type: ignore[no-untyped-def]
    """Counter-based uniform number in [0, 1): splitmix64 of (seed, request, draw), the same whatever the schedule."""
    z = np.uint64(seed) + np.uint64(request) * np.uint64(0xD1342543DE82EF95) + np.uint64(draw + 1) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return float(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@compiled
def accepted_tokens(settings, accept, request, draw):  # type: ignore[no-untyped-def]
    """Tokens of one verified round: 1 + the drafts accepted; accept[j] = product of the first j + 1 probabilities (8.5.4)."""
    u = uniform(settings.seed, request, draw)
    count = 1
    for place in range(accept.shape[0]):
        if u >= accept[place]:
            break
        count += 1
    return count


@compiled
def run_append(state, slots, slot):  # type: ignore[no-untyped-def]
    """Newest of the running requests."""
    slots[slot].previous, slots[slot].next = state.run_tail, -1
    if state.run_tail >= 0:
        slots[state.run_tail].next = slot
    else:
        state.run_head = slot
    state.run_tail = slot
    state.running += 1


@compiled
def run_remove(state, slots, free, slot):  # type: ignore[no-untyped-def]
    """No longer running; the slot is free."""
    before, after = slots[slot].previous, slots[slot].next
    if before >= 0:
        slots[before].next = after
    else:
        state.run_head = after
    if after >= 0:
        slots[after].previous = before
    else:
        state.run_tail = before
    state.running -= 1
    free[state.free_slots] = slot
    state.free_slots += 1


@compiled
def read_prefix(state, slots, slot, nodes, path_start, path_nodes, block, change):  # type: ignore[no-untyped-def]
    """A decoder starts (+1) or stops (-1) reading its fully shared nodes; kernels that read them once save the rest."""
    first = path_start[slots[slot].request]
    for place in range(first, first + slots[slot].read_nodes):
        node = path_nodes[place]
        tokens = nodes[node].size * block
        if change > 0 and nodes[node].readers > 0:
            state.saved_context += tokens
        if change < 0 and nodes[node].readers > 1:
            state.saved_context -= tokens
        nodes[node].readers += change


@compiled
def join_decoders(state, settings, slots, slot, stored, generated, phases, nodes, path_start, path_nodes, prompt):  # type: ignore[no-untyped-def]
    """The prompt is done and its first token emitted: one more row in every further round."""
    slots[slot].decoding, slots[slot].join, slots[slot].stored, slots[slot].generated = 1, state.rounds, stored, generated
    slots[slot].progress, slots[slot].emitted = 0.0, state.time
    mixed = settings.policy in (CHUNKED, CONTINUOUS)
    slots[slot].since = state.rounds if mixed else state.rounds + 1
    state.last_join = slots[slot].since
    state.newcomers += 0 if mixed else 1
    state.decoders += 1
    state.context += prompt if settings.constant_context > 0 else stored
    if settings.random == 0 and settings.constant_context == 0:
        state.growth += settings.tokens_per_round
    if settings.per_round == 0 and settings.total_blocks > 0 and settings.reserve != RESERVE_WHOLE:
        phases[(stored - state.rounds) % settings.block_tokens] += 1
    slots[slot].read_nodes = 0
    if settings.shared_read_once > 0:
        slots[slot].read_nodes = slots[slot].path_place
        read_prefix(state, slots, slot, nodes, path_start, path_nodes, settings.block_tokens, 1)


@compiled
def leave_decoders(state, settings, slots, slot, phases, heap, stack, results, nodes, path_start, path_nodes, prompt):  # type: ignore[no-untyped-def]
    """The decoder takes no further rows; its longest gap is settled. Its blocks are untouched, ``held`` is brought up to date."""
    request, rounds = slots[slot].request, state.rounds - slots[slot].join
    results[request].max_gap = max(results[request].max_gap, stack_longest(state, stack, slots[slot].since))
    if settings.random == 0:
        heap_remove(state, heap, slots, slot)
    state.decoders -= 1
    if settings.constant_context > 0:
        state.context -= prompt
    elif settings.random > 0:
        state.context -= slots[slot].stored + slots[slot].progress
    else:
        state.context -= slots[slot].stored + rounds * settings.tokens_per_round
        state.growth -= settings.tokens_per_round
    if state.decoders == 0:
        state.context, state.growth = 0.0, 0.0
    if settings.per_round == 0 and settings.total_blocks > 0 and settings.reserve != RESERVE_WHOLE:
        phases[(slots[slot].stored - slots[slot].join) % settings.block_tokens] -= 1
        slots[slot].held = blocks_of(slots[slot].stored + rounds + state.round_blocks_taken, settings.block_tokens)
    if slots[slot].read_nodes > 0:
        read_prefix(state, slots, slot, nodes, path_start, path_nodes, settings.block_tokens, -1)
    if slots[slot].since > state.rounds:
        state.newcomers -= 1
    slots[slot].decoding = 0


@compiled
def end_request(state, results, request, status, when, follower, delay, pending):  # type: ignore[no-untyped-def]
    """Nothing more happens to the request; the one that waited for it may arrive."""
    results[request].status, results[request].last = status, when
    state.done += 1
    if follower.shape[0] > 0 and follower[request] >= 0:
        pending_push(state, pending, when + delay[follower[request]], follower[request])


@compiled
def judge_good(state, settings, results, request, output, limits, klass):  # type: ignore[no-untyped-def]
    """Within every deadline of its class (ttft, e2e, longest gap, mean gap)? Counts it and stops a hopeless trial early."""
    state.finished += 1
    if limits.shape[0] == 0:
        return
    kind, entry = klass[request] if klass.shape[0] > 0 else 0, results[request]
    mean = (entry.last - entry.first) / (output[request] - 1) if output[request] > 1 else 0.0
    if (
        entry.first - entry.arrival <= limits[kind, 0]
        and entry.last - entry.arrival <= limits[kind, 1]
        and entry.max_gap <= limits[kind, 2]
        and mean <= limits[kind, 3]
    ):
        state.good += 1
    if state.finished == settings.check_after and state.good < settings.check_good:
        state.stopped = 1


@compiled
def preempt(state, settings, slots, free, slot, phases, heap, stack, results, nodes, path_start, path_nodes, links, prompt, resume, prefills):  # type: ignore[no-untyped-def]
    """Recompute later: blocks go back, the request waits in front of everybody who has not started (vLLM V1)."""
    request = slots[slot].request
    if slots[slot].decoding > 0:
        tokens = advanced(state, settings, slots, slot)
        results[request].generated = slots[slot].generated + tokens
        computed = slots[slot].stored + tokens
        results[request].last = slots[slot].emitted if slots[slot].since > state.rounds else max(slots[slot].emitted, state.round_end)
        leave_decoders(state, settings, slots, slot, phases, heap, stack, results, nodes, path_start, path_nodes, prompt[request])
    else:
        computed = slots[slot].computed
        drop_prefill(state, prefills, slot)
    release_blocks(state, settings, slots, slot, links, nodes, path_start, path_nodes)
    run_remove(state, slots, free, slot)
    results[request].preemptions += 1
    results[request].lost = computed
    state.preemptions += 1
    state.preempted_now = 1
    resume[state.resume] = request
    state.resume += 1


@compiled
def drop_prefill(state, prefills, slot):  # type: ignore[no-untyped-def]
    """Take a slot out of the list of unfinished prompts, keeping its order."""
    kept = 0
    for place in range(state.prefilling):
        if prefills[place] != slot:
            prefills[kept] = prefills[place]
            kept += 1
    state.prefilling = kept


@compiled
def next_cancel_time(state, settings, cancel, cancel_order):  # type: ignore[no-untyped-def]
    """When the next cancellation may take effect."""
    if state.next_cancel >= settings.cancel_count:
        return float(NEVER)
    return cancel[cancel_order[state.next_cancel]]


@compiled
def finish_slot(state, settings, slots, free, slot, status, results, nodes, path_start, path_nodes, links, follower, delay, pending):  # type: ignore[no-untyped-def]
    """The request is complete or cancelled: blocks and slot are free from now on."""
    request = slots[slot].request
    release_blocks(state, settings, slots, slot, links, nodes, path_start, path_nodes)
    run_remove(state, slots, free, slot)
    state.in_system -= 1
    end_request(state, results, request, status, state.time, follower, delay, pending)
