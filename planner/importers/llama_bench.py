"""``llama-bench`` JSON and JSON lines: batch 1, no sampling; nanoseconds. Each row is a run.

``n_gen = 0``: ``n_prompt`` tokens are prefilled on ``n_depth`` cached ones, in steps of ``n_ubatch``; the row gives their sum.
``n_prompt = 0``: ``n_gen`` decode steps from ``n_depth`` on; the mean step stands in the middle. Both nonzero: one after the other.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Any

from planner.importers.common import NANO, Draft, MeasurementError, Origin, number, optional, required, text, whole
from planner.importers.facts import set_fact
from planner.importers.flat import serving
from planner.importers.plausible import agree
from planner.records import Arrival, SequenceGroup, StepKind, StepObservation

NAME = "llama-bench"
_FLAGS = ("n_batch", "n_ubatch", "n_threads", "n_gpu_layers", "n_cpu_moe", "split_mode", "no_kv_offload", "flash_attn", "tensor_split",
          "tensor_buft_overrides", "use_mmap", "backends", "cpu_info", "type_v", "main_gpu", "devices")  # fmt: skip


def matches(value: Mapping[str, Any]) -> bool:
    """Counts of prompt and generated tokens beside a time in nanoseconds."""
    return "n_prompt" in value and "n_gen" in value and ("avg_ns" in value or "samples_ns" in value)


def drafts(value: Mapping[str, Any], _origin: Origin) -> Iterator[Draft]:
    """One run of one measurement."""
    draft = Draft(NAME, measured_at=text(value.get("test_time")))
    _setup(value, draft)
    prompt, generated, depth = (whole(value, key) or 0 for key in ("n_prompt", "n_gen", "n_depth"))
    seconds, spread, repeats = _seconds(value)
    rate = optional(value, "avg_ts")
    agree("avg_ns", seconds, (prompt + generated) / rate if rate else None)
    if prompt == 0 and generated == 0:
        raise MeasurementError("n_prompt and n_gen are both zero: nothing was measured", path="n_prompt")
    draft.workload.update(arrival=Arrival.OFFLINE, prompt_tokens=prompt or None, output_tokens=generated or None, requests=1)
    if prompt and generated:
        total = {"duration": seconds, "completed": 1, "e2e": {"mean": seconds}, "total_tokens_per_s": (prompt + generated) / seconds}
        draft.serving.append(serving(total))
        draft.warnings.append("prompt and generation were timed together: no step time can be read from the row")
    elif prompt:
        draft.steps.append(_prefill(value, prompt, depth, seconds, spread, repeats, draft))
    else:
        middle = depth + (generated - 1) / 2
        group = SequenceGroup(sequences=1, new_tokens=1, context_tokens=middle)
        draft.steps.append(
            StepObservation(kind=StepKind.DECODE, groups=(group,), seconds=seconds / generated, spread=spread, repeats=generated * repeats)
        )
    yield draft


def _seconds(value: Mapping[str, Any]) -> tuple[float, float | None, int]:
    """Median of the samples, else the average; relative range; number of samples."""
    samples = value.get("samples_ns")
    if isinstance(samples, array) and samples:
        ordered = sorted(number(sample, "samples_ns") * NANO for sample in samples)
        half = len(ordered) // 2
        middle = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
        if middle == 0:
            raise MeasurementError("is zero and cannot be a measurement", path="samples_ns")
        return middle, (ordered[-1] - ordered[0]) / middle if len(ordered) > 1 else None, len(ordered)
    average = required(value, "avg_ns", NANO)
    if average == 0:
        raise MeasurementError("is zero and cannot be a measurement", path="avg_ns")
    return average, None, 1


def _prefill(
    value: Mapping[str, Any], prompt: int, depth: int, seconds: float, spread: float | None, repeats: int, draft: Draft
) -> StepObservation:
    chunk = whole(value, "n_ubatch") or prompt
    parts = -(-prompt // chunk)
    if parts > 1:
        draft.warnings.append(f"{prompt} tokens were prefilled in steps of {chunk}: the time is their sum")
    group = SequenceGroup(sequences=1, new_tokens=prompt, context_tokens=depth)
    return StepObservation(kind=StepKind.PREFILL, groups=(group,), seconds=seconds, spread=spread, repeats=repeats, parts=parts)


def _setup(value: Mapping[str, Any], draft: Draft) -> None:
    draft.setup.update(engine="llama.cpp", tensor_parallel=1, cuda_graphs=None)
    if (commit := text(value.get("build_commit"))) is not None:
        draft.setup["engine_version"] = f"b{value['build_number']}" if value.get("build_number") else commit
    set_fact(draft, "model", value.get("model_type") or value.get("model_filename"))
    set_fact(draft, "kv_format", value.get("type_k"))
    _device(value, draft)
    for key in _FLAGS:
        if value.get(key) is not None:
            set_fact(draft, key, value[key])
    for key in ("model_filename", "build_commit", "gpu_info"):
        if (written := text(value.get(key))) is not None:
            draft.metadata[key] = written
    for key in ("model_size", "model_n_params"):
        if (size := optional(value, key)) is not None:
            draft.metadata[key] = str(int(size))


def _device(value: Mapping[str, Any], draft: Draft) -> None:
    device = text(value.get("gpu_info"))
    if device is None or str(value.get("n_gpu_layers")) == "0":
        device = text(value.get("cpu_info"))
    set_fact(draft, "device", device)
    if device is not None and "," in device and device == text(value.get("gpu_info")):
        draft.setup["device_count"] = device.count(",") + 1
        draft.warnings.append("several devices: layers are split over them one after the other")
