"""SGLang server logs: ``Decode batch`` and ``Prefill batch`` lines and the start-up lines about memory (GB there means GiB).

A decode line averages over the steps since the last one; lines with equally many running requests are put together by their median.
Hybrid models print ``full token usage`` where others print ``token usage``.
"""

from __future__ import annotations

import re
from array import array
from statistics import median
from typing import Any

from models.units import GIB
from planner.importers.common import Draft, fraction
from planner.importers.facts import is_engine_fact, note_facts
from planner.importers.flat import serving
from planner.records import Arrival, MemoryObservation

NAME = "sglang log"
_N = r"(\d+(?:\.\d+)?)"
_RANK = re.compile(r"TP(\d+)\]")
_RUNNING = re.compile(r"#running-req: (\d+)")
_RATE = re.compile(rf"gen throughput \(token/s\): {_N}")
_QUEUE = re.compile(r"#queue-req: (\d+)")
_USAGE = re.compile(rf"(?:, |full )token usage: {_N}")
_ACCEPT = re.compile(rf"accept len: {_N}")
_ACCEPT_RATE = re.compile(rf"accept rate: {_N}")
_NEW, _CACHED = re.compile(r"#new-token: (\d+)"), re.compile(r"#cached-token: (\d+)")
_ARGUMENTS = re.compile(r"(\w+)=('[^']*'|True|False|-?\d+(?:\.\d+)?)(?=[,)])")
_MEMORY = (
    ("weights_bytes", re.compile(rf"Load weight end.*?mem usage={_N} ?GB")),
    ("graph_bytes", re.compile(rf"Capture (?:cuda|npu|decode cuda)? ?graph end.*?mem usage={_N} ?GB")),
)
_POOL = re.compile(rf"KV Cache is allocated.*?#tokens: (\d+)(?:, K size: {_N} GB, V size: {_N} GB|, KV size: {_N} GB)?")
_TOTAL = re.compile(r"max_total_num_tokens=(\d+)")
MAX_WINDOW_KINDS = 20_000


class SglangLog:
    """Takes lines one by one; the whole log is one run."""

    def __init__(self) -> None:
        self._draft = Draft(NAME, needs=("model", "device", "tensor_parallel"), coarse=True)
        self._draft.setup["engine"] = "sglang"
        self._windows: dict[int, tuple[array[float], ...]] = {}
        self._ranks: dict[int | None, dict[str, Any]] = {}
        self._new = self._cached = 0
        self._first_line: int | None = None

    def feed(self, number: int, line: str) -> bool:
        """Take a line; True when it said something."""
        if "Decode batch" in line:
            good = self._decode(line)
        elif "Prefill batch" in line:
            good = self._prefill(line)
        elif "server_args=" in line:
            self._arguments(line)
            return False
        elif "KV Cache is allocated" in line or "mem usage=" in line or "max_total_num_tokens=" in line:
            good = self._memory(line)
        else:
            return False
        if good and self._first_line is None:
            self._first_line = number
        return good

    def _decode(self, line: str) -> bool:
        running, rate = _RUNNING.search(line), _RATE.search(line)
        if running is None or rate is None:
            return False
        count = int(running.group(1))
        if count == 0 or float(rate.group(1)) == 0 or (count not in self._windows and len(self._windows) >= MAX_WINDOW_KINDS):
            return True
        columns = self._windows.setdefault(count, tuple(array("d") for _ in range(5)))
        for column, pattern in zip(columns, (_RATE, _QUEUE, _USAGE, _ACCEPT, _ACCEPT_RATE), strict=True):
            if found := pattern.search(line):
                column.append(float(found.group(1)))
        return True

    def _prefill(self, line: str) -> bool:
        new, cached = _NEW.search(line), _CACHED.search(line)
        if new is None or cached is None:
            return False
        self._new += int(new.group(1))
        self._cached += int(cached.group(1))
        return False

    def _arguments(self, line: str) -> None:
        for key, raw in _ARGUMENTS.findall(line.partition("server_args=")[2]):
            if is_engine_fact(key):
                note_facts(self._draft, {key: raw.strip("'")})

    def _memory(self, line: str) -> bool:
        where = _RANK.search(line)
        fields = self._ranks.setdefault(int(where.group(1)) if where else None, {})
        before = dict(fields)
        for name, pattern in _MEMORY:
            if found := pattern.search(line):
                fields[name] = round(float(found.group(1)) * GIB)
        if found := _POOL.search(line):
            tokens, keys, values, both = found.groups()
            fields["kv_pool_tokens"] = int(tokens)
            if keys or both:
                fields["kv_pool_bytes"] = round((float(keys or 0) + float(values or 0) + float(both or 0)) * GIB)
        elif found := _TOTAL.search(line):
            fields["kv_pool_tokens"] = int(found.group(1))
        return fields != before

    def drafts(self) -> list[Draft]:
        """The run, if the log held one."""
        draft = self._draft
        draft.line = self._first_line
        draft.workload["arrival"] = Arrival.SERVER
        hit = self._cached / (self._cached + self._new) if self._cached + self._new else None
        for running, columns in sorted(self._windows.items()):
            rate, queue, usage, length, share = (median(column) if column else None for column in columns)
            draft.serving.append(serving({
                "running": float(running), "waiting": queue, "output_tokens_per_s": rate, "kv_usage": fraction(usage, "token usage"),
                "acceptance_length": length, "acceptance_rate": fraction(share, "accept rate"), "prefix_hit_rate": hit,
                "windows": len(columns[0]),
            }))  # fmt: skip
        for rank, fields in sorted(self._ranks.items(), key=lambda item: -1 if item[0] is None else item[0]):
            if fields:
                draft.memory.append(MemoryObservation(rank=rank, **fields))
        return [draft] if draft.serving or draft.memory else []
