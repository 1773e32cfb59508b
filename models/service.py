"""Service of a whole burst in closed form: the seam between descriptions and kernels; rates and traces go to the simulator.

Notation
    N        requests of the burst, all at time 0
    rank(p)  nearest rank of a percentile: request number ceil(p N / 100) in order of finishing
    q        probability that one answer is right; a wrong one is retried after all first attempts, up to the allowed retries

``evaluate`` returns arrays for any number of configurations at once; ``models.prediction`` turns one of them into a breakdown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.case import Case
from models.columns import Columns
from models.describe.workload import Slo
from models.kernels.burst import NEVER, Footprint, Waves, WaveTimes, footprint, wave_times

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def nearest_rank(percentile: float, count: int) -> int:
    """Number ceil(p n / 100) of the sorted values, at least 1."""
    return max(1, math.ceil(percentile * count / 100.0 - 1e-9))


@dataclass(frozen=True)
class Limits:
    """Deadlines in whole microseconds and the rank that must meet each; a deadline that is not set never binds."""

    e2e_us: int
    ttft_us: int
    itl_us: int
    tpot_us: int
    e2e_rank: int
    ttft_rank: int
    itl_rank: int
    tpot_rank: int
    served: int  # requests that must be admitted

    @classmethod
    def of(cls, slo: Slo, requests: int) -> Limits:
        """Limits of a class; without any deadline every request must still be served."""
        set_ = slo.deadlines()
        us = {name: math.floor(d.limit * 1e6 + 1e-3) for name, d in set_.items()}
        rank = {name: nearest_rank(d.percentile, requests) for name, d in set_.items()}
        never = int(NEVER) - 1
        return cls(
            e2e_us=us.get("e2e", never), ttft_us=us.get("ttft", never), itl_us=us.get("itl", never), tpot_us=us.get("tpot", never),
            e2e_rank=rank.get("e2e", requests), ttft_rank=rank.get("ttft", requests), itl_rank=rank.get("itl", requests),
            tpot_rank=rank.get("tpot", requests), served=max(rank.values(), default=requests),
        )  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What each configuration does to the burst; microseconds, requests, KiB. Metrics are those of the rank that a deadline names."""

    waves: Waves
    times: WaveTimes
    makespan_us: Ints  # until the last answer, retries included
    e2e_us: Ints
    ttft_us: Ints
    itl_us: Ints
    tpot_us: Ints
    good: Floats  # expected correct and on-time requests
    memory: Footprint

    @property
    def busy_us(self) -> Ints:
        """Time the devices are occupied: a burst keeps them busy until its end."""
        return self.makespan_us


