"""GuideLLM reports: ``benchmarks[]``, each with ``metrics.<m>.{successful, errored, incomplete, total}`` (releases from 0.2 on).

``*_ms`` are milliseconds, ``request_latency`` is seconds. ``inter_token_latency_ms`` leaves the first token out (the TPOT of this
project); ``time_per_output_token_ms`` holds it in and is not used where the other is there. Neither GPU nor server flags are recorded.

Release 0.1 lists every request instead: ``results[]`` with ``start_time``, ``end_time`` (dates as seconds), ``first_token_time`` and
``decode_times.data`` (durations in seconds), inside ``benchmarks[]`` of a report with ``args``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from models.errors import FileFormatError, InputError
from planner.importers.common import MILLI, Draft, Origin, number, optional, positive, required, statistics, text, whole
from planner.importers.flat import latency, serving
from planner.importers.request_list import Requests
from planner.records import Arrival

NAME = "guidellm"


def matches(value: Mapping[str, Any]) -> bool:
    """A report whose benchmarks hold GuideLLM's metrics."""
    found = value.get("benchmarks")
    if not isinstance(found, list):
        return False
    return any(isinstance(part, Mapping) and (_has_metrics(part) or _lists_requests(part)) for part in found)


def _has_metrics(benchmark: Mapping[str, Any]) -> bool:
    metrics = benchmark.get("metrics")
    return isinstance(metrics, Mapping) and ("time_to_first_token_ms" in metrics or "request_latency" in metrics)


def _lists_requests(benchmark: Mapping[str, Any]) -> bool:
    return isinstance(benchmark.get("results"), list) and "mode" in benchmark


def drafts(value: Mapping[str, Any], _origin: Origin) -> Iterator[Draft]:
    """One run for each benchmark of the report; one that holds nothing costs only itself."""
    for index, benchmark in enumerate(value["benchmarks"]):
        draft = Draft(NAME, where=f"benchmarks[{index}]")
        try:
            if not isinstance(benchmark, Mapping) or not (_has_metrics(benchmark) or _lists_requests(benchmark)):
                raise FileFormatError("holds no metrics", path=draft.where)
            (_summary if _has_metrics(benchmark) else _requests)(value, benchmark, draft)
        except InputError as error:
            draft.problem = error
        yield draft


def _summary(report: Mapping[str, Any], benchmark: Mapping[str, Any], draft: Draft) -> None:
    metrics: Mapping[str, Any] = benchmark["metrics"]
    _identity(report, benchmark, draft)
    totals = metrics.get("request_totals") or benchmark.get("request_totals") or _at(benchmark, "run_stats", "requests_made") or {}
    totals = totals if isinstance(totals, Mapping) else {}
    completed, failed = whole(totals, "successful"), whole(totals, "errored")
    if completed == 0:
        raise FileFormatError(f"all {failed or ''} requests failed: nothing was measured".replace("  ", " "), path=draft.where)
    if failed:
        draft.warnings.append(f"{failed} of {failed + (completed or 0)} requests failed")
    draft.workload["requests"] = whole(totals, "total")
    found: dict[str, Any] = {"completed": completed, "failed": failed, "duration": _duration(benchmark)}
    found["ttft"] = latency(_statistics(metrics, "time_to_first_token_ms", MILLI), "ttft", draft)
    found["tpot"] = latency(_statistics(metrics, "inter_token_latency_ms", MILLI), "tpot", draft)
    found["e2e"] = latency(_statistics(metrics, "request_latency", 1.0), "e2e", draft)
    for target, key in (("requests_per_s", "requests_per_second"), ("output_tokens_per_s", "output_tokens_per_second"),
                        ("input_tokens_per_s", "prompt_tokens_per_second"), ("total_tokens_per_s", "tokens_per_second"),
                        ("good_requests_per_s", "request_goodput"), ("in_flight", "request_concurrency")):  # fmt: skip
        found[target] = _statistics(metrics, key, 1.0).get("mean")
    for target, mean, key in (("prompt_lengths", "prompt_tokens", "prompt_token_count"),
                              ("output_lengths", "output_tokens", "output_token_count")):  # fmt: skip
        lengths = _statistics(metrics, key, 1.0)
        draft.workload.update({target: lengths, mean: positive(lengths.get("mean"))})
    draft.serving.append(serving(found))


