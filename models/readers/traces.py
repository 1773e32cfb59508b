"""Readers of request traces: Azure 2023 CSV, BurstGPT CSV, Mooncake JSONL, vLLM ``requests.jsonl``, plain CSV.

Every reader returns a ``Trace``: arrival (s, from 0, in order), prompt and output (tokens), with what else the file knows.
Units: seconds and tokens. A row that is wrong stops the reading with its line number; nothing is repaired in silence.
Formats
    azure     TIMESTAMP (date-time), ContextTokens, GeneratedTokens          Azure Public Dataset, 2023
    burstgpt  Timestamp (s), Request tokens, Response tokens[, Session ID]   failures have 0 response tokens: left out, counted
    mooncake  timestamp (ms), input_length, output_length, hash_ids (512-token prefix blocks, chained)
    vllm      input_toks, output_toks, arrival_time (s) and token timestamps of a measured run
    workload  input_toks, output_toks, arrival_time_ns
    plain     arrival, prompt, output (and the names other tools give them)
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from models.errors import FileFormatError
from models.simulation_types import Floats, Integers, PrefixTree

MAX_ROWS = 20_000_000
MAX_BYTES = 4 << 30
MOST_TOKENS = 100_000_000
MOONCAKE_BLOCK = 512
PLAIN_NAMES = {
    "arrival": ("arrival", "arrival_s", "arrived_at", "arrival_time", "time", "timestamp"),
    "prompt": ("prompt", "prompt_tokens", "num_prefill_tokens", "input_tokens", "input_length", "prefill"),
    "output": ("output", "output_tokens", "num_decode_tokens", "output_length", "decode"),
}
RUN_NAMES = {
    "prompt": ("input_toks", "input_tokens", "prompt_tokens", "num_prompt_tokens", "prompt_len", "input_len"),
    "output": ("output_toks", "output_tokens", "completion_tokens", "num_output_tokens", "generated_tokens", "output_len"),
    "arrival": ("arrival_time", "arrival_ts", "arrival", "submitted_ts", "queued_ts"),
    "queued": ("queued_ts", "queued_time"),
    "first": ("first_token_ts", "first_token_time", "first_ts"),
    "last": ("last_token_ts", "last_token_time", "finished_ts", "finished_time", "last_ts"),
}
SECONDS_A_DAY = 86_400.0


@dataclass(frozen=True)
class Trace:
    """One trace, in order of arrival. ``first`` and ``last`` are measured token times on the clock of ``arrival``."""

    arrival: Floats
    prompt: Integers
    output: Integers
    prefixes: PrefixTree | None = None
    first: Floats | None = None
    last: Floats | None = None
    left_out: int = 0
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival)


@contextmanager
def _text(path: Path) -> Iterator[io.TextIOBase]:
    """The text of a trace, compressed or not; whatever ends its reading too early is an error of the file."""
    if not path.is_file():
        raise FileFormatError("no such trace file", path=str(path), way_out="check the path")
    if path.stat().st_size > MAX_BYTES:
        raise FileFormatError(f"trace larger than {MAX_BYTES} bytes", path=str(path), value=path.stat().st_size, way_out="cut it")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as raw:
            yield io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
    except UnicodeDecodeError as cause:
        raise FileFormatError("not UTF-8 text", path=str(path), value=cause.reason, way_out="save it as UTF-8") from cause
    except (OSError, EOFError, zlib.error, csv.Error) as cause:
        raise FileFormatError("cannot be read to its end", path=str(path), value=str(cause), way_out="fetch or export it again") from cause


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    """(line number, row) of a CSV file."""
    with _text(path) as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
            if line > MAX_ROWS:
                raise FileFormatError(f"more than {MAX_ROWS} rows", path=str(path), way_out="cut the trace")
            yield line, row


def _objects(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(line number, object) of a JSONL file."""
    with _text(path) as file:
        for line, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                value = json.loads(text)
            except (ValueError, RecursionError) as cause:
                raise FileFormatError("not JSON", path=f"{path}:{line}", value=text[:60], way_out="one object a line") from cause
            if not isinstance(value, dict):
                raise FileFormatError("expected an object", path=f"{path}:{line}", value=text[:60], way_out="one object a line")
            yield line, value


