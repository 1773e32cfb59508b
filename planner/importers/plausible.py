"""Physically impossible measurements: named, with the likely unit error, before they reach a calibration.

The limits are far outside what any serving engine does, so that only a wrong unit crosses them:

    a first token over a socket within 0.1 ms, or 10,000 tokens a second for one user    seconds written as milliseconds
    a request that lasts longer than the whole test                                      milliseconds written as seconds
    more requests in flight, on average, than clients (Little: L = X W)                  milliseconds written as seconds
    a saturated test with nobody in flight most of the time                              seconds written as milliseconds
    TTFT + (n - 1) TPOT twenty times away from e2e                                       two units in one file
    a time five times away from what the rate beside it in the file means                either
"""

from __future__ import annotations

from itertools import pairwise

from models.errors import UnitError
from planner.records import Arrival, ServingObservation, StepObservation, Workload

FASTEST = {"ttft": 1e-4, "tpot": 1e-4, "e2e": 1e-4}  # seconds
SLOWEST = {"ttft": 86_400.0, "tpot": 60.0, "itl": 600.0, "e2e": 7 * 86_400.0}  # seconds
SHORTEST_STEP, LONGEST_STEP = 1e-6, 3_600.0  # seconds
SATURATED = frozenset({Arrival.CLOSED, Arrival.BURST})


def check_serving(seen: ServingObservation, workload: Workload) -> list[str]:
    """Warnings about doubtful values; raises ``UnitError`` for impossible ones."""
    _range(seen)
    _order(seen)
    return [*_duration(seen), *_little(seen, workload), *_parts(seen, workload), *_tokens(seen, workload)]


def agree(key: str, seconds: float | None, implied: float | None) -> None:
    """Raise where a time and the rate beside it in the file say different things."""
    if seconds and implied and not 0.2 < seconds / implied < 5.0:
        raise UnitError(
            f"{seconds:.6g} s contradicts the rate beside it, which means {implied:.6g} s",
            path=key,
            way_out="a likely unit error (seconds against milliseconds)?",
        )


def check_step(step: StepObservation) -> None:
    """Raise for a step shorter or longer than any engine's."""
    if not SHORTEST_STEP <= step.seconds <= LONGEST_STEP:
        raise _unit("step time", step.seconds, "no engine takes this long for a step")


def _unit(what: str, value: float, why: str) -> UnitError:
    return UnitError(f"{what} of {value:.6g} s is impossible: {why}", way_out="a likely unit error (seconds against milliseconds)?")


def _range(seen: ServingObservation) -> None:
    for metric in ("ttft", "tpot", "itl", "e2e"):
        values: dict[str, float] = getattr(seen, metric)
        for statistic in ("p50", "mean"):
            value = values.get(statistic, 1.0)
            if value < FASTEST.get(metric, 0.0):
                raise _unit(f"{statistic} {metric}", value, "faster than any serving engine")
            if value > SLOWEST[metric]:
                raise _unit(f"{statistic} {metric}", value, "slower than any serving engine")


def _order(seen: ServingObservation) -> None:
    for metric in ("ttft", "tpot", "itl", "e2e"):
        values: dict[str, float] = getattr(seen, metric)
        ranked = sorted((float(name[1:]), value) for name, value in values.items() if name[0] == "p")
        low_end = [(-1.0, values["min"])] if "min" in values else []
        chain = [*low_end, *ranked, *([(101.0, values["max"])] if "max" in values else [])]
        for (_, low), (percent, high) in pairwise(chain):
            if high < low * (1 - 1e-6):
                fall = f"from {low:.6g} s to {high:.6g} s at percentile {min(percent, 100):g}"
                raise UnitError(f"{metric} falls {fall}: not statistics of one sample")


def _duration(seen: ServingObservation) -> list[str]:
    if seen.duration is None:
        return []
    for metric in ("ttft", "e2e"):
        values = getattr(seen, metric)
        for statistic in ("p50", "mean"):
            if statistic in values and values[statistic] > 1.1 * seen.duration:
                raise _unit(f"{statistic} {metric}", values[statistic], f"longer than the whole test of {seen.duration:.6g} s")
    return []


def _latency(seen: ServingObservation, workload: Workload) -> float | None:
    """Mean seconds in flight: e2e, or TTFT + (n - 1) TPOT."""
    if "mean" in seen.e2e:
        return seen.e2e["mean"]
    if "mean" in seen.ttft and "mean" in seen.tpot and workload.output_tokens is not None:
        return seen.ttft["mean"] + max(workload.output_tokens - 1.0, 0.0) * seen.tpot["mean"]
    return None


def _little(seen: ServingObservation, workload: Workload) -> list[str]:
    latency = _latency(seen, workload)
    if latency is None or seen.duration is None or not seen.completed:
        return []
    in_flight = seen.completed * latency / seen.duration
    if workload.arrival in SATURATED and in_flight < 0.1:
        raise _unit("mean time in flight", latency, f"a saturated test would have had only {in_flight:.3g} requests in flight")
    limit = workload.concurrency
    if limit is not None and in_flight > 3 * limit + 3:
        raise _unit("mean time in flight", latency, f"it means {in_flight:.4g} requests in flight under a limit of {limit}")
    if limit is not None and in_flight > 1.1 * limit + 1:
        return [f"{in_flight:.4g} requests in flight on average, above the limit of {limit}"]
    return []


def _parts(seen: ServingObservation, workload: Workload) -> list[str]:
    if not all("mean" in values for values in (seen.ttft, seen.tpot, seen.e2e)) or workload.output_tokens is None:
        return []
    whole = seen.ttft["mean"] + max(workload.output_tokens - 1.0, 0.0) * seen.tpot["mean"]
    ratio = whole / seen.e2e["mean"]
    if not 0.05 < ratio < 20:
        raise _unit("mean e2e", seen.e2e["mean"], f"TTFT and TPOT add up to {whole:.6g} s")
    return [] if 0.5 < ratio < 2 else [f"TTFT and TPOT add up to {ratio:.2g} times the end-to-end latency"]


def _tokens(seen: ServingObservation, workload: Workload) -> list[str]:
    if seen.completed and seen.requests_per_s:
        agree("duration", seen.duration, seen.completed / seen.requests_per_s)
    if seen.duration is None or not seen.completed or not seen.output_tokens_per_s or not workload.output_tokens:
        return []
    ratio = seen.completed * workload.output_tokens / seen.duration / seen.output_tokens_per_s
    if not 0.05 < ratio < 20:
        raise UnitError(
            f"output rate of {seen.output_tokens_per_s:.6g} tokens/s contradicts tokens and duration ({ratio:.3g} times)",
            way_out="a likely unit error in the duration?",
        )
    return [] if 0.9 < ratio < 1.1 else [f"tokens and duration give {ratio:.2g} times the stated output rate"]
