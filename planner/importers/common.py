"""What every importer shares: reading numbers strictly, statistics in SI units, the draft of a run, its content hash."""

from __future__ import annotations

import hashlib
import json
import math
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models.errors import FileFormatError, InputError
from planner.records import MemoryObservation, RunRecord, RunSetup, ServingObservation, Source, StepObservation, Workload

LARGEST = 1e24  # above every time stamp in nanoseconds and every count of bytes
MILLI, MICRO, NANO = 1e-3, 1e-6, 1e-9
TIME_UNITS = {"s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "ms": MILLI, "millisecond": MILLI, "milliseconds": MILLI,
              "us": MICRO, "µs": MICRO, "microsecond": MICRO, "microseconds": MICRO,
              "ns": NANO, "nanosecond": NANO, "nanoseconds": NANO}  # fmt: skip
_PERCENTILE = re.compile(r"^p(\d+(?:\.\d+)?)$")
_SAME = {"mean": "mean", "avg": "mean", "average": "mean", "median": "p50", "std": "std", "stddev": "std", "std_dev": "std",
         "min": "min", "minimum": "min", "max": "max", "maximum": "max"}  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """Where the value being read stands."""

    file: str
    sha256: str
    line: int | None = None
    where: str = ""
    folder: Path | None = None  # where companions may stand and whose name may hold flags
    around: Mapping[str, Any] = field(default_factory=dict)  # the object that wraps the result, if any


@dataclass
class Draft:
    """A run while it is being read; ``finish`` turns it into a record."""

    format: str
    setup: dict[str, Any] = field(default_factory=dict)
    workload: dict[str, Any] = field(default_factory=dict)
    steps: list[StepObservation] = field(default_factory=list)
    serving: list[ServingObservation] = field(default_factory=list)
    memory: list[MemoryObservation] = field(default_factory=list)
    measured_at: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    needs: tuple[str, ...] = ("model", "engine", "device", "tensor_parallel")
    where: str = ""
    line: int | None = None
    problem: InputError | None = None  # found while the lines around it could still be read; raised when the run is recorded
    coarse: bool = False  # numbers so rounded that the settings belong to the identity of the run


class MeasurementError(InputError):
    """A value that cannot be a measurement; ``path`` is the key."""


def number(value: Any, key: str) -> float:
    """A finite, non-negative number; numeric text is accepted because some tools quote their numbers."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise MeasurementError("is not a number", path=key, value=value) from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MeasurementError("is not a number", path=key, value=value)
    if not math.isfinite(value):
        raise MeasurementError("is not finite and cannot be a measurement", path=key, value=value)
    if value < 0:
        raise MeasurementError("is negative and cannot be a measurement", path=key, value=value)
    if value > LARGEST:
        raise MeasurementError("is too large for a measurement", path=key, value=value)
    return float(value)


def optional(values: Mapping[str, Any], key: str, scale: float = 1.0) -> float | None:
    """``values[key]`` times ``scale``, or None where it is absent or null."""
    raw = values.get(key)
    return None if raw is None else number(raw, key) * scale


def required(values: Mapping[str, Any], key: str, scale: float = 1.0) -> float:
    """``values[key]`` times ``scale``; its absence is an error."""
    if values.get(key) is None:
        raise MeasurementError("is required and missing", path=key)
    return number(values[key], key) * scale


def whole(values: Mapping[str, Any], key: str) -> int | None:
    """A count; a fraction is an error."""
    value = optional(values, key)
    if value is None:
        return None
    if value != int(value) or value > 2**53:
        raise MeasurementError("is not a whole number", path=key, value=value)
    return int(value)


def positive(value: float | None) -> float | None:
    """None instead of a zero that means "not measured"."""
    return value or None


def fraction(value: float | None, key: str) -> float | None:
    """A share between 0 and 1."""
    if value is not None and value > 1.0 + 1e-6:
        raise MeasurementError("is above 1 and cannot be a share (percent?)", path=key, value=value)
    return None if value is None else min(value, 1.0)


def statistic_name(name: str) -> str | None:
    """``avg`` → ``mean``, ``median`` → ``p50``, ``p999`` → ``p99.9``, ``p01`` → ``p1``; None for what is no statistic."""
    lowered = name.lower()
    if lowered in _SAME:
        return _SAME[lowered]
    found = _PERCENTILE.match(lowered)
    if found is None:
        return None
    digits = found.group(1)
    if "." not in digits and len(digits) > 2 and digits != "100":  # GuideLLM: p001 = 0.1 %, p999 = 99.9 %
        digits = f"{digits[:2]}.{digits[2:]}"
    value = float(digits)
    return f"p{value:g}" if 0 <= value <= 100 else None


def statistics(values: Any, scale: float, key: str) -> dict[str, float]:
    """Statistics of a mapping such as ``{avg, p50, p99, std}``; nested ``percentiles`` are taken too, nulls left out."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise MeasurementError("is not a table of statistics", path=key, value=values)
    nested = values.get("percentiles")
    found: dict[str, float] = {}
    for name, raw in [*(nested.items() if isinstance(nested, Mapping) else ()), *values.items()]:
        statistic = statistic_name(str(name))
        if statistic is not None and raw is not None:
            found[statistic] = number(raw, f"{key}.{name}") * scale
    return found