def _number(row: Mapping[str, Any], name: str, path: Path, line: int) -> float:
    raw = row.get(name)
    try:
        value = math.nan if raw is None or isinstance(raw, bool) else float(raw)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise FileFormatError(f"'{name}' is missing or not a number", path=f"{path}:{line}", value=raw, way_out="repair or drop the row")
    return value


def _tokens(row: Mapping[str, Any], name: str, path: Path, line: int) -> int:
    value = _number(row, name, path, line)
    if not 1 <= value <= MOST_TOKENS or value != int(value):
        raise FileFormatError(
            f"'{name}' must be a whole number from 1 to {MOST_TOKENS:,}",
            path=f"{path}:{line}",
            value=row.get(name),
            way_out="repair or drop the row",
        )
    return int(value)


def _columns_of() -> tuple[array[float], array[int], array[int]]:
    """Arrival, prompt and output while they are read: 24 bytes a request."""
    return array("d"), array("q"), array("q")


def _trace(path: Path, arrival: Sequence[float], prompt: Sequence[int], output: Sequence[int], **more: Any) -> Trace:
    """Check the order of arrival and count time from the first one."""
    if not arrival:
        raise FileFormatError("the trace holds no request", path=str(path))
    times = np.array(arrival)
    back = np.flatnonzero(np.diff(times) < 0)
    if len(back):
        raise FileFormatError(
            f"arrivals are not in order of time: request {int(back[0]) + 2} comes before the one above it", path=str(path),
            value=float(times[back[0] + 1]), way_out="sort the trace by arrival",
        )  # fmt: skip
    if times[0] < 0:
        raise FileFormatError("an arrival is negative", path=str(path), value=float(times[0]))
    return Trace(times - times[0], np.array(prompt, np.int64), np.array(output, np.int64), **more)


def read_azure(path: Path) -> Trace:
    """Azure 2023: date-times with 100 ns digits."""
    arrival, prompt, output = _columns_of()
    for line, row in _rows(path):
        prompt.append(_tokens(row, "ContextTokens", path, line))
        output.append(_tokens(row, "GeneratedTokens", path, line))
        arrival.append(_date_seconds(row.get("TIMESTAMP"), path, line))
    return _trace(path, arrival, prompt, output)


def _date_seconds(text: str | None, path: Path, line: int) -> float:
    whole, _, fraction = (text or "").strip().replace("T", " ").removesuffix("Z").partition(".")
    fraction = fraction.partition("+")[0]
    try:
        moment = datetime.strptime(whole.split("+", maxsplit=1)[0], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        return moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)
    except ValueError as cause:
        raise FileFormatError("not a date and time", path=f"{path}:{line}", value=text, way_out="YYYY-MM-DD HH:MM:SS.fffffff") from cause


def read_burstgpt(path: Path) -> Trace:
    """BurstGPT: seconds; rows without a response are failures of the service and are left out, counted."""
    (arrival, prompt, output), failed = _columns_of(), 0
    for line, row in _rows(path):
        if _number(row, "Response tokens", path, line) == 0:
            failed += 1
            continue
        prompt.append(_tokens(row, "Request tokens", path, line))
        output.append(_tokens(row, "Response tokens", path, line))
        arrival.append(_number(row, "Timestamp", path, line))
    warnings = (f"{failed} failed requests (0 response tokens) left out",) if failed else ()
    return _trace(path, arrival, prompt, output, left_out=failed, warnings=warnings)


def read_mooncake(path: Path) -> Trace:
    """Mooncake: milliseconds, and prefix blocks that become a prefix tree."""
    (arrival, prompt, output), hashes = _columns_of(), list[list[int]]()
    for line, row in _objects(path):
        prompt.append(_tokens(row, "input_length", path, line))
        output.append(_tokens(row, "output_length", path, line))
        arrival.append(_number(row, "timestamp", path, line) / 1e3)
        hashes.append(_full_blocks(row, "hash_ids", prompt[-1], MOONCAKE_BLOCK, f"{path}:{line}"))
    coarse = len(np.unique(arrival)) < len(arrival) / 4
    warnings = ("arrivals share coarse time ticks: their burstiness is an artefact of the recording",) if coarse else ()
    return _trace(path, arrival, prompt, output, prefixes=prefix_tree(hashes, MOONCAKE_BLOCK), warnings=warnings)


