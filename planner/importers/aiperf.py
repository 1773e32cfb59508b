"""AIPerf and genai-perf: ``<metric>: {unit, avg, p1 … p99, min, max, std}`` at top level; the unit is read, never assumed.

Their ``inter_token_latency`` is one mean for each request (the TPOT of this project), ``inter_chunk_latency`` is one value a gap (ITL).
``input_config`` was reshaped between versions. ``profile_export.jsonl`` holds one request a line; its lines become one run.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from models.errors import FileFormatError, UnitError
from planner.importers.common import TIME_UNITS, Draft, MeasurementError, Origin, number, of_values, positive, statistics, text, whole
from planner.importers.facts import set_fact
from planner.importers.flat import latency, serving
from planner.records import Arrival

NAME, REQUESTS = "aiperf", "aiperf requests"
_LATENCIES = (("ttft", "time_to_first_token"), ("ttft", "ttft"), ("tpot", "inter_token_latency"), ("itl", "inter_chunk_latency"),
              ("e2e", "request_latency"))  # fmt: skip
_RATES = (("requests_per_s", "request_throughput"), ("output_tokens_per_s", "output_token_throughput"),
          ("input_tokens_per_s", "input_token_throughput"), ("total_tokens_per_s", "total_token_throughput"),
          ("good_requests_per_s", "goodput"))  # fmt: skip
_CONCURRENCY = re.compile(r"--concurrency[ =](\d+)")
_RATE = re.compile(r"--request-rate[ =]([\d.]+)")
MAX_REQUESTS = 4_000_000


def matches(value: Mapping[str, Any]) -> bool:
    """Metrics with their unit, at top level or (AIPerf before 0.2) in ``records``."""
    found = [metric for _, key in (*_LATENCIES, *_RATES) if isinstance(metric := _metrics(value).get(key), Mapping)]
    return any("unit" in metric and "avg" in metric for metric in found)


def _metrics(value: Mapping[str, Any]) -> Mapping[str, Any]:
    records = value.get("records")
    return records if isinstance(records, Mapping) else value


def matches_request(value: Mapping[str, Any]) -> bool:
    """One line of ``profile_export.jsonl``."""
    metrics, about = value.get("metrics"), value.get("metadata")
    return isinstance(metrics, Mapping) and isinstance(about, Mapping) and any(str(key).endswith("_ns") for key in about)


def drafts(value: Mapping[str, Any], _origin: Origin) -> Iterator[Draft]:
    """One run."""
    command = str(_find(value.get("input_config"), "cli_command") or "")
    tool = NAME if "aiperf_version" in value or "schema_version" in value or command.startswith("aiperf") else "genai-perf"
    draft = Draft(tool, measured_at=text(value.get("start_time")))
    metrics = _metrics(value)
    found: dict[str, Any] = {metric: latency(_latency(metrics, key), metric, draft) for metric, key in _LATENCIES if key in metrics}
    for target, key in _RATES:
        found[target] = _average(metrics, key)
    _counts({**value, **metrics}, found, draft)
    for mean, target, keys in (("prompt_tokens", "prompt_lengths", ("input_sequence_length", "num_input_token")),
                               ("output_tokens", "output_lengths", ("output_sequence_length", "num_output_token"))):  # fmt: skip
        lengths = next((statistics(metrics[key], 1.0, key) for key in keys if isinstance(metrics.get(key), Mapping)), {})
        draft.workload.update({target: lengths, mean: positive(lengths.get("mean"))})
    config = value.get("input_config")
    _config(config if isinstance(config, Mapping) else {}, value, draft)
    draft.serving.append(serving(found))
    yield draft


def _scale(metric: Mapping[str, Any], key: str) -> float:
    unit = str(metric.get("unit", "")).strip().lower()
    if unit not in TIME_UNITS:
        raise UnitError("has no unit of time", path=f"{key}.unit", value=metric.get("unit"), way_out=f"one of {', '.join(TIME_UNITS)}")
    return TIME_UNITS[unit]


def _latency(value: Mapping[str, Any], key: str) -> dict[str, float]:
    metric = value.get(key)
    return statistics(metric, _scale(metric, key), key) if isinstance(metric, Mapping) else {}


def _average(value: Mapping[str, Any], key: str) -> float | None:
    metric = value.get(key)
    if not isinstance(metric, Mapping) or metric.get("avg") is None:
        return None
    unit = str(metric.get("unit", "")).lower().replace(" per ", "/")
    if not unit.endswith(("/sec", "/s", "/second")):
        raise UnitError("is not a rate per second", path=f"{key}.unit", value=metric.get("unit"))
    return number(metric["avg"], f"{key}.avg")


def _counts(value: Mapping[str, Any], found: dict[str, Any], draft: Draft) -> None:
    count = value.get("request_count")
    completed = whole(count, "avg") if isinstance(count, Mapping) else None
    errors = value.get("error_request_count")
    failed = whole(errors, "avg") if isinstance(errors, Mapping) else None
    if completed == 0 or not any(found.get(metric) for metric, _ in _LATENCIES):
        raise FileFormatError("no request succeeded: nothing was measured", path="request_count")
    if value.get("was_cancelled") is True:
        draft.warnings.append("the run was cancelled before its end")
    if failed:
        draft.warnings.append(f"{failed} of {failed + (completed or 0)} requests failed")
    duration = value.get("benchmark_duration")
    if isinstance(duration, Mapping) and duration.get("avg") is not None:
        found["duration"] = positive(number(duration["avg"], "benchmark_duration.avg") * _scale(duration, "benchmark_duration"))
    found.update(completed=completed, failed=failed)
    draft.workload["requests"] = None if completed is None else completed + (failed or 0)


def _find(value: Any, name: str, depth: int = 0) -> Any:
    """The first scalar called ``name`` in nested configuration."""
    if depth > 6:
        return None
    if isinstance(value, Mapping):
        direct = value.get(name)
        if direct is not None and not isinstance(direct, Mapping | list | array):
            return direct
        children: Iterable[Any] = value.values()
    elif isinstance(value, list):
        children = value[:8]
    else:
        return None
    return next((found for child in children if (found := _find(child, name, depth + 1)) is not None), None)


def _config(config: Mapping[str, Any], value: Mapping[str, Any], draft: Draft) -> None:
    names = _model_names(config)
    if names:
        draft.setup["model"] = names[0]
    command = str(_find(value.get("run_info"), "cli_command") or _find(config, "cli_command") or "")
    concurrency, rate = _find(config, "concurrency"), _find(config, "request_rate")
    concurrency = concurrency if concurrency is not None else _captured(_CONCURRENCY, command)
    rate = rate if rate is not None else _captured(_RATE, command)
    if rate is not None and number(rate, "request_rate") > 0:
        draft.workload.update(arrival=Arrival.OPEN, rate=number(rate, "request_rate"))
    if concurrency is not None and number(concurrency, "concurrency") >= 1:
        draft.workload.setdefault("arrival", Arrival.CLOSED)
        draft.workload["concurrency"] = int(number(concurrency, "concurrency"))
    for key in ("aiperf_version", "schema_version", "benchmark_id"):
        if (written := text(value.get(key))) is not None:
            draft.metadata[key] = written
    for key in ("device", "gpu", "tp", "tensor_parallel"):
        set_fact(draft, key, _find(config.get("labels") or config.get("metadata"), key))


def _captured(pattern: re.Pattern[str], command: str) -> str | None:
    found = pattern.search(command)
    return found.group(1) if found else None


def _model_names(config: Mapping[str, Any]) -> list[str]:
    endpoint = config.get("endpoint")
    inner = endpoint if isinstance(endpoint, Mapping) else {}
    candidates = [config.get("models"), config.get("model_names"), config.get("model"), inner.get("model_names"), inner.get("model")]
    for candidate in candidates:
        items = candidate.get("items") if isinstance(candidate, Mapping) else candidate
        for item in items if isinstance(items, list) else [items]:
            name = text(item.get("name")) if isinstance(item, Mapping) else text(item)
            if name is not None:
                return [name]
    return []


class RequestLines:
    """Gathers the lines of ``profile_export.jsonl`` into one run."""

    def __init__(self) -> None:
        self._values: dict[str, array[float]] = {name: array("d") for name in ("ttft", "tpot", "e2e", "prompt", "output")}
        self._start, self._end, self._failed, self._lines = float("inf"), 0.0, 0, 0

    def add(self, value: Mapping[str, Any]) -> None:
        """One request; warm-up requests are left out, failed ones counted."""
        about = value["metadata"]
        if about.get("benchmark_phase") == "warmup":
            return
        self._lines += 1
        if self._lines > MAX_REQUESTS:
            raise FileFormatError("holds too many requests", value=self._lines, way_out="import profile_export_aiperf.json instead")
        if value.get("error") or about.get("was_cancelled") is True:
            self._failed += 1
            return
        times = (("ttft", "time_to_first_token"), ("tpot", "inter_token_latency"), ("e2e", "request_latency"))
        for name, key in times:
            metric = value["metrics"].get(key)
            if isinstance(metric, Mapping) and metric.get("value") is not None:
                self._values[name].append(number(metric["value"], key) * _scale(metric, key))
        for name, key in (("prompt", "input_sequence_length"), ("output", "output_sequence_length")):
            metric = value["metrics"].get(key)
            if isinstance(metric, Mapping) and metric.get("value") is not None:
                self._values[name].append(number(metric["value"], key))
        if about.get("request_start_ns") is not None and about.get("request_end_ns") is not None:
            self._start = min(self._start, number(about["request_start_ns"], "request_start_ns") * 1e-9)
            self._end = max(self._end, number(about["request_end_ns"], "request_end_ns") * 1e-9)

    def draft(self) -> Draft:
        """The run; raises when no request succeeded."""
        values, completed = self._values, self._lines - self._failed
        if completed == 0 or not values["e2e"]:
            raise MeasurementError("no request succeeded: nothing was measured", path="metrics")
        draft = Draft(REQUESTS)
        draft.workload["requests"] = self._lines
        for mean, target, name in (("prompt_tokens", "prompt_lengths", "prompt"), ("output_tokens", "output_lengths", "output")):
            lengths = of_values(values[name], name)
            draft.workload.update({target: lengths, mean: positive(lengths.get("mean"))})
        found: dict[str, Any] = {metric: of_values(values[metric], metric) for metric in ("ttft", "tpot", "e2e")}
        found.update(completed=completed, failed=self._failed)
        if self._end > self._start:
            found["duration"] = self._end - self._start
            found["requests_per_s"] = completed / found["duration"]
            found["output_tokens_per_s"] = sum(values["output"]) / found["duration"]
        draft.serving.append(serving(found))
        return draft
