"""A dump of vLLM's ``/metrics`` page: counters and histograms since the server started, gauges of the moment.

Means are sum / count; percentiles are interpolated inside their bucket, as PromQL's ``histogram_quantile`` does. ``cache_config_info``
anchors the memory model. Seconds throughout; counters of tokens carry no time, so no rate can be read from one dump.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from models.errors import FileFormatError
from planner.importers.common import Draft, MeasurementError, fraction, positive
from planner.importers.flat import latency, serving
from planner.records import Arrival, MemoryObservation

NAME = "vllm prometheus"
_SAMPLE = re.compile(r"^(vllm:\w+|vllm_\w+)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_HISTOGRAMS = {"time_to_first_token_seconds": "ttft", "inter_token_latency_seconds": "itl", "time_per_output_token_seconds": "itl",
               "request_time_per_output_token_seconds": "tpot", "e2e_request_latency_seconds": "e2e",
               "request_prompt_tokens": "prompt", "request_generation_tokens": "output"}  # fmt: skip
_IDENTITY = frozenset({"vllm:cache_config_info", "vllm_cache_config_info"})
MAX_SAMPLES = 200_000


def looks_like(head: str) -> bool:
    """Exposition format with vLLM's metric names."""
    return bool(re.search(r"^(# (HELP|TYPE) )?vllm[:_]\w+", head, re.MULTILINE))


