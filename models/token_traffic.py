"""Bytes that an output token costs, and what reading fewer of them is worth (sections 8.2.1, 8.4.2).

Notation
    W        bytes of weights that a step reads, whatever its rows
    k        bytes of KV that one sequence reads in a step
    b        sequences of the step
    B, t     bytes/s of the memory, seconds of the step
"""

from __future__ import annotations

import math


def read_per_token(weight_bytes: float, kv_bytes: float, batch: int, *, weights_elsewhere: bool = False) -> float:
    """W / b + k; k alone where the weights lie in a store of their own (section 8.2.1)."""
    return kv_bytes if weights_elsewhere else weight_bytes / batch + kv_bytes


def balance_batch(weight_bytes: float, kv_bytes: float) -> int:
    """Smallest batch whose KV reads reach its weight reads: ceil(W / k)."""
    return math.ceil(weight_bytes / kv_bytes)


def utilisation(bytes_read: float, seconds: float, bytes_per_s: float) -> float:
    """Share of the bandwidth that a step uses: D / (B t)."""
    return bytes_read / (bytes_per_s * seconds)


def net_saving(saved_bytes: float, bytes_per_s: float, conversion_s: float = 0.0) -> float:
    """Seconds that reading ``saved_bytes`` less saves, after the conversion that it takes (section 8.4.2)."""
    return saved_bytes / bytes_per_s - conversion_s


def crossover(fixed_a: float, slope_a: float, fixed_b: float, slope_b: float) -> float:
    """Length at which two straight lines meet: (fixed_b - fixed_a) / (slope_a - slope_b); infinite for parallel ones."""
    return (fixed_b - fixed_a) / (slope_a - slope_b) if slope_a != slope_b else math.inf
