"""Runs that list every request: one object with ``args`` and ``requests``, or one request a line with its time stamps.

Objects: ``requests[]`` with ``inp`` and ``out`` (tokens), ``ttft``, ``e2e`` and every gap in ``itl`` (seconds), ``arr`` (planned arrival)
and ``start``; ``args`` names slots (``np``), ``ub``, ``b``, ``ctk``, ``rate`` and ``conc`` of a llama-server load test.
Lines: ``input_toks``, ``output_toks`` and ``queued_ts``, ``first_token_ts``, ``last_token_ts`` (seconds) as an engine stamps them;
``meta.json`` beside the file may say model, device and engine arguments.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from models.errors import FileFormatError
from planner.importers.common import Draft, MeasurementError, Origin, of_values, positive, required, text
from planner.importers.facts import set_fact, set_known_facts
from planner.importers.flat import serving, set_arrival
from planner.importers.stream import Spread
from planner.records import Arrival

NAME, STAMPS = "request list", "request time stamps"
_ARGUMENTS = {"np": "max_num_seqs", "ctk": "kv_format", "ub": "n_ubatch", "b": "max_num_batched_tokens"}
_STAMPED = frozenset({"input_toks", "output_toks", "first_token_ts", "last_token_ts"})
_META_BYTES = 1_000_000
MAX_REQUESTS = 4_000_000


def matches(value: Mapping[str, Any]) -> bool:
    """An object that lists its requests with their times."""
    rows = value.get("requests")
    return isinstance(rows, list) and bool(rows) and isinstance(rows[0], Mapping) and {"inp", "ttft", "e2e"} <= rows[0].keys()


def matches_line(value: Mapping[str, Any]) -> bool:
    """One request with the engine's time stamps."""
    return value.keys() >= _STAMPED


def drafts(value: Mapping[str, Any], _origin: Origin) -> Iterator[Draft]:
    """One run."""
    draft = Draft(NAME)
    rows = [row for row in value["requests"] if isinstance(row, Mapping) and not row.get("error")]
    requests, starts = Requests(), list[float]()
    for row in rows:
        start = required(row, "start") if row.get("start") is not None else required(row, "arr")
        tokens = required(row, "ntok" if "ntok" in row else "out")
        requests.add(required(row, "inp"), tokens, required(row, "ttft"), required(row, "e2e"), start)
        starts.append(start)
        requests.gaps(row.get("itl"))
    arguments = value.get("args")
    arguments = arguments if isinstance(arguments, Mapping) else {}
    if any("timings" in row for row in rows):
        draft.setup.update(engine="llama.cpp", tensor_parallel=1)
    for key, target in _ARGUMENTS.items():
        set_fact(draft, target, arguments.get(key))
    limit = int(required(arguments, "conc")) if arguments.get("conc") else None
    set_arrival(draft, None if limit else arguments.get("rate"), limit, "rate")
    if limit and (first := sorted(starts)[:limit]):
        draft.workload["ramp"] = first[-1] - first[0]
    if (name := text(value.get("name"))) is not None:
        draft.metadata["name"] = name
    failed = len(value["requests"]) - len(rows)
    requests.finish(draft, failed)
    yield draft


class Requests:
    """Columns of the requests of one run."""

    def __init__(self) -> None:
        self.columns: dict[str, array[float]] = {name: array("d") for name in ("prompt", "output", "ttft", "tpot", "e2e")}
        self._first, self._last = float("inf"), 0.0
        self._gaps, self._gap_total, self._gap_max = 0, 0.0, 0.0

    def add(self, prompt: float, output: float, ttft: float, e2e: float, start: float) -> None:
        """One finished request; times in seconds."""
        if e2e < ttft:
            raise MeasurementError(f"is shorter than the time to the first token, {ttft:.6g} s", path="e2e", value=e2e)
        if len(self.columns["e2e"]) >= MAX_REQUESTS:
            raise FileFormatError("holds too many requests", value=MAX_REQUESTS)
        for name, value in (("prompt", prompt), ("output", output), ("ttft", ttft), ("e2e", e2e)):
            self.columns[name].append(value)
        if output > 1:
            self.columns["tpot"].append((e2e - ttft) / (output - 1))
        self._first, self._last = min(self._first, start), max(self._last, start + e2e)

    def gaps(self, values: Any) -> None:
        """Gaps between the chunks of a request, in seconds."""
        spread = values if isinstance(values, Spread) else Spread(values) if isinstance(values, array) else None
        if spread is not None:
            self._gaps += spread.count
            self._gap_total += spread.total
            self._gap_max = max(self._gap_max, spread.largest)

    def finish(self, draft: Draft, failed: int = 0) -> None:
        """Enter lengths and statistics into the draft."""
        columns, completed = self.columns, len(self.columns["e2e"])
        if completed == 0:
            raise FileFormatError("no request succeeded: nothing was measured", path="requests")
        draft.workload["requests"] = completed + failed
        for target, mean, name in (("prompt_lengths", "prompt_tokens", "prompt"), ("output_lengths", "output_tokens", "output")):
            lengths = of_values(columns[name], name)
            draft.workload.update({target: lengths, mean: positive(lengths["mean"])})
        found: dict[str, Any] = {metric: of_values(columns[metric], metric) for metric in ("ttft", "tpot", "e2e")}
        found.update(completed=completed, failed=failed)
        if self._gaps:
            found["itl"] = {"mean": self._gap_total / self._gaps, "max": self._gap_max}
        if self._last > self._first:
            duration = self._last - self._first
            found.update(duration=duration, requests_per_s=completed / duration, output_tokens_per_s=sum(columns["output"]) / duration)
        draft.serving.append(serving(found))


class StampedLines:
    """Gathers request lines into one run."""

    def __init__(self) -> None:
        self._requests = Requests()
        self._failed = 0

    def add(self, value: Mapping[str, Any]) -> None:
        """One line; a request without a token is counted as failed."""
        if value["first_token_ts"] is None or not value["output_toks"]:
            self._failed += 1
            return
        start = required(value, "queued_ts" if value.get("queued_ts") is not None else "arrival_time")
        first, last = required(value, "first_token_ts"), required(value, "last_token_ts")
        if first < start or last < first:
            raise MeasurementError("time stamps run backwards", path="first_token_ts", value=f"{start:.6g}, {first:.6g}, {last:.6g}")
        self._requests.add(required(value, "input_toks"), required(value, "output_toks"), first - start, last - start, start)

    def draft(self, folder: Path | None) -> Draft:
        """The run, with what ``meta.json`` in the folder says of it."""
        draft = Draft(STAMPS)
        self._requests.finish(draft, self._failed)
        draft.workload["arrival"] = Arrival.TRACE
        meta = _meta(folder)
        for part in (meta, meta.get("engine_kwargs"), meta.get("kv_cache"), meta.get("hardware")):
            if isinstance(part, Mapping):
                set_known_facts(draft, part)
        if "vllm_version" in meta:
            draft.setup["engine"] = "vllm"
        return draft


def _meta(folder: Path | None) -> Mapping[str, Any]:
    path = None if folder is None else folder / "meta.json"
    if path is None or not path.is_file() or path.stat().st_size > _META_BYTES:
        return {}
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError):
        return {}
    return found if isinstance(found, Mapping) else {}