def evaluate(case: Case, k: Columns, b: Ints, a: Ints, c: Ints, o: Ints, *, all_on_time: bool = False) -> Outcome:
    """Outcome of every broadcast combination of branches, resident sequences ``b``, admission ``a``, budget ``c``, offload ``o``.

    ``all_on_time`` takes every admitted request as on time, which holds wherever deadlines of every request hold: a search that drops
    other cells anyway is spared counting them.
    """
    requests = case.requests
    limits = Limits.of(case.request.slo, requests)
    admitted = np.minimum(a, requests)
    resident = np.minimum(np.maximum(b // k.samples, 1), admitted)
    waves = Waves.of(admitted, resident)
    times = wave_times(case.calibration, k, waves, c, o)
    retries = _retry_counts(case, k, admitted)
    first_end = times.end(waves.full)
    makespan = first_end
    for count in retries:
        makespan = makespan + _attempt_us(case, k, waves, count, c, o)
    if all_on_time:
        return _all_on_time(case, k, waves, times, makespan, footprint(k, resident, c, o))
    wrong = retries[0] if retries else np.zeros(1, dtype=np.int64)
    e2e = np.where(limits.e2e_rank > admitted - wrong, makespan, _wave_end(times, waves, np.minimum(limits.e2e_rank + wrong, admitted)))
    return Outcome(
        waves, times, makespan,
        e2e_us=np.where(admitted < limits.e2e_rank, NEVER, e2e),
        ttft_us=np.where(admitted < limits.ttft_rank, NEVER, _wave_first(times, waves, np.minimum(limits.ttft_rank, admitted))),
        itl_us=_ranked(times.round_full, times.round_last, waves, limits.itl_rank),
        tpot_us=_ranked(_tpot(case, times.decode_full), _tpot(case, times.decode_last), waves, limits.tpot_rank),
        good=_good(case, k, limits, times, waves, first_end, makespan),
        memory=footprint(k, resident, c, o),
    )  # fmt: skip


def every_request_counts(slo: Slo) -> bool:
    """Whether each deadline is one of every request, so that a feasible cell has nobody late."""
    return all(deadline.percentile >= 100 for deadline in slo.deadlines().values())


def _all_on_time(case: Case, k: Columns, waves: Waves, times: WaveTimes, makespan: Ints, memory: Footprint) -> Outcome:
    """The outcome where the last request decides every metric (ranks of 100 %)."""
    served = waves.admitted >= case.requests
    retries = case.request.quality.retries if case.request.quality else 0
    q = k.probability_correct
    good = waves.admitted * q + waves.admitted * ((1.0 - q) - (1.0 - q) ** (retries + 1))
    first = times.prefix + waves.full * times.wave + times.prefill_last

    def longest(full: Ints, last: Ints) -> Ints:
        return np.where(waves.full > 0, np.maximum(full, last), last)

    return Outcome(
        waves, times, makespan, e2e_us=np.where(served, makespan, NEVER), ttft_us=np.where(served, first, NEVER),
        itl_us=longest(times.round_full, times.round_last), tpot_us=longest(_tpot(case, times.decode_full), _tpot(case, times.decode_last)),
        good=np.asarray(good, dtype=np.float64), memory=memory,
    )  # fmt: skip


def _retry_counts(case: Case, k: Columns, admitted: Ints) -> list[Ints]:
    """Requests that enter attempt 2, 3, …: ceil(a (1 - q)^i), rounded up so that time is never planned too short."""
    quality = case.request.quality
    if quality is None or quality.retries == 0:
        return []
    wrong = 1.0 - k.probability_correct
    return [np.ceil(admitted * wrong**i - 1e-9).astype(np.int64) for i in range(1, quality.retries + 1)]


def _attempt_us(case: Case, k: Columns, waves: Waves, count: Ints, c: Ints, o: Ints) -> Ints:
    """Time of serving ``count`` requests once more (their prefix is cached by now)."""
    again = Waves.of(np.maximum(count, 1), waves.resident)
    times = wave_times(case.calibration, k, again, c, o)
    return np.where(count > 0, times.end(again.full) - times.prefix, 0)


def _wave_end(times: WaveTimes, waves: Waves, rank: Ints) -> Ints:
    """When request number ``rank`` has its whole answer."""
    index = -(-rank // waves.resident)
    return np.where(index <= waves.full, times.prefix + index * times.wave, times.end(waves.full))


def _wave_first(times: WaveTimes, waves: Waves, rank: Ints) -> Ints:
    """When request number ``rank`` has its first token: the end of its wave's prefill."""
    index = -(-rank // waves.resident)
    inside = times.prefix + (index - 1) * times.wave + times.prefill_full
    return np.where(index <= waves.full, inside, times.prefix + waves.full * times.wave + times.prefill_last)


def _tpot(case: Case, decode_us: Ints) -> Ints:
    return -(-decode_us // max(case.request.output_tokens - 1, 1))


def _ranked(full: Ints, last: Ints, waves: Waves, rank: int) -> Ints:
    """The ``rank``-th smallest of a value that requests of full waves and of the last wave have."""
    low, high = np.minimum(full, last), np.maximum(full, last)
    many = waves.full * waves.resident
    low_count = np.where(full <= last, many, waves.last)
    return np.where(many == 0, last, np.where(low_count >= rank, low, high))


def _good(
    case: Case, k: Columns, limits: Limits, times: WaveTimes, waves: Waves, first_end: Ints, makespan: Ints
) -> Floats:  # fmt: skip
    """Expected right answers within every deadline; retried answers count when even the last of them is on time."""
    wave = np.maximum(times.wave, 1)
    by_end = (limits.e2e_us - times.prefix) // wave
    by_first = (limits.ttft_us - times.prefix - times.prefill_full) // wave + 1
    full_ok = (times.round_full <= limits.itl_us) & (_tpot(case, times.decode_full) <= limits.tpot_us)
    full = np.clip(np.minimum(by_end, by_first), 0, waves.full) * waves.resident * full_ok
    last_first = times.prefix + waves.full * times.wave + times.prefill_last
    last_ok = (first_end <= limits.e2e_us) & (last_first <= limits.ttft_us)
    last_ok &= (times.round_last <= limits.itl_us) & (_tpot(case, times.decode_last) <= limits.tpot_us)
    on_time = full + waves.last * last_ok
    q = k.probability_correct
    retries = case.request.quality.retries if case.request.quality else 0
    recovered = (1.0 - q) - (1.0 - q) ** (retries + 1)
    return np.asarray(on_time * q + np.where(makespan <= limits.e2e_us, on_time * recovered, 0.0), dtype=np.float64)