def read_requests_jsonl(path: Path) -> Trace:
    """A measured vLLM run, or a workload file with ``arrival_time_ns`` and optional 16-token block ids.

    Requests that failed (an error, no token, no time of one) are left out and counted; the others may stand in any order.
    """
    rows = list(_objects(path))
    if not rows:
        raise FileFormatError("the trace holds no request", path=str(path))
    if "arrival_time_ns" in rows[0][1]:
        return _workload(path, rows)
    good = [(line, row) for line, row in rows if not _failed(row)]
    if not good:
        raise FileFormatError("no request succeeded", path=str(path), value=len(rows), way_out="measure again")
    names = {meaning: _name(good[0][1], meaning, path) for meaning in RUN_NAMES if meaning != "queued"}
    prompt, output = ([_tokens(row, names[meaning], path, line) for line, row in good] for meaning in ("prompt", "output"))
    arrival, first, last = (
        np.array([_number(row, names[meaning], path, line) for line, row in good]) for meaning in ("arrival", "first", "last")
    )
    offset = _clock_offset(path, good, arrival, first)
    order = np.argsort(arrival, kind="stable")
    start = float(arrival[order[0]])
    failed = len(rows) - len(good)
    return _trace(
        path, arrival[order].tolist(), [prompt[i] for i in order], [output[i] for i in order],
        first=first[order] - offset - start, last=last[order] - offset - start, left_out=failed,
        warnings=(f"{failed} failed requests left out; what they took from the others is not known",) if failed else (),
    )  # fmt: skip


def _workload(path: Path, rows: list[tuple[int, Mapping[str, Any]]]) -> Trace:
    prompt, output = ([_tokens(row, name, path, line) for line, row in rows] for name in ("input_toks", "output_toks"))
    arrival = [_number(row, "arrival_time_ns", path, line) / 1e9 for line, row in rows]
    ids = [_full_blocks(row, "block_ids_16", tokens, 16, f"{path}:{line}") for (line, row), tokens in zip(rows, prompt, strict=True)]
    return _trace(path, arrival, prompt, output, prefixes=prefix_tree(ids, 16) if any(ids) else None)