def prefixed_statistics(values: Mapping[str, Any], metric: str, suffix: str, scale: float) -> dict[str, float]:
    """Statistics of flat keys: ``mean_ttft_ms``, ``p99_ttft_ms`` for metric ``ttft`` and suffix ``_ms``."""
    found: dict[str, float] = {}
    ending = f"_{metric}{suffix}"
    for key, raw in values.items():
        if key.endswith(ending) and raw is not None:
            statistic = statistic_name(key.removesuffix(ending))
            if statistic is not None:
                found[statistic] = number(raw, key) * scale
    return found


def of_values(values: Iterable[float] | array[float], key: str) -> dict[str, float]:
    """Nearest-rank statistics of raw values."""
    ordered = sorted(number(value, key) for value in values)
    if not ordered:
        return {}
    count = len(ordered)
    mean = math.fsum(ordered) / count
    found = {"mean": mean, "std": math.sqrt(math.fsum((value - mean) ** 2 for value in ordered) / count)}
    for percent in (50, 90, 95, 99):
        found[f"p{percent}"] = ordered[max(0, math.ceil(percent / 100 * count) - 1)]
    return {**found, "min": ordered[0], "max": ordered[-1]}


def text(value: Any) -> str | None:
    """A non-empty piece of text, or None."""
    if value is None or isinstance(value, dict | list | array):
        return None
    written = str(value).strip()
    return written if written and written.lower() not in {"none", "null", "unknown"} else None


def scalars(values: Mapping[str, Any], skip: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """Short scalar entries as text, for metadata and flags."""
    left_out = set(skip)
    for key, value in values.items():
        if key not in left_out and isinstance(value, str | int | float | bool) and len(str(value)) <= 300:
            yield str(key), str(value)


def finish(draft: Draft, origin: Origin, missing: tuple[str, ...], digest: str) -> RunRecord:
    """Validate a draft into a record; raises ``FileFormatError`` with the first thing that is wrong."""
    try:
        return RunRecord(
            format=draft.format,
            source=Source(file=origin.file, line=draft.line or origin.line, where=draft.where or origin.where, file_sha256=origin.sha256),
            content_hash=digest,
            measured_at=draft.measured_at,
            setup=RunSetup(**draft.setup),
            workload=Workload(**draft.workload),
            steps=tuple(draft.steps),
            serving=tuple(draft.serving),
            memory=tuple(draft.memory),
            metadata=draft.metadata,
            missing=missing,
            warnings=tuple(dict.fromkeys(draft.warnings)),
        )
    except ValueError as error:  # pydantic's ValidationError is one
        raise first_complaint(error) from None


def first_complaint(error: ValueError) -> FileFormatError:
    """The first thing that validation found, on one line."""
    details = getattr(error, "errors", None)
    if details is None:
        return FileFormatError(str(error))
    problem = details(include_url=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    return FileFormatError(problem["msg"].removeprefix("Value error, "), path=where, value=problem.get("input") if where else None)


def content_hash(draft: Draft) -> str:
    """SHA-256 over what was measured and for which model, before the user's facts enter.

    File layout, date, device, engine and flags stay out, so that a copy, a reformatted file or a summary of the same runs is recognised;
    only where the numbers are rounded (tables, logs) do the settings enter, lest two runs be taken for one.
    """
    try:
        workload = Workload(**draft.workload).model_dump(mode="json", exclude_none=True, exclude_defaults=True, exclude={"dataset", "ramp"})
    except ValueError as error:
        raise first_complaint(error) from None
    observations = [
        observation.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        for observation in (*draft.steps, *draft.serving, *draft.memory)
    ]
    measured = {"model": draft.setup.get("model"), "workload": workload, "observations": observations}
    if draft.coarse:
        measured["setup"] = {key: str(value) for key, value in sorted(draft.setup.items()) if key != "flags"}
    return hashlib.sha256(json.dumps(measured, sort_keys=True).encode()).hexdigest()