class PrometheusDump:
    """Takes lines one by one; series of several engines are added up."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        self._buckets: dict[str, dict[float, float]] = {}
        self._cache: dict[str, str] = {}
        self._model: str | None = None
        self._engines: set[str] = set()
        self._samples = 0

    def feed(self, number: int, line: str) -> bool:
        """Take a line; True when it is a sample of vLLM."""
        if line.startswith("#") or not line.startswith("vllm"):
            return False
        found = _SAMPLE.match(line)
        if found is None:
            raise MeasurementError("is no sample of the exposition format", path=f"line {number}", value=line[:80])
        self._samples += 1
        if self._samples > MAX_SAMPLES:
            raise FileFormatError("holds too many samples", value=self._samples)
        labels = dict(_LABEL.findall(found.group(2) or ""))
        name = found.group(1).replace("vllm_", "vllm:", 1).removeprefix("vllm:")
        self._sample(name, labels, found.group(3), number)
        return True

    def _sample(self, name: str, labels: dict[str, str], raw: str, number: int) -> None:
        self._model = self._model or labels.get("model_name")
        self._engines.add(labels.get("engine", "0"))
        if name == "cache_config_info":
            self._cache = self._cache or labels
            return
        try:
            value = float(raw)
        except ValueError:
            raise MeasurementError("is not a number", path=f"line {number}", value=raw) from None
        if name.startswith("request_success") and labels.get("finished_reason") in {"abort", "error"}:
            name = "failed"
        if name.removesuffix("_bucket") in _HISTOGRAMS and "le" in labels:
            buckets = self._buckets.setdefault(name.removesuffix("_bucket"), {})
            edge = float(labels["le"])
            buckets[edge] = buckets.get(edge, 0.0) + value
        elif not name.endswith(("_bucket", "_created")):
            if not math.isfinite(value) or value < 0:
                if name.startswith(("num_requests", "kv_cache")):
                    raise MeasurementError("cannot be a measurement", path=name, value=raw)
                return
            self._values[name] = self._values.get(name, 0.0) + value

    def drafts(self) -> list[Draft]:
        """The run, if anything was served or the memory is described."""
        if not self._samples:
            return []
        draft = Draft(NAME, needs=("model", "device", "tensor_parallel"), coarse=True)
        draft.setup.update(engine="vllm")
        if self._model:
            draft.setup["model"] = self._model
        draft.workload["arrival"] = Arrival.SERVER
        if self._cache:
            draft.memory.append(self._memory(draft))
        found = self._observation(draft)
        if any(found.get(metric) for metric in ("ttft", "tpot", "itl", "e2e")):
            draft.serving.append(serving(found))
        elif not draft.memory:
            raise FileFormatError("no request was served: nothing was measured")
        return [draft]

    def _statistics(self, name: str) -> dict[str, float]:
        count = self._values.get(f"{name}_count", 0.0)
        if count <= 0:
            return {}
        return {"mean": self._values.get(f"{name}_sum", 0.0) / count, **dict(self._quantiles(name))}

    def _quantiles(self, name: str) -> Iterator[tuple[str, float]]:
        edges = sorted(self._buckets.get(name, {}).items())
        total = edges[-1][1] if edges else 0.0
        for percent in (50, 90, 99) if total else ():
            rank, low, below = percent / 100 * total, 0.0, 0.0
            for edge, cumulated in edges:
                if cumulated >= rank:
                    share = (rank - below) / (cumulated - below) if cumulated > below else 1.0
                    yield f"p{percent}", low if math.isinf(edge) else low + (edge - low) * share
                    break
                low, below = edge, cumulated

    def _observation(self, draft: Draft) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, metric in _HISTOGRAMS.items():
            stats = self._statistics(name)
            if metric in {"prompt", "output"}:
                draft.workload[f"{metric}_tokens"] = positive(stats.get("mean"))
                draft.workload[f"{metric}_lengths"] = stats
            elif stats and not found.get(metric):
                found[metric] = latency(stats, metric, draft)
        if found:
            draft.warnings.append("since the start of the server; percentiles are interpolated inside histogram buckets")
        completed = sum(value for name, value in self._values.items() if name.startswith("request_success"))
        found["completed"], found["failed"] = int(completed) or None, int(self._values.get("failed", 0.0)) or None
        found["preemptions"] = int(self._values.get("num_preemptions_total", self._values.get("num_preemptions", 0.0)))
        found["running"], found["waiting"] = self._values.get("num_requests_running"), self._values.get("num_requests_waiting")
        usage = self._values.get("kv_cache_usage_perc", self._values.get("gpu_cache_usage_perc"))
        found["kv_usage"] = fraction(None if usage is None else usage / max(len(self._engines), 1), "kv_cache_usage_perc")
        found["prefix_hit_rate"] = self._share("prefix_cache_hits_total", "prefix_cache_queries_total")
        found["acceptance_rate"] = self._share("spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total")
        drafts = self._values.get("spec_decode_num_drafts_total", 0.0)
        if drafts:
            found["acceptance_length"] = 1.0 + self._values.get("spec_decode_num_accepted_tokens_total", 0.0) / drafts
        return found

    def _share(self, part: str, whole: str) -> float | None:
        total = self._values.get(whole, 0.0)
        return fraction(self._values.get(part, 0.0) / total, part) if total else None

    def _memory(self, draft: Draft) -> MemoryObservation:
        def count(key: str) -> int | None:
            raw = self._cache.get(key, "")
            return int(float(raw)) if re.fullmatch(r"\d+(\.0+)?", raw) else None

        blocks, size = count("num_gpu_blocks"), count("block_size")
        tokens = count("kv_cache_size_tokens") or (blocks * size if blocks and size else None)
        share = self._cache.get("gpu_memory_utilization", "")
        utilization = float(share) if re.fullmatch(r"0?\.\d+|1(\.0+)?", share) else None
        kind = self._cache.get("cache_dtype")
        draft.setup.update(block_size=size or None, memory_utilization=utilization)
        if self._cache.get("enable_prefix_caching") in {"True", "False"}:
            draft.setup["prefix_sharing"] = self._cache["enable_prefix_caching"] == "True"
        if kind not in {None, "auto"}:
            draft.setup["kv_format"] = kind
        concurrency = re.fullmatch(r"\d+(\.\d+)?", self._cache.get("kv_cache_max_concurrency", ""))
        return MemoryObservation(
            kv_blocks=blocks, block_size=size or None, kv_pool_tokens=tokens, kv_dtype=kind, utilization=utilization,
            kv_pool_bytes=count("kv_cache_memory_bytes"), max_concurrency=float(concurrency.group(0)) if concurrency else None,
        )  # fmt: skip
