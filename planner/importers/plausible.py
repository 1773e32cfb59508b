"""Physically impossible measurements: named, with the likely unit error, before they reach a calibration.

The limits are far outside what any serving engine does, so that only a wrong unit crosses them:

    a first token over a socket within 0.1 ms, or 10,000 tokens a second for one user    seconds written as milliseconds
    a first token twenty times faster than a later one                                   two units in one file
    a request that lasts longer than the whole test                                      milliseconds written as seconds
    more requests in flight, on average, than clients (Little: L = X W)                  milliseconds written as seconds
    a saturated test with nobody in flight most of the time                              seconds written as milliseconds
    TTFT + (n - 1) TPOT twenty times away from e2e                                       two units in one file
    a time five times away from what the rate beside it in the file means                either

Where a file states high percentiles alone, they stand for the mean: too small they are more impossible still; too large, Markov's
inequality bounds the mean from below (mean >= (1 - q) x percentile q).
"""

from __future__ import annotations

from itertools import pairwise

from models.errors import UnitError
from planner.records import Arrival, ServingObservation, StepObservation, Workload

FASTEST = {"ttft": 1e-4, "tpot": 1e-4, "e2e": 1e-4}  # seconds
SLOWEST = {"ttft": 86_400.0, "tpot": 60.0, "itl": 600.0, "e2e": 7 * 86_400.0}  # seconds
SHORTEST_STEP, LONGEST_STEP = 1e-6, 3_600.0  # seconds
SATURATED = frozenset({Arrival.CLOSED, Arrival.BURST})
_METRICS = ("ttft", "tpot", "itl", "e2e")
_TYPICAL = ("mean", "p50", "p75", "p90", "p95", "p99", "max")  # a lower one stands for the others
_BUSY = 0.005  # clients of a closed loop that are in flight at the very least


def check_serving(seen: ServingObservation, workload: Workload) -> list[str]:
    """Warnings about doubtful values; raises ``UnitError`` for impossible ones."""
    _range(seen)
    _order(seen)
    _duration(seen)
    return [*_little(seen, workload), *_parts(seen, workload), *_tokens(seen, workload)]


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
    for metric in _METRICS:
        values: dict[str, float] = getattr(seen, metric)
        for statistic in _TYPICAL:
            if statistic in values and values[statistic] < FASTEST.get(metric, 0.0):
                raise _unit(f"{statistic} {metric}", values[statistic], "faster than any serving engine")
        for statistic in _usual(values):
            if values[statistic] > SLOWEST[metric]:
                raise _unit(f"{statistic} {metric}", values[statistic], "slower than any serving engine")
    later = next((table[name] for table in (seen.tpot, seen.itl) for name in _usual(table)), 0.0)
    first = max((seen.ttft[name] for name in _TYPICAL if name in seen.ttft), default=later)
    if first < later / 20:
        raise _unit("ttft", first, f"twenty times faster than a later token, which took {later:.6g} s")


def _usual(values: dict[str, float]) -> list[str]:
    """Mean and median where they are known, else the lowest percentile above."""
    known = [name for name in _TYPICAL if name in values]
    return [name for name in known if name in _TYPICAL[:2]] or known[:1]


def _order(seen: ServingObservation) -> None:
    for metric in _METRICS:
        values: dict[str, float] = getattr(seen, metric)
        ranked = sorted((float(name[1:]), value) for name, value in values.items() if name[0] == "p")
        low_end = [(-1.0, values["min"])] if "min" in values else []
        chain = [*low_end, *ranked, *([(101.0, values["max"])] if "max" in values else [])]
        for (_, low), (percent, high) in pairwise(chain):
            if high < low * (1 - 1e-6):
                fall = f"from {low:.6g} s to {high:.6g} s at percentile {min(percent, 100):g}"
                raise UnitError(f"{metric} falls {fall}: not statistics of one sample")


def _duration(seen: ServingObservation) -> None:
    for metric in ("ttft", "e2e"):
        values = getattr(seen, metric)
        for statistic in _usual(values):
            if seen.duration is not None and values[statistic] > 1.1 * seen.duration:
                raise _unit(f"{statistic} {metric}", values[statistic], f"longer than the whole test of {seen.duration:.6g} s")


def _in_flight(seen: ServingObservation, workload: Workload) -> tuple[str, float] | None:
    """A statistic and the seconds in flight that it names: e2e, or TTFT + (n - 1) TPOT."""
    for name in _TYPICAL:
        if name in seen.e2e:
            return name, seen.e2e[name]
        if name in seen.ttft and name in seen.tpot and workload.output_tokens is not None:
            return name, _sum_of_parts(seen, workload.output_tokens, name)
    return None


def _sum_of_parts(seen: ServingObservation, output_tokens: float, name: str) -> float:
    return seen.ttft[name] + max(output_tokens - 1.0, 0.0) * seen.tpot[name]


def _least_mean(name: str) -> float:
    """The mean is at least this share of the statistic."""
    return 1.0 if name == "mean" else 0.0 if name == "max" else 1.0 - float(name[1:]) / 100


def _little(seen: ServingObservation, workload: Workload) -> list[str]:
    known, rate = _in_flight(seen, workload), seen.finished_per_s(workload.output_tokens)
    if known is None:
        return []
    (name, latency), limit = known, workload.concurrency
    if latency < FASTEST["tpot"] * ((workload.output_tokens or 1.0) - 1.0):
        raise _unit(f"{name} time in flight", latency, f"{workload.output_tokens:.6g} tokens in it are faster than any serving engine's")
    if rate is None:
        return []
    in_flight, closed = rate * latency, workload.arrival is Arrival.CLOSED and limit is not None
    if workload.arrival in SATURATED and in_flight < max(0.1, _BUSY * min(limit or 0, seen.completed or limit or 0) * closed):
        raise _unit(f"{name} time in flight", latency, f"a saturated test would have had only {in_flight:.3g} requests in flight")
    if limit is not None and in_flight * _least_mean(name) > 3 * limit + 3:
        raise _unit(f"{name} time in flight", latency, f"it means {in_flight:.4g} requests in flight under a limit of {limit}")
    if limit is not None and in_flight > 1.1 * limit + 1 and name == "mean":
        return [f"{in_flight:.4g} requests in flight on average, above the limit of {limit}"]
    return []


def _parts(seen: ServingObservation, workload: Workload) -> list[str]:
    name = next((s for s in _TYPICAL if all(s in values for values in (seen.ttft, seen.tpot, seen.e2e))), None)
    if name is None or workload.output_tokens is None:
        return []
    whole = _sum_of_parts(seen, workload.output_tokens, name)
    ratio = whole / seen.e2e[name]
    if not 0.05 < ratio < 20:
        raise _unit(f"{name} e2e", seen.e2e[name], f"TTFT and TPOT add up to {whole:.6g} s")
    return [] if 0.5 < ratio < 2 or name != "mean" else [f"TTFT and TPOT add up to {ratio:.2g} times the end-to-end latency"]


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
