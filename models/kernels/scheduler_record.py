"""What a run keeps for charts: who did what in an iteration, and the state over time. Notation: ``scheduler_state``."""

from __future__ import annotations

from models.kernels.jit import rare
from models.kernels.scheduler_slots import waiting
from models.kernels.scheduler_state import DECODE_ROW, PREFILL_ROW, World


@rare
def record_rows(w: World, seconds: float) -> None:
    """Timeline: who did what in this iteration."""
    state, settings = w.state[0], w.settings
    slot = state.run_head
    while slot >= 0 and state.rows_recorded < w.timeline.shape[0]:
        decodes = w.slots[slot].decoding > 0
        if (decodes and state.decoding > 0) or (not decodes and w.slots[slot].chunk > 0):
            row = w.timeline[state.rows_recorded]
            row.start, row.end, row.request = state.time, state.time + seconds, w.slots[slot].request
            row.kind, row.tokens = (DECODE_ROW, settings.rows) if decodes else (PREFILL_ROW, w.slots[slot].chunk)
            state.rows_recorded += 1
        slot = w.slots[slot].next


@rare
def record_sample(w: World) -> None:
    """State over time, at most as many samples as there is room for: when full, every second one goes."""
    state, settings = w.state[0], w.settings
    if state.samples == w.samples.shape[0]:
        for place in range(w.samples.shape[0] // 2):
            w.samples[place] = w.samples[2 * place]
        state.samples = w.samples.shape[0] // 2
        state.sample_s *= 2.0
    sample = w.samples[state.samples]
    sample.time, sample.running = state.time, state.running
    sample.waiting = waiting(w)
    sample.used_blocks = settings.total_blocks - state.pristine - state.evictable if settings.total_blocks > 0 else 0
    sample.hit_tokens, sample.lookup_tokens = state.hit_tokens, state.lookups_tokens
    sample.preemptions, sample.recomputed = state.preemptions, state.recomputed
    state.samples += 1
    state.next_sample = state.time + state.sample_s