def _requests(report: Mapping[str, Any], benchmark: Mapping[str, Any], draft: Draft) -> None:
    """Release 0.1: every request; a failed one stands in ``errors`` or has no first token."""
    _identity(report, benchmark, draft)
    requests = Requests()
    rows = [row for row in benchmark["results"] if isinstance(row, Mapping) and row.get("first_token_time") is not None]
    for row in rows:
        start, ttft = required(row, "start_time"), required(row, "first_token_time")
        e2e = number(required(row, "end_time") - start, "end_time")
        requests.add(required(row, "prompt_token_count"), required(row, "output_token_count"), ttft, e2e, start)
        requests.gaps(_at(row, "decode_times", "data"))
    errors = benchmark.get("errors")
    requests.finish(draft, len(benchmark["results"]) - len(rows) + (len(errors) if isinstance(errors, list) else 0))
    kind = "poisson" if _at(report, "args", "mode") == "poisson" else "constant"
    kind = kind if benchmark["mode"] == "asynchronous" else benchmark["mode"]
    _arrival({"type_": kind, "rate": positive(optional(benchmark, "rate"))}, draft)


def _statistics(metrics: Mapping[str, Any], key: str, scale: float) -> dict[str, float]:
    """Those of the successful requests."""
    metric = metrics.get(key)
    if not isinstance(metric, Mapping):
        return {}
    chosen = metric.get("successful", metric.get("total", metric))
    return statistics(chosen, scale, key) if isinstance(chosen, Mapping) and chosen.get("count", 1) else {}


def _duration(benchmark: Mapping[str, Any]) -> float | None:
    stated = optional(benchmark, "duration") or optional(benchmark, "run_duration")
    if stated:
        return stated
    start, end = optional(benchmark, "start_time"), optional(benchmark, "end_time")
    return None if start is None or end is None or end <= start else end - start


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def _identity(report: Mapping[str, Any], benchmark: Mapping[str, Any], draft: Draft) -> None:
    for place in ((benchmark, "config", "backend", "model"), (report, "config", "spec", "backend", "model"), (report, "args", "model"),
                  (benchmark, "benchmarker", "backend", "model"), (benchmark, "worker", "backend_model")):  # fmt: skip
        if (model := text(_at(*place))) is not None:
            draft.setup["model"] = model
            break
    if (version := text(_at(report, "metadata", "guidellm_version"))) is not None:
        draft.metadata["guidellm_version"] = version
    strategy = _at(benchmark, "config", "strategy") or _at(benchmark, "scheduler", "strategy") or _at(benchmark, "args", "strategy")
    _arrival(strategy if isinstance(strategy, Mapping) else {}, draft)


def _arrival(strategy: Mapping[str, Any], draft: Draft) -> None:
    kind = text(strategy.get("type_")) or text(strategy.get("kind")) or ""
    draft.metadata["strategy"] = kind
    if kind in {"constant", "poisson", "async"} and strategy.get("rate") is not None:
        draft.workload.update(arrival=Arrival.OPEN, rate=positive(number(strategy["rate"], "strategy.rate")))
        draft.workload["burstiness"] = 1.0 if kind == "poisson" else None
    elif kind == "synchronous":
        draft.workload.update(arrival=Arrival.CLOSED, concurrency=1)
    elif kind == "concurrent" or (not kind and strategy.get("streams") is not None):
        draft.workload.update(arrival=Arrival.CLOSED, concurrency=whole(strategy, "streams"))
    elif kind == "throughput":
        limit = whole(strategy, "max_concurrency")
        draft.workload.update(arrival=Arrival.CLOSED if limit else Arrival.BURST, concurrency=limit)
    elif kind == "trace":
        draft.workload["arrival"] = Arrival.TRACE
