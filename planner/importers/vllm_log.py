"""vLLM server logs: start-up (memory), periodic load lines, speculation lines, and one line a step where that is enabled.

``GB`` and ``GiB`` of these logs both mean 2^30 bytes. Load lines average over ten seconds; windows with equally many running requests
are put together by their median. The pool of several ranks is the smallest of theirs; each rank is kept.
"""

from __future__ import annotations

import ast
import re
from array import array
from collections.abc import Iterator
from statistics import median
from typing import Any

from models.errors import UnitError
from models.units import GIB
from planner.importers.common import MILLI, Draft, fraction
from planner.importers.facts import note_facts
from planner.importers.flat import serving
from planner.importers.plausible import check_step
from planner.records import Arrival, MemoryObservation, SequenceGroup, StepKind, StepObservation

NAME = "vllm log"
_N = r"(\d+(?:\.\d+)?)"
_RANK = re.compile(r"\((?:Vllm)?Worker[^)]*?(?:TP|rank=)(\d+)")
_LOAD = re.compile(
    rf"Avg prompt throughput: {_N} tokens/s, Avg generation throughput: {_N} tokens/s, Running: (\d+) reqs?, (?:Swapped: \d+ reqs?, )?"
    rf"(?:Waiting|Pending): (\d+) reqs?,(?: Deferred: \d+ reqs?,)?(?: KV fetch: [^,]+, [^,]+, [^,]+,)?(?: Preemptions: (\d+),)?"
    rf" \w+ KV cache usage: {_N}%(?:, (?:CPU KV cache usage: {_N}%|Prefix cache hit rate: {_N}%))?"
)
_ITERATION = re.compile(
    rf"Iteration\(\d+\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, (\d+) generation tokens, "
    rf"iteration elapsed time: {_N} ms(?! \(dummy\))(?:, \w+ KV cache usage: {_N}%)?"
)
_SPECULATION = re.compile(
    rf"Mean acceptance length: {_N},.*?Accepted: (\d+) tokens, Drafted: (\d+) tokens"
    r"(?:, Per-position acceptance rate: ([\d., ]+?))?(?:, Avg|$)"
)
_CONFIG = re.compile(r"(\w+)=('[^']*'|[^,()\[\]{}]+)(?:,|$)")
_CONFIG_KEYS = frozenset({"model", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "quantization", "enforce_eager",
                          "kv_cache_dtype", "max_seq_len", "enable_prefix_caching", "enable_chunked_prefill", "dtype"})  # fmt: skip
_MEMORY: tuple[tuple[str, re.Pattern[str], tuple[str, ...]], ...] = (
    ("Model loading took", re.compile(rf"Model loading took {_N} Gi?B"), ("weights_bytes",)),
    ("Loading model weights took", re.compile(rf"Loading model weights took {_N} Gi?B"), ("weights_bytes",)),
    ("model weights take", re.compile(rf"model weights take {_N} ?Gi?B; non_torch_memory takes {_N} ?Gi?B; "
     rf"PyTorch activation peak memory takes {_N} ?Gi?B; the rest of the memory reserved for KV Cache is {_N} ?Gi?B"),
     ("weights_bytes", "non_torch_bytes", "activation_bytes", "kv_pool_bytes")),
    ("total_gpu_memory", re.compile(rf"total_gpu_memory \({_N} ?Gi?B\)"), ("total_bytes",)),
    ("Available KV cache memory", re.compile(rf"Available KV cache memory: {_N} Gi?B"), ("kv_pool_bytes",)),
    ("Graph capturing finished", re.compile(rf"Graph capturing finished in [\d.]+ secs?, took {_N} Gi?B"), ("graph_bytes",)),
    ("Estimated CUDA graph memory", re.compile(rf"Estimated CUDA graph memory: {_N} Gi?B"), ("graph_bytes",)),
)  # fmt: skip
_COUNTS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("KV cache size", re.compile(r"KV cache size: ([\d,]+) tokens"), "kv_pool_tokens"),
    ("blocks:", re.compile(r"# (?:GPU|cuda|CUDA) blocks: (\d+)"), "kv_blocks"),
)
_MEMORY_NEEDLES = ("KV", "took", "weights take", "total_gpu_memory", "locks", "graph memory", "Maximum concurrency", "cache blocks")
_CONCURRENCY = re.compile(rf"Maximum concurrency for ([\d,]+) tokens per request: {_N}x")
_TOO_SMALL = re.compile(rf"\({_N} Gi?B KV cache is needed, which is larger than the available KV cache memory \({_N} Gi?B\)")
_NO_BLOCKS = "No available memory for the cache blocks"
MAX_MAKE_UPS, MAX_WINDOW_KINDS = 50_000, 20_000


