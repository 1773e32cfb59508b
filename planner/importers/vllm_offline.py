"""``vllm bench latency`` (seconds for one batch from prompt to last token) and ``vllm bench throughput``. Neither records shapes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Any

from planner.importers.common import Draft, Origin, of_values, optional, required, statistics, text, whole
from planner.importers.facts import set_fact
from planner.importers.flat import serving
from planner.records import Arrival

LATENCY, THROUGHPUT = "vllm bench latency", "vllm bench throughput"
_NEEDS = ("model", "engine", "device", "tensor_parallel", "prompt_tokens", "output_tokens", "concurrency")
_OWN = frozenset({"avg_latency", "latencies", "percentiles", "elapsed_time", "num_requests", "total_num_tokens", "requests_per_second",
                  "tokens_per_second", "date", "model_id"})  # fmt: skip


def matches(value: Mapping[str, Any]) -> bool:
    """The few keys of either tool."""
    return ("avg_latency" in value and "latencies" in value) or {"elapsed_time", "num_requests", "requests_per_second"} <= value.keys()


def drafts(value: Mapping[str, Any], _origin: Origin) -> Iterator[Draft]:
    """One run; the shapes are to be asked for."""
    draft = Draft(LATENCY if "avg_latency" in value else THROUGHPUT, needs=_NEEDS, measured_at=text(value.get("date")))
    draft.setup["engine"] = "vllm"
    draft.workload["arrival"] = Arrival.OFFLINE
    for key, raw in value.items():
        if key not in _OWN and isinstance(raw, str | int | float | bool):
            set_fact(draft, key, raw)
    set_fact(draft, "model_id", value.get("model_id"))
    draft.serving.append(serving(_latency(value) if "avg_latency" in value else _throughput(value, draft)))
    yield draft


def _latency(value: Mapping[str, Any]) -> dict[str, Any]:
    samples = value["latencies"]
    e2e = of_values(samples, "latencies") if isinstance(samples, list | array) else {}
    e2e["mean"] = required(value, "avg_latency")
    percentiles = value.get("percentiles")
    if isinstance(percentiles, Mapping):
        e2e.update(statistics({f"p{name}": raw for name, raw in percentiles.items()}, 1.0, "percentiles"))
    return {"e2e": e2e}


def _throughput(value: Mapping[str, Any], draft: Draft) -> dict[str, Any]:
    requests = whole(value, "num_requests")
    draft.workload["requests"] = requests
    draft.needs = tuple(name for name in _NEEDS if name != "concurrency")
    return {
        "duration": required(value, "elapsed_time"),
        "completed": requests,
        "requests_per_s": required(value, "requests_per_second"),
        "total_tokens_per_s": optional(value, "tokens_per_second"),
    }
