"""``trtllm-bench --report_json``: ``*_ms`` in milliseconds, ``memory.total`` in GiB, percentiles of a streaming run in milliseconds.

The limit on requests in flight is not recorded. ``issue_rate`` is none: it is the nanoseconds from the first to the last submission, a
request, times 1e9. Where that is a small part of the whole, all were submitted at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from models.errors import FileFormatError
from models.units import GIB
from planner.importers.common import MILLI, Draft, Origin, number, optional, positive, statistics, text, whole
from planner.importers.facts import set_fact
from planner.importers.flat import latency, serving
from planner.records import Arrival

NAME = "trtllm-bench"
_AT_ONCE = 0.15  # of the whole; clients of a closed loop submit until the last of them begins
_SIZES = ("tp_size", "pp_size", "ep_size", "max_batch_size", "max_num_tokens", "kv_cache_percentage")


def matches(value: Mapping[str, Any]) -> bool:
    """The parts of the report."""
    return "performance" in value and "world_info" in value and ("request_info" in value or "engine" in value)


def drafts(value: Mapping[str, Any], _origin: Origin) -> Iterator[Draft]:
    """One run."""
    draft = Draft(NAME)
    _setup(value, draft)
    requests, performance = _part(value, "request_info"), _part(value, "performance")
    streaming, decoding = _part(value, "streaming_metrics"), _part(value, "decoding_stats")
    completed = whole(requests, "num_requests")
    if completed == 0:
        raise FileFormatError("no request was completed: nothing was measured", path="request_info.num_requests")
    duration = positive(optional(performance, "total_latency_ms", MILLI))
    draft.workload.update(
        arrival=arrival_of(optional(_part(value, "world_info"), "issue_rate"), completed, duration),
        requests=completed,
        prompt_tokens=positive(optional(requests, "avg_input_length")),
        output_tokens=positive(optional(requests, "avg_output_length")),
    )
    found: dict[str, Any] = {"completed": completed, "duration": duration}
    found["in_flight"] = optional(requests, "avg_num_concurrent_requests")
    for metric, part, percentiles, mean in (
        ("e2e", performance, "request_latency_percentiles_ms", "avg_request_latency_ms"),
        ("ttft", streaming, "ttft_percentiles", "avg_ttft_ms"),
        ("tpot", streaming, "tpot_percentiles", "avg_tpot_ms"),
    ):
        found[metric] = latency(_times(part, percentiles, mean), metric, draft)
    found["requests_per_s"] = optional(performance, "request_throughput_req_s")
    found["output_tokens_per_s"] = optional(performance, "system_output_throughput_tok_s")
    found["total_tokens_per_s"] = optional(performance, "system_total_throughput_tok_s")
    lengths = statistics(decoding.get("acceptance_length_percentiles"), 1.0, "acceptance_length_percentiles")
    found["acceptance_length"] = positive(lengths.get("mean"))
    draft.serving.append(serving(found))
    yield draft


def arrival_of(issue_rate: float | None, requests: float | None, seconds: float | None) -> Arrival:
    """A burst where the submissions took little of the run, else not known."""
    if not issue_rate or not requests or not seconds:
        return Arrival.UNKNOWN
    return Arrival.BURST if issue_rate * 1e-18 * requests <= _AT_ONCE * seconds else Arrival.UNKNOWN


def _part(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = value.get(key)
    return part if isinstance(part, Mapping) else {}


def _times(part: Mapping[str, Any], percentiles: str, mean: str) -> dict[str, float]:
    found = statistics(part.get(percentiles), MILLI, percentiles)
    average = optional(part, mean, MILLI)
    return found if average is None else {**found, "mean": average}


def _setup(value: Mapping[str, Any], draft: Draft) -> None:
    engine, world, machine = _part(value, "engine"), _part(value, "world_info"), _part(value, "machine")
    draft.setup["engine"] = "trtllm"
    for key in ("model", "version", "kv_cache_dtype", "quantization", "max_sequence_length", "max_seq_length"):
        set_fact(draft, key, engine.get(key))
    if (dtype := text(engine.get("dtype"))) is not None:
        draft.setup["precision"] = (text(engine.get("quantization")) or dtype).lower()
    for key in _SIZES:
        set_fact(draft, key, world.get(key))
    for key in ("scheduling_policy", "issue_rate"):
        if world.get(key) is not None:
            draft.metadata[key] = str(world[key])
    set_fact(draft, "device_count", world.get("world_size"))
    set_fact(draft, "device", machine.get("name"))
    if machine.get("memory.total") is not None:
        draft.metadata["device_memory_bytes"] = str(round(number(machine["memory.total"], "machine.memory.total") * GIB))
    set_fact(draft, "draft", _part(value, "decoding_stats").get("mode"))