class VllmLog:
    """Takes lines one by one and turns them into runs, one for each start of the engine."""

    def __init__(self) -> None:
        self._done: list[Draft] = []
        self._reset()

    def _reset(self) -> None:
        self._draft = Draft(NAME, needs=("model", "device", "tensor_parallel"), coarse=True)
        self._draft.setup["engine"] = "vllm"
        self._first_line: int | None = None
        self._ranks: dict[int | None, dict[str, Any]] = {}
        self._windows: dict[int, tuple[array[float], ...]] = {}
        self._preemptions = 0
        self._steps: dict[tuple[int, int, int, int, float], array[float]] = {}
        self._speculation: list[tuple[float, int, int, tuple[float, ...]]] = []
        self._odd = self._odd_first = self._left_out = 0

    def feed(self, number: int, line: str) -> bool:
        """Take a line; True when it said something."""
        if "vLLM API server version" in line or ("Initializing a" in line and "LLM engine (v" in line):
            self._start(line)
        elif "throughput:" in line and "Running:" in line:
            return self._noted(number, self._load(line), counts=True)
        elif "iteration elapsed time" in line:
            return self._noted(number, self._iteration(line), counts="(dummy)" not in line)
        elif "Mean acceptance length" in line:
            return self._noted(number, self._accept(line), counts=True)
        elif "non-default args:" in line:
            self._arguments(line)
        elif any(needle in line for needle in _MEMORY_NEEDLES):
            return self._noted(number, self._memory(line), counts=False)
        return False

    def _noted(self, number: int, good: bool, *, counts: bool) -> bool:  # noqa: FBT001
        if good and self._first_line is None:
            self._first_line = number
        if not good and counts:
            self._odd += 1
            self._odd_first = self._odd_first or number
        return good

    def _start(self, line: str) -> None:
        if "vLLM API server version" in line:
            self._flush()
            version = re.search(r"vLLM API server version (\S+)", line)
        else:
            version = re.search(r"engine \(v([^)]+)\)", line)
            for key, raw in _CONFIG.findall(line.partition("with config:")[2]):
                if key in _CONFIG_KEYS and raw != "None":
                    name = {"max_seq_len": "max_model_len", "dtype": "precision"}.get(key, key)
                    note_facts(self._draft, {name: raw.strip("'").removeprefix("torch.")})
        if version is not None:
            self._draft.setup["engine_version"] = version.group(1).removeprefix("v")

    def _arguments(self, line: str) -> None:
        try:
            found = ast.literal_eval(line.partition("non-default args:")[2].strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            self._draft.warnings.append("the non-default args of the log are not understood")
            return
        if isinstance(found, dict):
            note_facts(self._draft, {str(key): raw for key, raw in found.items() if key not in {"host", "port", "api_key", "model_tag"}})
            if "model_tag" in found:
                self._draft.setup.setdefault("model", str(found["model_tag"]))

    def _load(self, line: str) -> bool:
        found = _LOAD.search(line)
        if found is None:
            return False
        prompt, generated, running, waiting, preempted, usage, _, hit = found.groups()
        self._preemptions += int(preempted or 0)
        if int(running) == 0 or float(generated) == 0:
            return True
        if int(running) not in self._windows and len(self._windows) >= MAX_WINDOW_KINDS:
            self._left_out += 1
            return True
        columns = self._windows.setdefault(int(running), tuple(array("d") for _ in range(5)))
        for column, raw in zip(columns, (prompt, generated, waiting, usage, hit), strict=True):
            if raw is not None:
                column.append(float(raw))
        return True

    def _iteration(self, line: str) -> bool:
        found = _ITERATION.search(line)
        if found is None:
            return False
        requests, tokens, decoding, generated, elapsed, usage = found.groups()
        seconds = float(elapsed) * MILLI
        if int(requests) + int(decoding) == 0 or seconds == 0:
            return True
        key = (int(requests), int(tokens), int(decoding), int(generated), float(usage) if usage is not None else -1.0)
        if key not in self._steps and len(self._steps) >= MAX_MAKE_UPS:
            self._left_out += 1
            return True
        self._steps.setdefault(key, array("d")).append(seconds)
        return True

    def _accept(self, line: str) -> bool:
        found = _SPECULATION.search(line)
        if found is None:
            return False
        shares = tuple(float(share) for share in (found.group(4) or "").replace(" ", "").split(",") if share.replace(".", "", 1).isdigit())
        self._speculation.append((float(found.group(1)), int(found.group(2)), int(found.group(3)), shares))
        return True

    def _memory(self, line: str) -> bool:
        where = _RANK.search(line)
        fields = self._ranks.setdefault(int(where.group(1)) if where else None, {})
        before = dict(fields)
        for needle, pattern, names in _MEMORY:
            if needle in line and (found := pattern.search(line)):
                fields.update({name: round(float(size) * GIB) for name, size in zip(names, found.groups(), strict=True)})
        for needle, pattern, name in _COUNTS:
            if needle in line and (found := pattern.search(line)):
                fields[name] = int(found.group(1).replace(",", ""))
        if found := _CONCURRENCY.search(line):
            fields.update(max_concurrency=float(found.group(2)), max_concurrency_at=int(found.group(1).replace(",", "")))
        if found := _TOO_SMALL.search(line):
            fields.update(kv_pool_bytes=round(float(found.group(2)) * GIB), fits=False)
        if _NO_BLOCKS in line:
            fields.update(kv_pool_bytes=0, fits=False)
        return fields != before

    def _flush(self) -> None:
        draft = self._draft
        draft.line = self._first_line
        draft.workload["arrival"] = Arrival.SERVER
        draft.memory.extend(self._memories())
        draft.steps.extend(self._step_observations())
        draft.serving.extend(self._window_observations())
        if self._odd:
            draft.warnings.append(f"{self._odd} load or step lines are not understood, the first on line {self._odd_first}")
        if self._left_out:
            draft.warnings.append(f"{self._left_out} lines beyond the limit of distinct make-ups were left out")
        if draft.memory or draft.steps or draft.serving:
            self._done.append(draft)
        self._reset()

    def _memories(self) -> Iterator[MemoryObservation]:
        shared = self._ranks.pop(None, {})
        kept = self._draft.setup
        extra = {"utilization": kept.get("memory_utilization"), "kv_dtype": kept.get("kv_format"), "block_size": kept.get("block_size")}
        if not self._ranks and shared:
            self._ranks = {None: {}}  # one rank without a number
        for rank, fields in sorted(self._ranks.items(), key=lambda item: -1 if item[0] is None else item[0]):
            if shared or fields:
                yield MemoryObservation(rank=rank, **{**extra, **shared, **fields})

    def _step_observations(self) -> Iterator[StepObservation]:
        impossible = 0
        pool = min((m.kv_pool_tokens for m in self._draft.memory if m.kv_pool_tokens), default=None)
        for (requests, tokens, decoding, generated, usage), seconds in self._steps.items():
            parts = ((requests, tokens), (decoding, generated))
            groups = tuple(SequenceGroup(sequences=count, new_tokens=rows) for count, rows in parts if count and rows)
            if not groups:
                continue
            kind = StepKind.MIXED if requests and decoding else StepKind.PREFILL if requests else StepKind.DECODE
            kind = StepKind.VERIFY if kind is StepKind.DECODE and generated > decoding else kind
            share = None if usage < 0 else fraction(usage / 100, "KV cache usage")
            step = StepObservation(
                kind=kind, groups=groups, seconds=median(seconds), repeats=len(seconds), kv_usage=share,
                spread=(max(seconds) - min(seconds)) / median(seconds) if len(seconds) > 1 else None,
                resident_tokens=None if share is None or pool is None else share * pool,
            )  # fmt: skip
            try:
                check_step(step)
                yield step
            except UnitError:
                impossible += len(seconds)
        if impossible:
            self._draft.warnings.append(f"{impossible} steps of impossible length were left out")

    def _window_observations(self) -> Iterator[Any]:
        for running, columns in sorted(self._windows.items()):
            prompt, generated, waiting, usage, hit = (median(column) if column else None for column in columns)
            yield serving({
                "running": float(running), "waiting": waiting, "input_tokens_per_s": prompt, "output_tokens_per_s": generated,
                "kv_usage": fraction(None if usage is None else usage / 100, "KV cache usage"), "windows": len(columns[1]),
                "prefix_hit_rate": fraction(None if hit is None else hit / 100, "Prefix cache hit rate"),
            })  # fmt: skip
        if self._preemptions:
            self._draft.warnings.append(f"{self._preemptions} preemptions")
        drafted = sum(line[2] for line in self._speculation)
        if drafted:
            accepted = sum(line[1] for line in self._speculation)
            length = sum(line[0] * line[2] for line in self._speculation) / drafted
            width = min((len(line[3]) for line in self._speculation), default=0)
            shares = tuple(min(sum(line[3][at] * line[2] for line in self._speculation) / drafted, 1.0) for at in range(width))
            yield serving({"acceptance_length": length, "acceptance_rate": fraction(accepted / drafted, "Accepted"),
                           "acceptance_by_position": shares, "windows": len(self._speculation)})  # fmt: skip

    def drafts(self) -> list[Draft]:
        """All runs of the log."""
        self._flush()
        return self._done
