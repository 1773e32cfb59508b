"""Blocks that iterations take: a decoder crosses into a new block once in ``block_tokens`` rounds, a prompt as its chunks go on.

Notation: ``phases[p]`` counts the decoders whose tokens minus rounds leave the remainder p by the block; they all need a block in
the round that makes the remainder 0.
"""

from __future__ import annotations

from models.kernels.jit import part
from models.kernels.scheduler_blocks import blocks_of, extend_prefix, full_blocks, past_block, take_blocks
from models.kernels.scheduler_slots import advanced
from models.kernels.scheduler_state import World


@part
def round_need(w: World) -> int:
    """Blocks that the next round of all decoders allocates."""
    state, settings = w.state[0], w.settings
    if settings.per_round == 0:
        return w.phases[past_block(w, -state.rounds)]
    need, slot = 0, state.run_head
    while slot >= 0:
        if w.slots[slot].decoding > 0:
            need += max(blocks_of(w, w.slots[slot].stored + advanced(w, slot) + settings.rows) - w.slots[slot].held, 0)
        slot = w.slots[slot].next
    return need


@part
def rounds_need(w: World, first: int, count: int) -> int:
    """Blocks that ``count`` rounds from round ``first`` on allocate: in as many rounds as a block has tokens, one for each decoder."""
    cycles = full_blocks(w, count)
    need = cycles * w.state[0].decoders
    for place in range(first + cycles * w.settings.block_tokens, first + count):
        need += w.phases[past_block(w, -place)]
    return need


@part
def rounds_within(w: World, room: int, most: int) -> int:
    """Rounds after the next one (at most ``most``) whose blocks fit into ``room``."""
    state, block = w.state[0], w.settings.block_tokens
    cycles = room // max(state.decoders, 1)
    count = min(most, cycles * block)
    if count == most:
        return most
    room -= cycles * state.decoders
    while count < most:
        room -= w.phases[past_block(w, -(state.rounds + 1 + count))]
        if room < 0:
            break
        count += 1
    return count


@part
def hold_round(w: World) -> None:
    """Per-round mode: each decoder holds its K + 1 slots."""
    state, settings = w.state[0], w.settings
    slot = state.run_head
    while slot >= 0:
        if w.slots[slot].decoding > 0:
            reach = w.slots[slot].stored + advanced(w, slot) + settings.rows
            w.slots[slot].held = max(w.slots[slot].held, blocks_of(w, reach))
        slot = w.slots[slot].next


@part
def hold_chunks(w: World, count: int) -> None:
    """Blocks of the chunks after the first one of a run."""
    for place in range(w.state[0].prefilling):
        slot = w.prefills[place]
        if w.slots[slot].chunk > 0:
            reach = w.slots[slot].computed + w.slots[slot].chunk * count
            need = blocks_of(w, reach) - w.slots[slot].held
            if need > 0:
                take_blocks(w, need)
                w.slots[slot].held += need
            extend_prefix(w, slot, reach)
