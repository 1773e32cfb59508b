"""Whole-task arithmetic around the engine: Little's law, Amdahl's law, one request's timeline (sections 8.1, 8.6)."""

from __future__ import annotations


def in_system(rate_per_s: float, stay_s: float) -> float:
    """Little: mean number in the system = arrival rate x mean stay."""
    return rate_per_s * stay_s


def task_seconds(phases: dict[str, float], speedups: dict[str, float], preparation_s: float = 0.0) -> float:
    """Seconds of a task after each named phase is sped up, plus a preparation."""
    return sum(seconds / speedups.get(name, 1.0) for name, seconds in phases.items()) + preparation_s


def amdahl(fraction: float, speedup: float) -> float:
    """S = 1 / ((1 - f) + f / s)."""
    return 1.0 / ((1.0 - fraction) + fraction / speedup)


def request_seconds(queue_s: float, ttft_s: float, output_tokens: int, interval_s: float) -> float:
    """Queue + first token + (G - 1) client intervals (section 8.1.1)."""
    return queue_s + ttft_s + (output_tokens - 1) * interval_s


def gpu_seconds(new_tokens: int, output_tokens: int, prefill_tokens_per_s: float, decode_calls_per_s: float) -> float:
    """t_GPU = L / r_P + (G - 1) / r_D (section 8.6.3)."""
    return new_tokens / prefill_tokens_per_s + (output_tokens - 1) / decode_calls_per_s
