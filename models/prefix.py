"""What a cached prefix is worth: V = p (T_r - T_f) - T_m (section 8.3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PrefixCosts:
    """Seconds to recompute, to fetch back and to keep one prefix, and its bytes."""

    recompute_s: float
    fetch_s: float
    keep_s: float
    size_bytes: int

    def value_s(self, reuse_probability: float) -> float:
        """Expected net saving in seconds."""
        return reuse_probability * (self.recompute_s - self.fetch_s) - self.keep_s

    def break_even_probability(self) -> float:
        """Reuse probability above which keeping the prefix saves time; infinite when fetching is slower than recomputing."""
        saved = self.recompute_s - self.fetch_s
        return self.keep_s / saved if saved > 0 else float("inf")


def costs(prefill_flops: float, effective_flops_per_s: float, size_bytes: int, link_bytes_per_s: float) -> PrefixCosts:
    """Costs of a prefix parked in host memory: fetched once a hit, written out once (the upkeep)."""
    move = size_bytes / link_bytes_per_s
    return PrefixCosts(prefill_flops / effective_flops_per_s, move, move, size_bytes)


def best_set(prefixes: Sequence[tuple[str, PrefixCosts, float]], capacity_bytes: int) -> tuple[float, tuple[str, ...]]:
    """The subset of (name, costs, probability) of the greatest total value within ``capacity_bytes``: an exact 0/1 knapsack.

    Branch and bound on value density; prefixes of no value are never kept.
    """
    worth = [(c.value_s(p), c.size_bytes, name) for name, c, p in prefixes if c.value_s(p) > 0]
    worth.sort(key=lambda item: item[0] / item[1], reverse=True)
    best: tuple[float, tuple[str, ...]] = (0.0, ())

    def bound(index: int, room: int) -> float:
        total = 0.0
        for value, size, _ in worth[index:]:
            if size > room:
                return total + value * room / size
            total, room = total + value, room - size
        return total

    stack: list[tuple[int, int, float, tuple[str, ...]]] = [(0, capacity_bytes, 0.0, ())]
    while stack:
        index, room, value, names = stack.pop()
        if value > best[0]:
            best = (value, names)
        if index == len(worth) or value + bound(index, room) <= best[0]:
            continue
        gain, size, name = worth[index]
        stack.append((index + 1, room, value, names))
        if size <= room:
            stack.append((index + 1, room - size, value + gain, (*names, name)))
    return best
