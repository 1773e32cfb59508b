"""Times that grow linearly with the iterations of a run, and what the larger of two is, from here until they cross."""

from __future__ import annotations

from models.kernels.jit import part

FOREVER = 1e18


@part
def larger(a: float, slope_a: float, b: float, slope_b: float) -> tuple[float, float, float]:
    """max of two lines at this point, its slope to the right, and for how many iterations it keeps that slope."""
    if a > b or (a == b and slope_a > slope_b):
        return a, slope_a, (a - b) / (slope_b - slope_a) if slope_b > slope_a else FOREVER
    return b, slope_b, (b - a) / (slope_a - slope_b) if slope_a > slope_b else FOREVER


@part
def joined(a: float, slope_a: float, b: float, slope_b: float, overlap: float) -> tuple[float, float, float]:
    """max + (1 - w) min: two activities of which the share w overlaps."""
    top, slope, until = larger(a, slope_a, b, slope_b)
    rest = 1.0 - overlap
    return overlap * top + rest * (a + b), overlap * slope + rest * (slope_a + slope_b), until
