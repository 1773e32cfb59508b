"""GuideLLM reports (version 1 and 2): ``benchmarks[]``, each with ``metrics.<m>.{successful, errored, incomplete, total}``.

``*_ms`` are milliseconds, ``request_latency`` is seconds. ``inter_token_latency_ms`` leaves the first token out (the TPOT of this
project); ``time_per_output_token_ms`` holds it in and is not used where the other is there. Neither GPU nor server flags are recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from models.errors import FileFormatError
from planner.importers.common import MILLI, Draft, Origin, number, optional, positive, statistics, text, whole
from planner.importers.flat import latency, serving
from planner.records import Arrival

NAME = "guidellm"


def matches(value: Mapping[str, Any]) -> bool:
    """A report whose benchmarks hold GuideLLM's metrics."""
    found = value.get("benchmarks")
    if not isinstance(found, list) or not found or not isinstance(found[0], Mapping):
        return False
    metrics = found[0].get("metrics")
    return isinstance(metrics, Mapping) and ("time_to_first_token_ms" in metrics or "request_latency" in metrics)


def drafts(value: Mapping[str, Any], _origin: Origin) -> Iterator[Draft]:
    """One run for each benchmark of the report."""
    for index, benchmark in enumerate(value["benchmarks"]):
        if not isinstance(benchmark, Mapping) or not isinstance(benchmark.get("metrics"), Mapping):
            raise FileFormatError("holds no metrics", path=f"benchmarks[{index}]")
        yield _draft(value, benchmark, f"benchmarks[{index}]")


def _draft(report: Mapping[str, Any], benchmark: Mapping[str, Any], where: str) -> Draft:
    draft = Draft(NAME, where=where)
    metrics: Mapping[str, Any] = benchmark["metrics"]
    _identity(report, benchmark, draft)
    totals = metrics.get("request_totals") or benchmark.get("request_totals") or _at(benchmark, "run_stats", "requests_made") or {}
    totals = totals if isinstance(totals, Mapping) else {}
    completed, failed = whole(totals, "successful"), whole(totals, "errored")
    if completed == 0:
        raise FileFormatError(f"all {failed or ''} requests failed: nothing was measured".replace("  ", " "), path=where)
    if failed:
        draft.warnings.append(f"{failed} of {failed + (completed or 0)} requests failed")
    draft.workload["requests"] = whole(totals, "total")
    found: dict[str, Any] = {"completed": completed, "failed": failed, "duration": _duration(benchmark)}
    found["ttft"] = latency(_statistics(metrics, "time_to_first_token_ms", MILLI), "ttft", draft)
    found["tpot"] = latency(_statistics(metrics, "inter_token_latency_ms", MILLI), "tpot", draft)
    found["e2e"] = latency(_statistics(metrics, "request_latency", 1.0), "e2e", draft)
    for target, key in (("requests_per_s", "requests_per_second"), ("output_tokens_per_s", "output_tokens_per_second"),
                        ("total_tokens_per_s", "tokens_per_second"), ("in_flight", "request_concurrency")):  # fmt: skip
        found[target] = _statistics(metrics, key, 1.0).get("mean")
    for target, mean, key in (("prompt_lengths", "prompt_tokens", "prompt_token_count"),
                              ("output_lengths", "output_tokens", "output_token_count")):  # fmt: skip
        lengths = _statistics(metrics, key, 1.0)
        draft.workload.update({target: lengths, mean: positive(lengths.get("mean"))})
    draft.serving.append(serving(found))
    return draft


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
