"""SGLang ``bench_one_batch`` and ``bench_one_batch_server`` (seconds): one static batch, prefilled once and decoded to the end.

The n-th of the ``output_len - 1`` decode steps reads ``input_len + n - 1`` cached tokens of each sequence; the median step stands in
the middle. The server form has whole latencies and -1 for what it did not measure. Neither names the model, except in ``run_name``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.importers.common import Draft, MeasurementError, Origin, number, optional, required, text, whole
from planner.importers.facts import set_fact
from planner.importers.flat import serving
from planner.importers.plausible import agree
from planner.records import Arrival, SequenceGroup, StepKind, StepObservation

NAME, SERVER = "sglang bench_one_batch", "sglang bench_one_batch_server"


def matches(value: Mapping[str, Any]) -> bool:
    """A batch size and lengths beside a latency of one of the two forms."""
    shape = "batch_size" in value and "input_len" in value and "output_len" in value
    return shape and ("prefill_latency" in value or "latency" in value or "total_latency" in value)


def drafts(value: Mapping[str, Any], _origin: Origin) -> Iterator[Draft]:
    """One run: two steps, or the whole batch as the client saw it."""
    offline = "prefill_latency" in value
    draft = Draft(NAME if offline else SERVER)
    draft.setup["engine"] = "sglang"
    batch, prompt, output = (_count(value, key) for key in ("batch_size", "input_len", "output_len"))
    draft.workload.update(arrival=Arrival.OFFLINE if offline else Arrival.BURST, prompt_tokens=prompt, output_tokens=output, requests=batch)
    if not offline:
        draft.workload["concurrency"] = batch
    if (name := text(value.get("run_name"))) is not None:
        draft.metadata["run_name"] = name
    for key in ("model", "model_path", "tp", "tp_size", "device", "gpu", "version"):
        set_fact(draft, key, value.get(key))
    if offline:
        draft.steps.extend(_steps(value, batch, prompt, output))
    else:
        draft.serving.append(serving(_server(value, batch, output)))
    yield draft


def _count(value: Mapping[str, Any], key: str) -> int:
    found = whole(value, key)
    if not found:
        raise MeasurementError("must be a whole number above 0", path=key, value=value.get(key))
    return found


def _steps(value: Mapping[str, Any], batch: int, prompt: int, output: int) -> Iterator[StepObservation]:
    prefill = optional(value, "prefill_latency")
    if prefill:
        rate = optional(value, "prefill_throughput")
        agree("prefill_latency", prefill, batch * prompt / rate if rate else None)
        group = SequenceGroup(sequences=batch, new_tokens=batch * prompt, context_tokens=0)
        yield StepObservation(kind=StepKind.PREFILL, groups=(group,), seconds=prefill)
    decode = optional(value, "median_decode_latency")
    if decode:
        rate = optional(value, "median_decode_throughput")
        agree("median_decode_latency", decode, batch / rate if rate else None)
        middle = prompt + max(output - 2, 0) / 2
        group = SequenceGroup(sequences=batch, new_tokens=batch, context_tokens=batch * middle)
        yield StepObservation(kind=StepKind.DECODE, groups=(group,), seconds=decode, repeats=max(output - 1, 1))


def _server(value: Mapping[str, Any], batch: int, output: int) -> dict[str, Any]:
    def measured(key: str) -> float | None:
        raw = value.get(key)
        return None if raw is None or raw == -1 else number(raw, key)

    whole_batch = measured("latency") or measured("total_latency")
    if whole_batch is None:
        raise MeasurementError("is required and missing", path="latency")
    rate = measured("overall_throughput")
    agree("latency", whole_batch, (required(value, "input_len") + output) * batch / rate if rate else None)
    rate = measured("output_throughput")
    agree("latency", whole_batch, output * batch / rate + (measured("last_ttft") or 0.0) if rate else None)
    found: dict[str, Any] = {"duration": whole_batch, "completed": batch, "e2e": {"max": whole_batch}}
    found["output_tokens_per_s"] = batch * output / whole_batch
    if ttft := measured("last_ttft"):
        found["ttft"] = {"max": ttft}
        if output > 1:
            found["tpot"] = {"mean": (whole_batch - ttft) / (output - 1)}
    found["acceptance_length"] = measured("acc_length") or None
    found["prefix_hit_rate"] = measured("cache_hit_rate")
    return found