def _full_blocks(row: Mapping[str, Any], name: str, tokens: int, block: int, where: str) -> list[int]:
    """Blocks that the prompt fills, none where none are told; the last one may be begun, more than that is another trace's."""
    ids = row.get(name)
    if ids is None:
        return []
    if not isinstance(ids, list) or not all(type(one) is int for one in ids):  # ``true`` is no id
        raise FileFormatError(f"'{name}' must be a list of integers", path=where, value=ids, way_out="repair or drop the row")
    if len(ids) > -(-tokens // block):
        raise FileFormatError(
            f"'{name}' covers {len(ids)} blocks of {block} tokens, more than the prompt", path=where, value=tokens,
            way_out="check the block size and the prompt length of the trace",
        )  # fmt: skip
    return ids[: tokens // block]


def _failed(row: Mapping[str, Any]) -> bool:
    """Whether the run says that a request brought nothing; a time or length that is merely damaged is an error of the file."""
    told = [row[name] for meaning in ("output", "first", "last") for name in RUN_NAMES[meaning] if name in row]
    return bool(row.get("error")) or row.get("success") is False or any(value is None or value == 0 for value in told)


def _name(row: Mapping[str, Any], meaning: str, path: Path) -> str:
    found = next((name for name in RUN_NAMES[meaning] if name in row), None)
    if found is None:
        raise FileFormatError(
            f"no {meaning} in the requests",
            path=str(path),
            value=", ".join(row)[:120],
            way_out=f"name it {' or '.join(RUN_NAMES[meaning])}",
        )
    return found


def _clock_offset(path: Path, rows: list[tuple[int, Mapping[str, Any]]], arrival: Floats, first: Floats) -> float:
    """What the engine's clock is ahead of that of the arrivals: the request that waited least for the engine's loop tells it."""
    queued = [_number(row, name, path, line) for line, row in rows for name in RUN_NAMES["queued"] if row.get(name) is not None]
    offset = float(np.min(np.array(queued) - arrival)) if len(queued) == len(rows) else 0.0
    if not 0 <= float(np.min(first - offset - arrival)) < SECONDS_A_DAY:
        raise FileFormatError(
            "first tokens do not follow the arrivals: two clocks", path=str(path), value=float(np.min(first - arrival)),
            way_out="add queued_ts, the engine's time of each arrival",
        )  # fmt: skip
    return offset


def read_plain(path: Path) -> Trace:
    """CSV with columns for arrival (s), prompt and output (tokens)."""
    arrival, prompt, output = _columns_of()
    names: dict[str, str] = {}
    for line, row in _rows(path):
        names = names or _columns(row, path)
        arrival.append(_number(row, names["arrival"], path, line))
        prompt.append(_tokens(row, names["prompt"], path, line))
        output.append(_tokens(row, names["output"], path, line))
    return _trace(path, arrival, prompt, output)


def _columns(row: Mapping[str, str], path: Path) -> dict[str, str]:
    present = {name.strip().lower(): name for name in row if name}
    chosen = {}
    for wanted, candidates in PLAIN_NAMES.items():
        name = next((present[one] for one in candidates if one in present), None)
        if name is None:
            raise FileFormatError(
                f"no column for {wanted}", path=str(path), value=", ".join(present), way_out=f"name one of {', '.join(candidates)}"
            )
        chosen[wanted] = name
    return chosen


def read_trace(path: Path) -> Trace:
    """Read a trace whatever its format; the first row tells which."""
    name = path.name.removesuffix(".gz")
    if name.endswith((".jsonl", ".json")):
        _, first = next(_objects(path), (0, {}))
        return read_mooncake(path) if "input_length" in first else read_requests_jsonl(path)
    _, row = next(_rows(path), (0, {}))
    if "ContextTokens" in row:
        return read_azure(path)
    return read_burstgpt(path) if "Request tokens" in row else read_plain(path)


def prefix_tree(blocks: list[list[int]], block_tokens: int) -> PrefixTree:
    """Chained block ids → segments: a node is a run of blocks that every request sharing its first block also shares."""
    children: dict[tuple[int, int], int] = {}
    parents: list[int] = []
    uses: list[int] = []
    walks = []
    for ids in blocks:
        node = -1
        walk: list[int] = []
        for one in ids:
            node = children.setdefault((node, one), len(parents))
            if node == len(parents):
                parents.append(walk[-1] if walk else -1)
                uses.append(0)
            uses[node] += 1
            walk.append(node)
        walks.append(walk)
    return _compress(walks, parents, uses, block_tokens)


def _compress(walks: list[list[int]], parents: list[int], uses: list[int], block_tokens: int) -> PrefixTree:
    """Join each block to the one before it where exactly the same requests use both; drop what only one request uses."""
    segment_of: dict[int, int] = {}
    parent: list[int] = []
    tokens: list[int] = []
    for block, before in enumerate(parents):
        if uses[block] < 2:
            continue
        if before >= 0 and uses[before] == uses[block]:
            segment_of[block] = segment_of[before]
            tokens[segment_of[block]] += block_tokens
            continue
        segment_of[block] = len(parent)
        parent.append(segment_of[before] if before >= 0 else -1)
        tokens.append(block_tokens)
    paths = [list(dict.fromkeys(segment_of[block] for block in walk if block in segment_of)) for walk in walks]
    start = np.concatenate([[0], np.cumsum([len(path) for path in paths])]).astype(np.int64)
    flat = np.array([node for path in paths for node in path], np.int64)
    count = len(parent)
    return PrefixTree(np.array(parent, np.int64), np.array(tokens, np.int64), start, flat, np.zeros(count, np.bool_), np.zeros(count))
