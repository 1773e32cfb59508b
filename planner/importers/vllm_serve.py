"""``vllm bench serve``: plain, detailed and appended results, and the runs and summaries of ``vllm bench sweep serve``.

One flat object. ``*_ms`` are milliseconds, arrays of requests are seconds, ``spec_decode_acceptance_rate`` is percent. Hardware and
server flags are only there as ``--metadata`` pairs (strings at top level) or, in a sweep, merged in beside ``run_number``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from models.errors import FileFormatError
from planner.importers.common import MILLI, Draft, Origin, fraction, optional, positive, text, whole
from planner.importers.facts import set_fact, set_facts
from planner.importers.flat import add_detail, completed_requests, flat_serving, mean_lengths, serving, set_arrival
from planner.records import Arrival

NAME = "vllm bench serve"
_IDENTITY = ("num_prompts", "tokenizer_id", "endpoint_type", "total_token_throughput", "burstiness")
_OWN = frozenset({
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate", "burstiness", "max_concurrency",
    "duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput",
    "output_throughput", "total_token_throughput", "max_output_tokens_per_s", "best_of", "use_beam_search", "dataset_name",
    "_benchmark_name", "max_concurrent_requests", "rtfx", "run_number", "goodput", "request_goodput:", "good_completed",
    "input_throughput", "total_input", "total_output", "version_file",
})  # fmt: skip
_TIMED = re.compile(r"^(mean|median|p[\d.]+)_(ttft|tpot|itl|e2el)_ms$")
_MEASURED = re.compile(r"_ms$|^(spec_decode|diffusion|probe|ramp_up)_")
_ENGINES = {"vllm": "vllm", "vllm-chat": "vllm", "sglang": "sglang", "sglang-oai": "sglang", "tensorrt-llm": "trtllm",
            "llama.cpp": "llama.cpp", "tgi": "tgi", "lmdeploy": "lmdeploy"}  # fmt: skip
_SWEEP_PART = re.compile(r"(?:^|-)(SERVE|BENCH|WL|SLA)--")


def matches(value: Mapping[str, Any]) -> bool:
    """Flat keys in milliseconds (``--percentile-metrics`` chooses which) beside the identity that this tool writes."""
    return sum(key in value for key in _IDENTITY) >= 2 and any(_TIMED.match(str(key)) for key in value)


def drafts(value: Mapping[str, Any], origin: Origin) -> Iterator[Draft]:
    """One run."""
    if value.get("run_number") == -1:
        raise FileFormatError("the warm-up of a sweep is no measurement", path="run_number")
    draft = Draft(NAME if "run_number" not in value else "vllm bench sweep", measured_at=text(value.get("date")))
    completed = completed_requests(value, draft, "completed", "failed", "num_prompts")
    set_arrival(draft, value.get("request_rate"), whole(value, "max_concurrency"))
    _ramp(value, draft)
    draft.workload["burstiness"] = positive(optional(value, "burstiness")) if draft.workload.get("rate") else None
    mean_lengths(value, draft, completed, "total_input_tokens", "total_output_tokens")
    _setup(value, origin, draft)
    found = flat_serving(value, draft, completed, "_ms", MILLI)
    if found["good_requests_per_s"] is None:
        found["good_requests_per_s"] = optional(value, "request_goodput:")  # releases before 0.9 wrote the colon
    add_detail(value, draft, found)
    _speculation(value, found)
    draft.serving.append(serving(found))
    yield draft


def _ramp(value: Mapping[str, Any], draft: Draft) -> None:
    """A rate that grows during the run is none of the arrivals that a calibration knows."""
    if (kind := text(value.get("ramp_up_strategy"))) is not None:
        draft.workload.update(arrival=Arrival.UNKNOWN, rate=None)
        ends = f"{value.get('ramp_up_start_rps')} to {value.get('ramp_up_end_rps')}"
        draft.warnings.append(f"the rate grew ({kind}) from {ends} requests a second during the run")


def _setup(value: Mapping[str, Any], origin: Origin, draft: Draft) -> None:
    if (model := text(value.get("model_id"))) is not None:
        draft.setup["model"] = model
    engine = _ENGINES.get(str(value.get("backend", "")).lower()) or _ENGINES.get(str(value.get("endpoint_type", "")).lower())
    if engine is not None:
        draft.setup["engine"] = engine
    draft.workload["dataset"] = text(value.get("dataset_name"))
    for key in ("endpoint_type", "backend", "label", "tokenizer_id", "goodput"):
        if (written := text(value.get(key))) is not None:
            draft.metadata[key] = written
    for key, raw in value.items():
        if key not in _OWN and not _MEASURED.search(key) and isinstance(raw, str | int | float | bool):
            set_fact(draft, key, raw)
    flags = {} if origin.folder is None else sweep_facts(origin.folder)
    set_facts(draft, flags)
    if flags or "run_number" in value:
        draft.setup.setdefault("engine", "vllm")  # a sweep starts vLLM itself


def _speculation(value: Mapping[str, Any], found: dict[str, Any]) -> None:
    rate = optional(value, "spec_decode_acceptance_rate", 0.01)
    if rate is not None:
        found["acceptance_rate"] = fraction(rate, "spec_decode_acceptance_rate")
    if length := optional(value, "spec_decode_acceptance_length"):
        found["acceptance_length"] = length
    positions = value.get("spec_decode_per_position_acceptance_rates")
    if positions is not None and not isinstance(positions, str | dict):
        found["acceptance_by_position"] = tuple(fraction(float(share), "spec_decode_per_position_acceptance_rates") for share in positions)


def sweep_facts(folder: Path) -> dict[str, str]:
    """Server flags in the name of a sweep folder: ``SERVE--max_num_seqs=64-BENCH--max_concurrency=8``."""
    facts: dict[str, str] = {}
    for name in (folder.name, folder.parent.name):
        parts = _SWEEP_PART.split(name)
        for kind, body in zip(parts[1::2], parts[2::2], strict=False):
            for pair in re.split(r"-(?=[A-Za-z_][\w.]*=)", body) if kind == "SERVE" else ():
                flag, found, raw = pair.partition("=")
                if found:
                    facts.setdefault(flag, raw)
    return facts
