"""InferenceX (InferenceMAX) ``agg_*.json`` and the results beside them: vLLM's keys with ``_ms`` stripped and converted to seconds.

``conc`` is for the whole deployment. ``*_intvty`` is 1000 / TPOT percentile, so its ``p99`` is the slow tail; TPOT itself is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from models.errors import FileFormatError
from planner.importers.common import Draft, Origin, optional, positive, text, whole
from planner.importers.facts import set_fact
from planner.importers.flat import completed_requests, flat_serving, mean_lengths, serving, set_arrival
from planner.records import Arrival

NAME = "inferencex"
_NAMED = re.compile(r"^(?P<hw>.+?)(?:-(?:trt|vllm|sglang|atom|dynamo).*)?$")  # ``h200-trt``: the card and what runs on it
_ENGINES = {"trt": "trtllm", "trtllm": "trtllm", "tensorrt-llm": "trtllm"}
_FACTS = ("precision", "spec_decoding", "mtp", "disagg", "tp", "pp", "ep", "dp_attention")


def matches(value: Mapping[str, Any]) -> bool:
    """Latencies without a unit in their name, beside the identity of either form."""
    measured = "median_ttft" in value or "mean_ttft" in value or "median_tpot" in value or "mean_tpot" in value
    return measured and (("hw" in value and "conc" in value) or ("model_id" in value and "max_concurrency" in value))


def drafts(value: Mapping[str, Any], _origin: Origin) -> Iterator[Draft]:
    """One run."""
    draft = Draft(NAME, measured_at=text(value.get("date")))
    _names(value, draft)
    for key in _FACTS:
        set_fact(draft, key, value.get(key))
    set_fact(draft, "model", value.get("model") or value.get("model_id"))
    _version(value, draft)
    if "completed" in value:
        completed = completed_requests(value, draft, "completed", "failed", "num_prompts")
        mean_lengths(value, draft, completed, "total_input_tokens", "total_output_tokens")
        found = flat_serving(value, draft, completed, "", 1.0)
    else:
        found = flat_serving(value, draft, 0, "", 1.0)
        found["completed"] = None
    if not any(found.get(metric) for metric in ("ttft", "tpot", "e2e")):
        raise FileFormatError("every latency is zero or absent: nothing was measured", path="median_tpot")
    concurrency = whole(value, "conc") or whole(value, "max_concurrency")
    set_arrival(draft, value.get("request_rate"), concurrency)
    if "conc" in value:
        draft.workload["arrival"] = Arrival.CLOSED
    for key, target in (("isl", "prompt_tokens"), ("osl", "output_tokens")):
        if (length := positive(optional(value, key))) is not None:
            draft.workload.setdefault(target, length)
    draft.needs = (*draft.needs, *(target for target in ("prompt_tokens", "output_tokens") if draft.workload.get(target) is None))
    _per_gpu(value, draft, found)
    draft.serving.append(serving(found))
    yield draft


def _names(value: Mapping[str, Any], draft: Draft) -> None:
    """Card and engine without the words that InferenceX puts around them (``h200-trt``, ``dynamo-sglang``)."""
    if (hardware := text(value.get("hw"))) is not None and (found := _NAMED.match(hardware)):
        set_fact(draft, "hw", found.group("hw"))
    if (framework := text(value.get("framework"))) is not None:
        engine = framework.lower().removeprefix("dynamo-")
        set_fact(draft, "framework", _ENGINES.get(engine, engine))


def _version(value: Mapping[str, Any], draft: Draft) -> None:
    image = text(value.get("image"))
    if image is None:
        return
    draft.metadata["image"] = image
    tag = image.rpartition(":")[2]
    if tag != image and "/" not in tag and tag[:2].strip("v")[:1].isdigit():
        draft.setup["engine_version"] = tag.removeprefix("v")


def _per_gpu(value: Mapping[str, Any], draft: Draft, found: dict[str, Any]) -> None:
    """Rates of one GPU times the GPUs of an aggregated deployment."""
    devices = (whole(value, "tp") or 0) * (whole(value, "pp") or 1)
    if draft.setup.get("disaggregated"):
        draft.warnings.append("a disaggregated deployment: parallelism of its two parts is kept as written")
        for key in ("prefill_tp", "prefill_ep", "prefill_num_workers", "decode_tp", "decode_ep", "decode_num_workers", "num_prefill_gpu",
                    "num_decode_gpu"):  # fmt: skip
            set_fact(draft, key, value.get(key))
        return
    if not devices:
        return
    draft.setup.setdefault("device_count", devices)
    for key, target in (("output_tput_per_gpu", "output_tokens_per_s"), ("tput_per_gpu", "total_tokens_per_s")):
        rate = optional(value, key)
        if rate is not None and found.get(target) is None:
            found[target] = rate * devices
