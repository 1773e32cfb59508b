"""The token budget that a largest gap allows (section 8.2.4).

Units: seconds and tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.errors import InputError
from models.kernels.step import StepModel, causal_pairs, step_seconds
from models.simulate import graph_padding
from models.simulation_types import EngineParameters


@dataclass(frozen=True)
class Mix:
    """What shares the step with the chunk: ``decoders`` with ``context`` tokens each; the chunk continues ``cached`` tokens."""

    decoders: int
    context: int
    cached: int


def mixed_step_seconds(engine: EngineParameters, prefill: StepModel, decode: StepModel | None, mix: Mix, chunk: int) -> float:
    """Time of one step that decodes ``mix`` and prefills ``chunk`` tokens (not the last of their prompt)."""
    rows = mix.decoders * (engine.draft_tokens + 1)
    pairs = mix.decoders * float(causal_pairs(engine.draft_tokens + 1, mix.context))
    read, state = engine.kv_bytes_per_token * mix.decoders * mix.context, engine.state_bytes_per_sequence
    table = graph_padding(engine.graph_sizes)

    def padded(count: int) -> float:
        return float(table[count]) if count < len(table) else float(count)

    new, cached_read = float(causal_pairs(chunk, mix.cached)), engine.kv_bytes_per_token * mix.cached + state
    if decode is None or decode == prefill:
        whole = (
            padded(rows + chunk),
            float(rows),
            pairs + (new if chunk else 0.0),
            read + state * mix.decoders + (cached_read if chunk else 0.0),
        )
        return float(step_seconds(prefill, *whole, mix.decoders + (chunk > 0)))
    seconds = float(step_seconds(decode, padded(rows), float(rows), pairs, read + state * mix.decoders, mix.decoders)) if rows else 0.0
    return seconds + (float(step_seconds(prefill, padded(chunk), 0.0, new, cached_read, 1.0)) if chunk else 0.0)


def budget_for_gap(engine: EngineParameters, prefill: StepModel, decode: StepModel | None, mix: Mix, largest_gap_s: float) -> int:
    """Largest token budget (decode rows and chunk together) whose step stays within the gap (section 8.2.4).

    Milliseconds become tokens at this context and captured shape: a longer context leaves room for fewer tokens. Raises
    ``InputError`` where even the decodes alone take longer.
    """
    alone = mixed_step_seconds(engine, prefill, decode, mix, 0)
    if alone > largest_gap_s:
        raise InputError(
            f"decoding {mix.decoders} sequences alone takes {alone * 1e3:.2f} ms", path="slo.itl", value=largest_gap_s,
            way_out="lower max_num_seqs or allow a longer gap",
        )  # fmt: skip
    low, high = 0, 1
    while high < 1 << 24 and mixed_step_seconds(engine, prefill, decode, mix, high) <= largest_gap_s:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if mixed_step_seconds(engine, prefill, decode, mix, middle) <= largest_gap_s:
            low = middle
        else:
            high = middle
    return low + mix.decoders * (engine.draft_tokens + 1)
