"""A plain CSV with a column map: each row is a run.

The map goes from what a column means to the column's name, with a unit where the name does not end in one::

    {"ttft.p50": "TTFT median:ms", "tpot": "tpot_ms", "prompt_tokens": "isl", "concurrency": "batch", "device": "gpu"}

Targets: the fields of ``RunSetup`` and ``Workload``; ``ttft``, ``tpot``, ``itl``, ``e2e`` (``.p50``, ``.p99``, …, default mean); rates and
other fields of ``ServingObservation``; ``step.seconds``, ``step.sequences``, ``step.new_tokens``, ``step.context_tokens``,
``step.kind`` (totals over the sequences), or ``step.composition`` (``sequence:new:context`` of each, divided by ``;`` or spaces).
Without a map, columns whose names say what and in which unit are taken; rows of ``llama-bench -o csv`` and of the summary of a vLLM sweep
are read as the JSON that they come from.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from models.errors import FileFormatError, InputError, UnitError, UnknownNameError
from planner.importers import guidellm_table, inferencex, llama_bench, sglang_serving, stat_table, vllm_serve
from planner.importers.common import TIME_UNITS, Draft, MeasurementError, Origin, number
from planner.importers.detect import MARKS, JsonFormat, format_of
from planner.importers.facts import field_of, set_fact
from planner.importers.flat import latency, serving, set_arrival
from planner.records import Arrival, RunSetup, SequenceGroup, ServingObservation, StepKind, StepObservation, Workload

NAME = "csv"
_TIMES = ("ttft", "tpot", "itl", "e2e")
_COUNTS = frozenset({"completed", "failed", "preemptions", "windows"})
_NUMBERS = frozenset({"prompt_tokens", "output_tokens", "shared_prefix_tokens", "rate", "burstiness"})
_WHOLE = frozenset({"requests", "concurrency"})
_STEP = ("step.seconds", "step.sequences", "step.new_tokens", "step.context_tokens", "step.kind", "step.repeats",
         "step.composition")  # fmt: skip
_TABLED = {llama_bench.NAME, vllm_serve.NAME, sglang_serving.NAME, inferencex.NAME}  # JSON that also comes as rows of the same names
_MEASURED = (*_TIMES, "output_tokens_per_s", "requests_per_s", "total_tokens_per_s")
_RATES = tuple(name for name in ServingObservation.model_fields if name not in {*_TIMES, "acceptance_by_position"})
_TARGETS = (*_TIMES, *_STEP, *_RATES, *RunSetup.model_fields, *Workload.model_fields, "measured_at")
_UNIT_IN_NAME = re.compile(r"(?:[_ ]|[(\[])(ms|us|µs|ns|s|sec|seconds)[)\]]?$", re.IGNORECASE)
_OBVIOUS = {
    "isl": "prompt_tokens", "input_len": "prompt_tokens", "input_tokens": "prompt_tokens", "prompt_tokens": "prompt_tokens",
    "prompt_len": "prompt_tokens", "input_length": "prompt_tokens", "prompt_length": "prompt_tokens",
    "output_length": "output_tokens", "osl": "output_tokens", "output_len": "output_tokens", "output_tokens": "output_tokens",
    "concurrency": "concurrency", "conc": "concurrency", "max_concurrency": "concurrency", "num_prompts": "requests",
    "request_rate": "rate", "output_tok_per_s": "output_tokens_per_s", "output_throughput": "output_tokens_per_s",
    "req_per_s": "requests_per_s", "request_throughput": "requests_per_s", "duration_s": "duration",
}  # fmt: skip
_OBVIOUS_TIME = re.compile(r"^(?:(mean|median|avg|p\d+)_)?(ttft|tpot|itl|e2el?)(?:_latency)?(?:_(mean|median|avg|p\d+))?_(ms|us|s)$")
_STATISTIC = {"median": "p50", "avg": "mean"}


def header_map(header: list[str]) -> dict[str, str]:
    """The columns that say themselves what they are; empty when no time and no rate is among them."""
    found: dict[str, str] = {}
    for column in header:
        lowered = re.sub(r"[^a-z0-9]+", "_", column.strip().lower()).strip("_")  # ``Mean TTFT (ms)``, ``mean-ttft-ms``
        if timed := _OBVIOUS_TIME.match(lowered):
            statistic = timed.group(1) or timed.group(3) or "mean"
            found.setdefault(f"{timed.group(2)[:3] if timed.group(2) != 'ttft' else 'ttft'}.{_STATISTIC.get(statistic, statistic)}", column)
        elif lowered in _OBVIOUS:
            found.setdefault(_OBVIOUS[lowered], column)
        elif (target := field_of(lowered)) is not None:
            found.setdefault(target, column)
    found = {target.replace("tpo.", "tpot."): column for target, column in found.items()}
    measured = any(target.partition(".")[0] in (*_TIMES, "output_tokens_per_s", "requests_per_s") for target in found)
    return found if measured else {}


def parse_columns(pairs: Iterable[str]) -> dict[str, str]:
    """``["ttft.p50=TTFT median:ms", "device=gpu"]`` as a column map."""
    found: dict[str, str] = {}
    for pair in pairs:
        target, equals, column = pair.partition("=")
        if not equals or not target.strip() or not column.strip():
            raise InputError("is no pair of meaning and column", path="--column", value=pair, way_out="write 'ttft.p50=COLUMN:ms'")
        found[target.strip()] = column.strip()
    return found


class Columns:
    """A checked column map: target → (position, scale of a time)."""

    def __init__(self, header: list[str], columns: Mapping[str, str], *, marks_decimals: bool = False) -> None:
        self.marks_decimals = marks_decimals  # commas do: the columns are divided by something else
        names = {name.strip(): position for position, name in reversed(list(enumerate(header)))}
        self.at: dict[str, tuple[int, float]] = {}
        for target, written in columns.items():
            if target.partition(".")[0] not in _TIMES and target not in _TARGETS:
                raise UnknownNameError.suggest("column target", target, _TARGETS, path="--column")
            column, unit = written.strip(), ""
            if column not in names and ":" in column:
                column, _, unit = column.rpartition(":")
            if column not in names:
                raise UnknownNameError.suggest("column", column, names, path=f"--column {target}")
            self.at[target] = (names[column], self._scale(target, column, unit))
        self.mapped = {position for position, _ in self.at.values()}

    @staticmethod
    def _scale(target: str, column: str, unit: str) -> float:
        if target.partition(".")[0] not in (*_TIMES, "duration") and target != "step.seconds":
            return 1.0
        in_name = _UNIT_IN_NAME.search(column)
        chosen = (unit or (in_name.group(1) if in_name else "")).lower()
        if chosen not in TIME_UNITS:
            way_out = f"write '{column}:ms' or '{column}:s'"
            raise UnitError("is a time without a unit", path=f"--column {target}", value=column, way_out=way_out)
        return TIME_UNITS[chosen]


def rows(lines: Iterator[tuple[int, str]], columns: Mapping[str, str] | None) -> Iterator[tuple[int, Draft | Exception]]:
    """Each row of the table as a draft, or the error that it holds."""
    numbers: list[int] = []

    def text_of() -> Iterator[str]:
        for number_of_line, line in lines:
            numbers.append(number_of_line)
            del numbers[:-1]
            if line.strip() and not line.lstrip().startswith("#"):
                yield line + "\n"

    kept = text_of()
    first = next(kept, None)
    if first is None:
        raise FileFormatError("the table is empty")
    delimiter = max(MARKS, key=first.count)
    header = next(csv.reader([first.lstrip("\ufeff")], delimiter=delimiter))
    divided = _divided(csv.reader(kept, delimiter=delimiter, strict=True), numbers)
    if not columns and stat_table.matches(header):
        yield 1, stat_table.draft(header, divided)
        return
    if not columns and guidellm_table.matches(header):
        yield from ((numbers[-1], one) for one in guidellm_table.drafts(header, divided))
        return
    known = None if columns else format_of(dict.fromkeys(header, "0"))
    layout: Columns | JsonFormat = known if known and known.name in _TABLED else _mapped(header, columns, delimiter)
    for row in divided:
        yield numbers[-1], _checked_row(row, header, layout)


def _divided(reader: Iterator[list[str]], numbers: list[int]) -> Iterator[list[str]]:
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise FileFormatError(f"the table is damaged: {error}", path=f"line {numbers[-1]}") from None
        yield row


def _mapped(header: list[str], columns: Mapping[str, str] | None, delimiter: str) -> Columns:
    chosen = dict(columns) if columns else header_map(header)
    if not chosen:
        raise FileFormatError("a table needs a column map", value=",".join(header)[:80], way_out="--column ttft.p50=COLUMN:ms …")
    return Columns(header, chosen, marks_decimals=delimiter != ",")


def _checked_row(row: list[str], header: list[str], layout: Columns | JsonFormat) -> Draft | Exception:
    if len(row) != len(header):
        return FileFormatError(f"the row has {len(row)} columns, the header {len(header)}")
    try:
        if isinstance(layout, JsonFormat):
            return next(
                layout.drafts({name: _cell(raw) for name, raw in zip(header, row, strict=True) if name and raw != ""}, Origin("", ""))
            )
        return _draft(row, layout, header)
    except ValueError as error:
        return FileFormatError(str(error))
    except Exception as error:  # noqa: BLE001  # each row stands alone; the caller reports it
        return error


def _cell(raw: str) -> Any:
    """A list of the JSON that the table was made of, or the text."""
    if raw.startswith("["):
        with suppress(ValueError):
            return json.loads(raw)
    return raw


def _plain(raw: str, target: str, *, marks_decimals: bool) -> str:
    """A number with its decimal point: ``12,5`` and ``1.234,5`` of other languages, ``1,234.5`` with its thousands.

    A single comma before three digits could be either, unless the table's own separator is another mark: then commas mark decimals.
    """
    if "," not in raw:
        return raw
    if re.fullmatch(r"\d{1,3}(,\d{3})+\.\d*|\d{1,3}(,\d{3}){2,}", raw):
        return raw.replace(",", "")
    if re.fullmatch(r"\d{1,3}(\.\d{3})+,\d+", raw):
        return raw.replace(".", "").replace(",", ".")
    if not marks_decimals and re.fullmatch(r"[1-9]\d{0,2},\d{3}", raw):
        raise MeasurementError("may be a thousand or a decimal", path=target, value=raw)
    return re.sub(r"^(-?\d+),(\d+)$", r"\1.\2", raw)


def _draft(row: list[str], layout: Columns, header: list[str]) -> Draft:
    draft = Draft(NAME, coarse=True)
    found: dict[str, Any] = {}
    step: dict[str, Any] = {}
    for target, (position, scale) in layout.at.items():
        raw = row[position].strip()
        if raw != "" and raw.lower() not in {"null", "none", "n/a", "na"}:
            _enter(draft, found, step, target, _plain(raw, target, marks_decimals=layout.marks_decimals), scale)
    found.update({metric: latency(found[metric], metric, draft) for metric in _TIMES if metric in found})
    if any(found.get(name) for name in _MEASURED):
        draft.serving.append(serving(found))
        _arrival(draft)
    if "seconds" in step:
        draft.steps.append(_step(step))
    if not draft.serving and not draft.steps:
        raise MeasurementError("the row holds no measurement")
    for position, name in enumerate(header):
        if position not in layout.mapped and row[position].strip() and len(row[position]) <= 300 and len(draft.metadata) < 64:
            draft.metadata[name.strip()] = row[position].strip()
    return draft


def _arrival(draft: Draft) -> None:
    if "arrival" in draft.workload:
        return
    limit, rate = draft.workload.get("concurrency"), draft.workload.get("rate")
    if limit or rate:
        set_arrival(draft, rate, limit)
    else:
        draft.workload["arrival"] = Arrival.UNKNOWN


def _enter(draft: Draft, found: dict[str, Any], step: dict[str, Any], target: str, raw: str, scale: float) -> None:
    metric, _, statistic = target.partition(".")
    if metric in _TIMES:
        found.setdefault(metric, {})[statistic or "mean"] = number(raw, target) * scale
    elif metric == "step":
        step[statistic] = raw if statistic in {"kind", "composition"} else number(raw, target) * scale
    elif target in _NUMBERS:
        draft.workload[target] = number(raw, target)
    elif target in _WHOLE or target in _COUNTS:
        value = number(raw, target)
        if value != int(value):
            raise MeasurementError("is not a whole number", path=target, value=raw)
        (draft.workload if target in _WHOLE else found)[target] = int(value)
    elif target in _RATES:
        found[target] = number(raw, target) * scale
    elif target in {"arrival", "dataset"}:
        draft.workload[target] = raw
    elif target == "measured_at":
        draft.measured_at = raw
    else:
        set_fact(draft, target, raw)


def _step(step: Mapping[str, Any]) -> StepObservation:
    if "composition" in step:
        return _composed(step)
    sequences = int(step.get("sequences", 1))
    new = step.get("new_tokens", float(sequences))
    group = SequenceGroup(sequences=sequences, new_tokens=new, context_tokens=step.get("context_tokens"))
    kind = StepKind(step["kind"]) if "kind" in step else StepKind.DECODE if new == sequences else StepKind.PREFILL
    return StepObservation(kind=kind, groups=(group,), seconds=step["seconds"], repeats=int(step.get("repeats", 1)))


def _composed(step: Mapping[str, Any]) -> StepObservation:
    """A step whose sequences are listed one by one; equal ones are put together."""
    alike: dict[tuple[float, float], int] = {}
    for written in str(step["composition"]).replace(";", " ").split():
        parts = written.split(":")
        if len(parts) != 3:
            raise MeasurementError("is not sequence:new:context", path="step.composition", value=written)
        shape = (number(parts[1], "step.composition"), number(parts[2], "step.composition"))
        alike[shape] = alike.get(shape, 0) + 1
    groups = tuple(SequenceGroup(sequences=n, new_tokens=new * n, context_tokens=old * n) for (new, old), n in alike.items())
    wide = sum(1 for new, _ in alike if new > 1)
    kind = StepKind.DECODE if not wide else StepKind.PREFILL if wide == len(alike) else StepKind.MIXED
    repeats = int(step.get("repeats", 1))
    return StepObservation(kind=StepKind(step.get("kind", kind)), groups=groups, seconds=step["seconds"], repeats=repeats)
