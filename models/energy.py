"""Energy of a run: device power x busy time; with the power cap it is an upper bound (section 8.6.3)."""

from __future__ import annotations


def joules_bound(power_w: float, devices: int, seconds: float) -> float:
    """Upper bound: every device at its power cap all the time."""
    return power_w * devices * seconds
