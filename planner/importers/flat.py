"""The flat result objects of load generators: keys such as ``mean_ttft_ms`` beside totals, optional arrays of every request."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

from models.errors import FileFormatError, UnitError
from planner.importers.common import Draft, MeasurementError, number, of_values, optional, positive, prefixed_statistics, whole
from planner.importers.stream import Spread
from planner.records import Arrival, ServingObservation


def latency(values: dict[str, float], metric: str, draft: Draft) -> dict[str, float]:
    """The statistics, or none where all are zero: tools write zeros for what they did not measure."""
    if values and not any(values.values()):
        draft.warnings.append(f"{metric} is zero throughout: not measured (one output token, or no streaming)")
        return {}
    return values


def set_arrival(draft: Draft, rate: Any, concurrency: int | None, key: str = "request_rate") -> None:
    """How requests were offered, from a rate (a number, ``inf`` or ``trace``) and a limit on those in flight."""
    draft.workload["concurrency"] = concurrency or None
    if isinstance(rate, str) and rate.lower() == "trace":
        draft.workload["arrival"] = Arrival.TRACE
        return
    endless = rate is None or str(rate).lower() in {"inf", "infinity"}
    if not endless and number(rate, key) > 0:
        draft.workload.update(arrival=Arrival.OPEN, rate=number(rate, key))
    else:
        draft.workload["arrival"] = Arrival.CLOSED if concurrency else Arrival.BURST


def completed_requests(values: Mapping[str, Any], draft: Draft, completed: str, failed: str, total: str) -> int:
    """Requests that succeeded; a run without any is refused, one with many failures carries a warning."""
    good = whole(values, completed)
    if good is None:
        raise MeasurementError("is required and missing", path=completed)
    offered, detail = whole(values, total), _array(values, "input_lens")
    offered = len(detail) if offered is None and detail is not None else offered
    bad = whole(values, failed)
    if bad is None and offered is not None:
        bad = max(offered - good, 0)
    if good == 0:
        raise FileFormatError(f"all {offered or bad or ''} requests failed: nothing was measured".replace("  ", " "), path=completed)
    if bad:
        draft.warnings.append(f"{bad} of {good + bad} requests failed")
    draft.workload["requests"] = offered if offered is not None else good + (bad or 0)
    return good


def mean_lengths(values: Mapping[str, Any], draft: Draft, completed: int, prompt: str, output: str) -> None:
    """Mean prompt and output lengths from the totals."""
    for key, target in ((prompt, "prompt_tokens"), (output, "output_tokens")):
        total = optional(values, key)
        if total:
            draft.workload.setdefault(target, total / completed)


def flat_serving(values: Mapping[str, Any], draft: Draft, completed: int, suffix: str, scale: float) -> dict[str, Any]:
    """Fields of the observation that the flat keys hold; ``suffix`` is ``_ms`` or empty."""
    found: dict[str, Any] = {"completed": completed, "failed": whole(values, "failed"), "duration": positive(optional(values, "duration"))}
    for metric, names in (("ttft", ("ttft",)), ("tpot", ("tpot",)), ("itl", ("itl",)), ("e2e", ("e2el", "e2e_latency"))):
        for name in names:
            if stats := prefixed_statistics(values, name, suffix, scale):
                found[metric] = latency(stats, metric, draft)
    rates = {"requests_per_s": "request_throughput", "good_requests_per_s": "request_goodput", "input_tokens_per_s": "input_throughput",
             "output_tokens_per_s": "output_throughput", "total_tokens_per_s": "total_token_throughput"}  # fmt: skip
    for target, key in rates.items():
        found[target] = optional(values, key)
    return found


def add_detail(values: Mapping[str, Any], draft: Draft, found: dict[str, Any]) -> None:
    """Lengths and latencies from the arrays of every request (seconds), checked against the aggregates of the same file."""
    rows = _successful(values)
    if rows is None:
        return
    for key, target in (("input_lens", "prompt_lengths"), ("output_lens", "output_lengths")):
        lengths = _array(values, key)
        if lengths is not None and rows and len(lengths) > rows[-1]:
            draft.workload[target] = of_values((lengths[row] for row in rows), key)
    ttfts = _array(values, "ttfts")
    if ttfts is None:
        return
    seen = of_values((ttfts[row] for row in rows), "ttfts")
    _agree("ttfts", seen, found.get("ttft", {}))
    if seen and not found.get("ttft"):
        found["ttft"] = seen
    _whole_requests(values, found, ttfts, rows)


def _whole_requests(values: Mapping[str, Any], found: dict[str, Any], ttfts: array[float], rows: list[int]) -> None:
    gaps = values.get("itls")
    if not isinstance(gaps, list) or not rows or len(gaps) <= rows[-1]:
        return
    spreads = [_spread(gaps[row]) for row in rows]
    for spread in spreads:
        number(spread.total, "itls")
        number(spread.smallest, "itls")
    e2e = array("d", (ttfts[row] + spread.total for row, spread in zip(rows, spreads, strict=True)))
    _agree("itls", of_values(e2e, "itls"), found.get("e2e", {}))
    if not found.get("e2e"):
        found["e2e"] = of_values(e2e, "itls")
    count = sum(spread.count for spread in spreads)
    if count and not found.get("itl"):
        found["itl"] = {"mean": math.fsum(spread.total for spread in spreads) / count, "max": max(spread.largest for spread in spreads)}
    lengths = _array(values, "output_lens")
    if lengths is not None and not found.get("tpot"):
        pairs = zip(rows, spreads, strict=True)
        found["tpot"] = of_values((spread.total / (lengths[row] - 1) for row, spread in pairs if lengths[row] > 1), "itls")


def _spread(gaps: Any) -> Spread:
    if isinstance(gaps, Spread):
        return gaps
    if isinstance(gaps, array) or gaps == []:
        return Spread(array("d", gaps))
    raise MeasurementError("holds something else than gaps in seconds", path="itls", value=gaps)


def _array(values: Mapping[str, Any], key: str) -> array[float] | None:
    found = values.get(key)
    return found if isinstance(found, array) else None


def _successful(values: Mapping[str, Any]) -> list[int] | None:
    """Rows of requests that produced something; failed ones stand in the arrays as zeros."""
    lengths = _array(values, "output_lens")
    if lengths is None:
        return None
    for length in lengths:
        number(length, "output_lens")
    ttfts = _array(values, "ttfts")
    if ttfts is not None and len(ttfts) != len(lengths):
        raise MeasurementError(f"has {len(ttfts)} entries, output_lens has {len(lengths)}", path="ttfts")
    return [row for row, length in enumerate(lengths) if length > 0 and (ttfts is None or ttfts[row] != 0)]


def _agree(key: str, detail: dict[str, float], aggregate: dict[str, float]) -> None:
    if not detail or not aggregate.get("mean"):
        return
    ratio = aggregate["mean"] / detail["mean"] if detail["mean"] else 0.0
    if not 0.1 < ratio < 10:
        raise UnitError(
            f"mean of {aggregate['mean']:.6g} s in the summary, {detail['mean']:.6g} s in the detail",
            path=key,
            way_out="a likely unit error (seconds against milliseconds)?",
        )


def serving(found: dict[str, Any]) -> ServingObservation:
    """The observation without what is not known."""
    return ServingObservation(**{key: value for key, value in found.items() if value is not None})
