"""Correct answers: probability by format, retries after a wrong one (sections 8.4.4, 8.6.2)."""

from __future__ import annotations

import math

from models.describe.configuration import KvFormat
from models.describe.workload import Quality


def probability_correct(quality: Quality | None, kv_format: KvFormat) -> float:
    """Probability that one answer is right with this KV format; 1 where the scenario states nothing (a warning says so)."""
    if quality is None:
        return 1.0
    return quality.correct_by_kv_format.get(kv_format.value, quality.correct)


def probability_after_retries(p: float, retries: int) -> float:
    """1 - (1 - p)^(retries + 1), attempts independent."""
    return 1.0 - (1.0 - p) ** (retries + 1)


def retry_counts(requests: int, p: float, retries: int) -> tuple[int, ...]:
    """Requests that enter attempt 2, 3, …: ceil(n (1 - p)^k), so that time is never planned too short."""
    counts = (math.ceil(requests * (1.0 - p) ** k - 1e-9) for k in range(1, retries + 1))
    return tuple(n for n in counts if n > 0)
