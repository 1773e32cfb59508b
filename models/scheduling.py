"""From a gap to the new tokens of a prompt that fit beside the decoders (section 8.2.4).

Notation: B sequences decode in the step, each verifying r rows at context L; a prompt adds x tokens behind h cached ones.
    rows     n = B r (+ x in one formula), padded to the captured size that runs them
    pairs    q = B r L + B r (r + 1) / 2, and x h + x (x + 1) / 2
    bytes    k = bytes per token x (B L + h)
A calibration that tells prefill and decode apart costs the sum of the two, each with its own rows. The step time grows with
x, so the largest x within the gap is found by bisection; captured shapes make steps in it, which bisection respects.
Units: seconds and tokens.
"""

from __future__ import annotations

import numpy as np

from models.kernels.step import StepModel, causal_pairs, step_seconds
from models.simulate import graph_padding
from models.simulation_types import EngineParameters, SimulationInputs

MOST_TOKENS = 1 << 20
"""Longest context and chunk that are looked at."""


def executed_rows(engine: EngineParameters, rows: int) -> int:
    """The captured size that runs so many rows; beyond the largest they run as they are."""
    table = graph_padding(engine.graph_sizes)
    return int(table[rows]) if rows < len(table) else rows


def mixed_step_s(inputs: SimulationInputs, running: int, context: int, new: int, cached: int) -> float:
    """Seconds of a step in which ``running`` requests decode at ``context`` and ``new`` prompt tokens follow ``cached`` ones."""
    engine = inputs.engine
    verify = engine.draft_tokens + 1
    rows = running * verify
    decode = (
        rows, rows, rows * context + running * verify * (verify + 1) / 2,
        running * engine.context_bytes(context), running,
    )  # fmt: skip
    head = 1 if new else 0
    prompt = (
        new, head, float(causal_pairs(new, cached)), head * engine.context_bytes(cached), head,
    )  # fmt: skip
    if inputs.prefill == inputs.decode:
        seconds = _seconds(inputs.prefill, engine, tuple(a + b for a, b in zip(decode, prompt, strict=True)))
    else:
        seconds = (_seconds(inputs.prefill, engine, prompt) if new else 0.0) + (_seconds(inputs.decode, engine, decode) if running else 0.0)
    return max(seconds, engine.copy_s + engine.copy_serial * seconds)


def largest_chunk(inputs: SimulationInputs, running: int, context: int, cached: int, limit_s: float) -> int:
    """Most new tokens x whose step stays within ``limit_s``; 0 where not even one does."""
    low, high = 0, MOST_TOKENS
    while high - low > 1:
        middle = (low + high) // 2
        if mixed_step_s(inputs, running, context, middle, cached) <= limit_s:
            low = middle
        else:
            high = middle
    return low


def _seconds(model: StepModel, engine: EngineParameters, work: tuple[float, ...]) -> float:
    n, h, q, k, s = work
    return float(np.asarray(step_seconds(model, executed_rows(engine, int(n)), h, q, k, s)))
