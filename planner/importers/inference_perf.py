"""inference-perf: ``stage_N_lifecycle_metrics.json`` (seconds). Model and flags stand in the manifests and ``config.yaml`` beside it.

With speculative decoding tokens arrive in bursts, so that most gaps are microseconds: TPOT (one value a request) is the one to use.
``normalized_time_per_output_token`` is e2e / tokens and not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from models.errors import FileFormatError
from planner.importers.common import Draft, Origin, fraction, optional, positive, required, statistics, text, whole
from planner.importers.facts import flags_of_command, set_facts
from planner.importers.flat import latency, serving
from planner.records import Arrival

NAME = "inference-perf"
_COMPANIONS = ("manifests.yaml", "manifest.yaml", "config.yaml", "deployment.yaml")
_ENGINES = ("vllm", "sglang", "llama.cpp", "llamacpp", "tensorrt", "trtllm", "tgi")
_COMPANION_BYTES = 1_000_000


def matches(value: Mapping[str, Any]) -> bool:
    """The parts of a stage; what the server's own metrics say of it has a ``rate`` instead of latencies."""
    successes = value.get("successes")
    return "load_summary" in value and isinstance(successes, Mapping) and "rate" not in successes


def drafts(value: Mapping[str, Any], origin: Origin) -> Iterator[Draft]:
    """One run for the stage."""
    draft = Draft(NAME)
    successes = value["successes"] if isinstance(value["successes"], Mapping) else {}
    stated = value.get("failures")
    failures = stated if isinstance(stated, Mapping) else {}
    load = value["load_summary"] if isinstance(value["load_summary"], Mapping) else {}
    completed, failed = whole(successes, "count"), whole(failures, "count")
    if "count" not in successes and (offered := whole(load, "count")):
        completed = offered - (failed or 0)
    if not completed:
        raise FileFormatError(f"all {failed or ''} requests failed: nothing was measured".replace("  ", " "), path="successes.count")
    if failed:
        draft.warnings.append(f"{failed} of {completed + failed} requests failed")
    rate = positive(optional(load, "requested_rate"))
    draft.workload.update(requests=completed + (failed or 0), rate=rate, arrival=Arrival.OPEN if rate else Arrival.UNKNOWN)
    if limit := whole(load, "concurrency"):
        draft.workload.update(arrival=Arrival.CLOSED, concurrency=limit, rate=None)
    for target, mean, keys in (("prompt_lengths", "prompt_tokens", ("prompt_tokens", "prompt_len")),
                               ("output_lengths", "output_tokens", ("output_tokens", "output_len"))):  # fmt: skip
        lengths = next((table for key in keys if (table := statistics(successes.get(key), 1.0, key))), {})
        draft.workload.update({target: lengths, mean: positive(lengths.get("mean"))})
    found = _observation(successes, load, draft, completed, failed)
    found["duration"] = positive(optional(value, "benchmark_time_seconds")) or found.get("duration")
    draft.serving.append(serving(found))
    if origin.folder is not None:
        set_facts(draft, folder_facts(origin.folder))
    yield draft


def _observation(successes: Mapping[str, Any], load: Mapping[str, Any], draft: Draft, completed: int, failed: int | None) -> dict[str, Any]:
    times = successes.get("latency")
    times = times if isinstance(times, Mapping) else {}
    found: dict[str, Any] = {"completed": completed, "failed": failed}
    for metric, key in (("ttft", "time_to_first_token"), ("tpot", "time_per_output_token"), ("itl", "inter_token_latency"),
                        ("e2e", "request_latency")):  # fmt: skip
        found[metric] = latency(statistics(times.get(key), 1.0, key), metric, draft)
    rates = successes.get("throughput")
    rates = rates if isinstance(rates, Mapping) else {}
    for target, key in (("requests_per_s", "requests_per_sec"), ("input_tokens_per_s", "input_tokens_per_sec"),
                        ("output_tokens_per_s", "output_tokens_per_sec"), ("total_tokens_per_s", "total_tokens_per_sec")):  # fmt: skip
        found[target] = optional(rates, key)
    tokens = successes.get("prompt_tokens")
    if isinstance(tokens, Mapping) and optional(tokens, "cached") and optional(tokens, "total"):
        found["prefix_hit_rate"] = fraction(required(tokens, "cached") / required(tokens, "total"), "prompt_tokens.cached")
    if found["requests_per_s"]:
        found["duration"] = completed / found["requests_per_s"]
    typical, gap = found["tpot"].get("p50"), found["itl"].get("p50")
    if typical and gap is not None and gap < 0.1 * typical:
        draft.warnings.append("tokens arrive in bursts (speculative decoding?): gaps are not token times")
    achieved, wanted = optional(load, "achieved_rate"), optional(load, "requested_rate")
    if achieved and wanted and achieved < 0.9 * wanted:
        draft.warnings.append(f"the load generator reached {achieved:.4g} of {wanted:.4g} requests a second")
    return found


def folder_facts(folder: Path) -> dict[str, str]:
    """Model, engine, version, device and flags from manifests in the folder or one of the two above it."""
    facts: dict[str, str] = {}
    for place in (folder, *list(folder.parents)[:2]):
        for name in _COMPANIONS:
            path = place / name
            if path.is_file() and path.stat().st_size <= _COMPANION_BYTES:
                facts = {**_facts_of(path), **facts}
    return facts


def _facts_of(path: Path) -> dict[str, str]:
    try:
        documents = [document for document in yaml.safe_load_all(path.read_text("utf-8", "replace")) if isinstance(document, Mapping)]
    except (yaml.YAMLError, OSError, RecursionError):
        return {}
    facts: dict[str, str] = {}
    for document in documents:
        pod = _pod(document)
        for container in pod.get("containers") or ():
            if isinstance(container, Mapping) and (found := _container(container)):
                facts.update(found)
        selector = pod.get("nodeSelector")
        if isinstance(selector, Mapping) and (device := text(selector.get("cloud.google.com/gke-accelerator"))) is not None:
            facts["device"] = device
        server = document.get("server")
        if isinstance(server, Mapping):
            facts.update({name: stated for name, key in (("model", "model_name"), ("engine", "type")) if (stated := text(server.get(key)))})
    return facts


def _pod(document: Mapping[str, Any]) -> Mapping[str, Any]:
    inner: Any = document
    for key in ("spec", "template", "spec"):
        inner = inner.get(key) if isinstance(inner, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def _container(container: Mapping[str, Any]) -> dict[str, str]:
    image = str(container.get("image", ""))
    engine = next((name for name in _ENGINES if name in image), None)
    if engine is None:
        return {}
    variables = container.get("env") or ()
    known = {str(item.get("name")): str(item.get("value")) for item in variables if isinstance(item, Mapping) and "value" in item}
    words = [str(word) for part in ("command", "args") for word in container.get(part) or ()]
    for name, replacement in known.items():
        words = [word.replace(f"$({name})", replacement) for word in words]
    facts = {**flags_of_command(words), "engine": engine.replace("llamacpp", "llama.cpp").replace("tensorrt", "trtllm")}
    _, colon, tag = image.rpartition(":")
    if colon and tag and tag != "latest" and "/" not in tag:
        facts["engine_version"] = tag.removeprefix("v")
    facts.setdefault("tensor_parallel_size", "1")
    return facts
