"""SGLang ``bench_serving``: one object a line, ``*_ms`` in milliseconds, ``request_rate`` possibly bare ``Infinity`` or ``"trace"``.

``server_info`` holds every server argument, ``version``, ``max_total_num_tokens`` and each rank's ``memory_usage`` (written GB, meant
GiB). A disaggregated run nests ``prefill`` and ``decode`` servers. Old files lack ``server_info``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from models.units import GIB
from planner.importers.common import MILLI, Draft, Origin, fraction, number, optional, text, whole
from planner.importers.facts import is_engine_fact, set_fact
from planner.importers.flat import add_detail, completed_requests, flat_serving, mean_lengths, serving, set_arrival
from planner.records import MemoryObservation

NAME = "sglang bench_serving"
_MARKS = ("total_output_tokens_retokenized", "sharegpt_output_len", "random_input_len", "random_range_ratio", "server_info",
          "accept_length")  # fmt: skip
_RANDOM = ("random", "random-ids")
_ENGINES = {"sglang": "sglang", "sglang-native": "sglang", "sglang-oai": "sglang", "sglang-oai-chat": "sglang", "vllm": "vllm",
            "vllm-chat": "vllm", "lmdeploy": "lmdeploy", "trt": "trtllm"}  # fmt: skip


def matches(value: Mapping[str, Any]) -> bool:
    """Flat keys in milliseconds and what only this tool writes."""
    measured = "median_ttft_ms" in value or "mean_ttft_ms" in value or "median_e2e_latency_ms" in value
    return measured and "backend" in value and sum(mark in value for mark in _MARKS) >= 2


def drafts(value: Mapping[str, Any], _origin: Origin) -> Iterator[Draft]:
    """One run."""
    draft = Draft(NAME)
    completed = completed_requests(value, draft, "completed", "failed", "num_prompts")
    set_arrival(draft, value.get("request_rate"), whole(value, "max_concurrency"))
    mean_lengths(value, draft, completed, "total_input_tokens", "total_output_tokens")
    draft.workload["dataset"] = text(value.get("dataset_name"))
    _drawn_lengths(value, draft)
    _setup(value, draft)
    found = flat_serving(value, draft, completed, "_ms", MILLI)
    found["in_flight"] = optional(value, "concurrency")
    found["total_tokens_per_s"] = optional(value, "total_throughput")
    report = value.get("cache_report")
    if isinstance(report, Mapping):
        found["prefix_hit_rate"] = fraction(optional(report, "cache_hit_rate_pct", 0.01), "cache_hit_rate_pct")
    if length := optional(value, "accept_length"):
        found["acceptance_length"] = length
    add_detail(value, draft, found)
    draft.serving.append(serving(found))
    yield draft


def _drawn_lengths(value: Mapping[str, Any], draft: Draft) -> None:
    """Random lengths as the tool draws them: evenly between the ratio's share of the stated length and all of it."""
    ratio = optional(value, "random_range_ratio")
    if ratio is None or not 0 <= ratio < 1 or draft.workload["dataset"] not in _RANDOM:
        return
    for kind, key in (("prompt", "random_input_len"), ("output", "random_output_len")):
        longest, seen = whole(value, key), draft.workload.get(f"{kind}_tokens")
        if longest and seen is not None and (least := max(int(longest * ratio), 1)) <= seen <= longest:
            draft.workload[f"{kind}_lengths"] = {"min": least, "max": longest, "std": (longest - least) / 12**0.5}


def _setup(value: Mapping[str, Any], draft: Draft) -> None:
    if (engine := _ENGINES.get(str(value.get("backend", "")).lower())) is not None:
        draft.setup["engine"] = engine
    for key in ("tag", "backend", "dataset_name"):
        if (written := text(value.get(key))) is not None:
            draft.metadata[key] = written
    for key in ("model", "model_id", "model_path", "tp", "tp_size", "gpu", "device"):
        set_fact(draft, key, value.get(key))
    info = value.get("server_info")
    if not isinstance(info, Mapping):
        return
    if isinstance(info.get("decode"), list | Mapping) or isinstance(info.get("prefill"), list | Mapping):
        draft.setup["disaggregated"] = True
        draft.warnings.append("a disaggregated run: settings are those of the decode servers")
        decode = info.get("decode") or info.get("prefill")
        info = decode[0] if isinstance(decode, list) and decode else decode
    if isinstance(info, Mapping):
        _server(info, draft)


def _server(info: Mapping[str, Any], draft: Draft) -> None:
    for key, raw in info.items():
        if is_engine_fact(key) and isinstance(raw, str | int | float | bool):
            set_fact(draft, key, raw)
    if (version := text(info.get("version"))) is not None:
        draft.setup["engine_version"] = version
    states = info.get("internal_states")
    usages = [state.get("memory_usage") for state in states if isinstance(state, Mapping)] if isinstance(states, list) else []
    for rank, usage in enumerate(usages):
        if isinstance(usage, Mapping):
            draft.memory.append(_memory(usage, info, rank))


def _memory(usage: Mapping[str, Any], info: Mapping[str, Any], rank: int) -> MemoryObservation:
    def gib(key: str) -> int | None:
        return None if usage.get(key) is None else round(number(usage[key], f"memory_usage.{key}") * GIB)

    tokens = whole(info, "max_total_num_tokens") or whole(usage, "token_capacity")
    graph = gib("graph") if usage.get("graph") is not None else gib("cuda_graph")
    return MemoryObservation(rank=rank, weights_bytes=gib("weight"), kv_pool_bytes=gib("kvcache"), graph_bytes=graph, kv_pool_tokens=tokens)
