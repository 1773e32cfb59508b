"""Attention of a step from a grid of measured seconds: linear along each axis between its knots, by the last piece beyond them, but
never below the nearest point of the grid (where last pieces of several axes meet, one may fall as another grows).

Axes: tokens of a prefill chunk, tokens cached before it, decoders, context of a decoder. A step without prefill is the slab at chunk 0;
the kernel changes regime as soon as one row prefills, so a shorter chunk than the first one measured costs as that one.
Notation: S chunks of c tokens after h cached ones (their means), n decoders with context x (mean), T the grid:
    T(c, h, n, x) + (S - 1) (T(c, h, 0, 0) - T(c_1, 0, 0, 0))       further chunks share the one launch
"""

from __future__ import annotations

from models.kernels.jit import part, rare
from models.kernels.lines import FOREVER, larger
from models.kernels.scheduler_state import Table, World

CHUNK, CACHED, DECODERS, CONTEXT = 0, 1, 2, 3


@part
def cell(grid: Table, knots: Table, axis: int, x: float) -> tuple[int, float]:
    """Knot below ``x`` and the share of the way to the next one (outside 0..1 beyond the knots)."""
    place = 0
    while place < grid.shape[axis] - 2 and knots[axis, place + 1] <= x:
        place += 1
    low = knots[axis, place]
    return place, (x - low) / (knots[axis, place + 1] - low)


@part
def across(grid: Table, i: int, a: float, j: int, b: float, k: int, c: float, m: int) -> float:
    """The grid between the knots i, i + 1 (share a), j, j + 1 (b) and k, k + 1 (c) at context knot m."""
    found = 0.0
    for corner in range(8):
        up_i, up_j, up_k = corner & 1, (corner >> 1) & 1, corner >> 2
        weight = (a if up_i else 1.0 - a) * (b if up_j else 1.0 - b) * (c if up_k else 1.0 - c)
        found += weight * grid[i + up_i, j + up_j, k + up_k, m]
    return found


@rare
def grid_line(grid: Table, knots: Table, chunk: float, cached: float, decoders: float, context: float) -> tuple[float, float, float]:
    """(seconds, seconds a context token, context tokens for which that holds) of one chunk beside decoders."""
    i, a = cell(grid, knots, CHUNK, max(chunk, knots[CHUNK, 1])) if chunk > 0.0 else (0, 0.0)
    j, b = cell(grid, knots, CACHED, cached)
    k, c = cell(grid, knots, DECODERS, decoders)
    m, d = cell(grid, knots, CONTEXT, context)
    width = knots[CONTEXT, m + 1] - knots[CONTEXT, m]
    low, high = across(grid, i, a, j, b, k, c, m), across(grid, i, a, j, b, k, c, m + 1)
    value, slope = low + d * (high - low), (high - low) / width
    until = (1.0 - d) * width if d < 1.0 else FOREVER
    if max(a, b, c, d) >= 1.0:
        a, b, c = min(a, 1.0), min(b, 1.0), min(c, 1.0)
        low, high = across(grid, i, a, j, b, k, c, m), across(grid, i, a, j, b, k, c, m + 1)
        nearest, growth = low + min(d, 1.0) * (high - low), (high - low) / width if d < 1.0 else 0.0
        value, slope, crossing = larger(value, slope, nearest, growth)
        until = min(until, crossing)
    return value, slope, until


@part
def attention_line(w: World) -> tuple[float, float, float]:
    """Attention seconds of the batch being built, their growth, and for how many iterations it holds; 0 without a grid."""
    state, settings = w.state[0], w.settings
    if settings.attention == 0:
        return 0.0, 0.0, FOREVER
    decoders = float(state.decoders) if state.decoding > 0 else 0.0
    context = state.context / decoders if decoders > 0.0 else 0.0
    if state.sequences > 0.0:
        chunk = state.new_tokens / state.sequences
        cached = max(state.pairs / state.new_tokens - 0.5 * (chunk + 1.0), 0.0)
        value = grid_line(w.attention, w.knots, chunk, cached, decoders, context)[0]
        more = grid_line(w.attention, w.knots, chunk, cached, 0.0, 0.0)[0] - w.attention[1, 0, 0, 0] if state.sequences > 1.0 else 0.0
        return value + (state.sequences - 1.0) * max(more, 0.0), 0.0, 0.0
    growth = state.growth / decoders
    value, slope, until = grid_line(w.attention, w.knots, 0.0, 0.0, decoders, context)
    return value, slope * growth, until / growth if growth > 0.0 else FOREVER
