"""What load generators print at their end: the ``Benchmark Result`` blocks of vLLM and SGLang, the report of trtllm-bench.

Units stand in the labels. Several blocks in one file are several runs.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from models.errors import FileFormatError, InputError
from planner.importers import sglang_offline
from planner.importers.common import TIME_UNITS, Draft, number, positive, statistic_name
from planner.importers.facts import set_fact
from planner.importers.flat import latency, serving, set_arrival
from planner.importers.trtllm import arrival_of
from planner.records import Arrival

NAME, TRTLLM = "serving benchmark printout", "trtllm-bench printout"
_LINE = re.compile(r"^\s*(?:\[(TTFT|TPOT|GTPS|Latency)\]\s*)?([A-Za-z][^:=|]*?)\s*:\s+(\S.*?)\s*$")
_CARD = re.compile(r"^(\S.*), memory [\d.]+ GB, ")
_TIMED = re.compile(r"^(Mean|Median|Std|Max|Min|P[\d.]+) (TTFT|TPOT|ITL|E2EL|E2E Latency) \((\w+)\)$")
_BLOCKS = {" Serving Benchmark Result ": NAME, " Offline Throughput Benchmark Result ": sglang_offline.NAME,
           "= PYTORCH BACKEND": TRTLLM, "= ENGINE DETAILS": TRTLLM}  # fmt: skip
_ENGINES = {sglang_offline.NAME: "sglang", TRTLLM: "trtllm"}
_COUNTS = {"Successful requests": "completed", "Failed requests": "failed"}
_RATES = {"Request throughput (req/s)": "requests_per_s", "Output token throughput (tok/s)": "output_tokens_per_s",
          "Input token throughput (tok/s)": "input_tokens_per_s", "Total Token throughput (tok/s)": "total_tokens_per_s",
          "Total token throughput (tok/s)": "total_tokens_per_s", "Benchmark duration (s)": "duration",
          "Concurrency": "in_flight", "Accept length": "acceptance_length",
          "Total throughput (tok/s)": "total_tokens_per_s", "Token Throughput (tokens/sec)": "output_tokens_per_s",
          "Request Throughput (req/sec)": "requests_per_s", "Total Output Throughput (tokens/sec)": "output_tokens_per_s",
          "Total Token Throughput (tokens/sec)": "total_tokens_per_s"}  # fmt: skip
_TRT_TIMES = {"Average time-to-first-token [TTFT] (ms)": "ttft", "Average time-per-output-token [TPOT] (ms)": "tpot",
              "Average request latency (ms)": "e2e"}  # fmt: skip
_TRT_DURATION = {"Total Latency (ms)": 1e-3, "Total Latency (seconds)": 1.0}
_TRT_METRIC = {"TTFT": "ttft", "TPOT": "tpot", "Latency": "e2e"}
_TRT_FACTS = {"Model": "model", "TensorRT LLM Version": "engine_version", "TensorRT-LLM Version": "engine_version",
              "KV Cache Dtype": "kv_format", "Quantization": "precision",
              "TP Size": "tensor_parallel", "PP Size": "pipeline_parallel", "EP Size": "expert_parallel",
              "Max Runtime Batch Size": "max_num_seqs", "Max Runtime Tokens": "max_num_batched_tokens"}  # fmt: skip
_ABOVE = ("Traffic request rate", "Maximum request concurrency")
_METRICS = ("ttft", "tpot", "itl", "e2e")


def _limit(raw: str, label: str) -> float:
    return float("inf") if raw.lower() in {"inf", "not set", "none"} else number(raw.split(maxsplit=1)[0], label)


class Console:
    """Takes lines one by one."""

    def __init__(self) -> None:
        self._done: list[Draft] = []
        self._open: Draft | None = None
        self._found: dict[str, Any] = {}
        self._totals: dict[str, float] = {}
        self._before: dict[str, float] = {}  # vLLM prints rate and limit above its block

    def feed(self, number_of_line: int, line: str) -> bool:
        """Take a line; True when it said something."""
        if (block := next((name for mark, name in _BLOCKS.items() if mark in f"{line} "), None)) is not None:
            self._finish()
            self._totals, self._before = dict(self._before), {}
            self._open = Draft(block, line=number_of_line, coarse=True)
            if block in _ENGINES:
                self._open.setup["engine"] = _ENGINES[block]
            return True
        if self._open is None and not line.startswith(_ABOVE):
            return False
        found = _LINE.match(line)
        if found is None:
            return self._machine(line)
        if line.startswith(_ABOVE):
            with suppress(InputError):  # a line of prose that begins alike
                self._before[found.group(2).strip()] = _limit(found.group(3), found.group(2))
            return False
        try:
            return self._take(found.group(1), found.group(2).strip(), found.group(3))
        except InputError as error:
            if self._open is not None:
                self._open.problem, self._open.line = error, number_of_line
            return True

    def _machine(self, line: str) -> bool:
        """The card in the report of trtllm-bench: ``NVIDIA H100 80GB HBM3, memory 79.11 GB, 2.62 GHz``."""
        found = _CARD.match(line)
        return found is not None and self._open is not None and set_fact(self._open, "device", found.group(1))

    def _take(self, group: str | None, label: str, raw: str) -> bool:
        if group is not None:
            statistic = statistic_name(label.lower())
            if group in _TRT_METRIC and statistic is not None:
                self._found.setdefault(_TRT_METRIC[group], {})[statistic] = number(raw, label) * 1e-3
        elif timed := _TIMED.match(label):
            statistic = statistic_name(timed.group(1))
            metric = {"e2el": "e2e", "e2e latency": "e2e"}.get(timed.group(2).lower(), timed.group(2).lower())
            if statistic is not None and timed.group(3) in TIME_UNITS:
                self._found.setdefault(metric, {})[statistic] = number(raw, label) * TIME_UNITS[timed.group(3)]
        elif label in _TRT_TIMES:
            self._found.setdefault(_TRT_TIMES[label], {})["mean"] = number(raw, label) * 1e-3
        elif label in _TRT_DURATION:
            self._found["duration"] = number(raw, label) * _TRT_DURATION[label]
        elif label in _RATES or label in _COUNTS:
            self._found[_RATES.get(label, _COUNTS.get(label, ""))] = number(raw, label)
        else:
            return self._describe(label, raw)
        return True

    def _describe(self, label: str, raw: str) -> bool:
        assert self._open is not None
        if label in _TRT_FACTS and self._open.format == TRTLLM:
            set_fact(self._open, _TRT_FACTS[label], raw.lower() if label == "Quantization" else raw)
        elif label in {"Total input tokens", "Total generated tokens", "Number of requests", "Average Input Length (tokens)",
                       "Average Output Length (tokens)", "Traffic request rate", "Maximum request concurrency",
                       "Max request concurrency", "Number of concurrent requests", "Issue Rate (req/sec)"}:  # fmt: skip
            self._totals[label] = _limit(raw, label)
        else:
            return False
        return True

    def _finish(self) -> None:
        draft, found, totals = self._open, self._found, self._totals
        self._open, self._found, self._totals = None, {}, {}
        if draft is None or not any(found.get(metric) is not None for metric in (*_METRICS, "output_tokens_per_s")):
            return
        for key in ("completed", "failed"):
            found[key] = None if found.get(key) is None else int(found[key])
        requests = totals.get("Number of requests", found.get("completed"))
        if requests and found["completed"] is None:
            found["completed"] = int(requests)
        for total, mean, target in (("Total input tokens", "Average Input Length (tokens)", "prompt_tokens"),
                                    ("Total generated tokens", "Average Output Length (tokens)", "output_tokens")):  # fmt: skip
            whole = totals.get(total)
            draft.workload[target] = positive(totals.get(mean) or (whole / found["completed"] if whole and found["completed"] else None))
        self._arrival(draft, totals, found.get("duration"))
        draft.workload["requests"] = None if not requests else int(requests) + (found["failed"] or 0)
        if draft.format == TRTLLM:
            found["in_flight"] = totals.get("Number of concurrent requests")
        found.update({metric: latency(found[metric], metric, draft) for metric in _METRICS if metric in found})
        draft.serving.append(serving(found))
        if found["completed"] == 0 and draft.problem is None:
            draft.problem = FileFormatError("all requests failed: nothing was measured", path="Successful requests")
        self._done.append(draft)

    @staticmethod
    def _arrival(draft: Draft, totals: dict[str, float], seconds: float | None) -> None:
        limit = totals.get("Max request concurrency", totals.get("Maximum request concurrency"))
        limit = None if limit is None or limit == float("inf") else limit
        rate = totals.get("Traffic request rate")
        if draft.format == sglang_offline.NAME:
            draft.workload["arrival"] = Arrival.OFFLINE
        elif rate is None and limit is None:
            draft.workload["arrival"] = arrival_of(totals.get("Issue Rate (req/sec)"), totals.get("Number of requests"), seconds)
        else:
            set_arrival(draft, "inf" if rate in {None, float("inf")} else rate, None if limit is None else int(limit))

    def drafts(self) -> list[Draft]:
        """All runs of the printout."""
        self._finish()
        return self._done
