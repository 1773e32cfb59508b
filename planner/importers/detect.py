"""Which format a file holds, from its content and never from its name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from planner.importers import (
    aiperf,
    guidellm,
    inference_perf,
    inferencex,
    llama_batched_bench,
    llama_bench,
    llama_server,
    prometheus,
    request_list,
    sglang_offline,
    sglang_one_batch,
    sglang_serving,
    trtllm,
    vllm_forward,
    vllm_offline,
    vllm_serve,
)
from planner.importers.common import Draft, Origin


class Layout(StrEnum):
    """How a file is read."""

    DOCUMENT = "one JSON value"
    LINES = "one JSON value a line"
    YAML = "YAML report"
    METRICS = "exposition format"
    TABLE = "table"
    LOG = "log"
    BINARY = "binary"


class JsonFormat(NamedTuple):
    """A format of JSON values."""

    name: str
    matches: Callable[[Mapping[str, Any]], bool]
    drafts: Callable[[Mapping[str, Any], Origin], Iterator[Draft]]


FORMATS = (
    JsonFormat(trtllm.NAME, trtllm.matches, trtllm.drafts),
    JsonFormat(guidellm.NAME, guidellm.matches, guidellm.drafts),
    JsonFormat(inference_perf.NAME, inference_perf.matches, inference_perf.drafts),
    JsonFormat(aiperf.NAME, aiperf.matches, aiperf.drafts),
    JsonFormat(llama_bench.NAME, llama_bench.matches, llama_bench.drafts),
    JsonFormat(llama_batched_bench.NAME, llama_batched_bench.matches, llama_batched_bench.drafts),
    JsonFormat(llama_server.NAME, llama_server.matches, llama_server.drafts),
    JsonFormat(vllm_forward.NAME, vllm_forward.matches, vllm_forward.drafts),
    JsonFormat(sglang_serving.NAME, sglang_serving.matches, sglang_serving.drafts),
    JsonFormat(sglang_one_batch.NAME, sglang_one_batch.matches, sglang_one_batch.drafts),
    JsonFormat(sglang_offline.NAME, sglang_offline.matches, sglang_offline.drafts),
    JsonFormat(vllm_serve.NAME, vllm_serve.matches, vllm_serve.drafts),
    JsonFormat(inferencex.NAME, inferencex.matches, inferencex.drafts),
    JsonFormat(request_list.NAME, request_list.matches, request_list.drafts),
    JsonFormat("vllm bench latency or throughput", vllm_offline.matches, vllm_offline.drafts),
)
MARKS = (",", ";", "\t", "|")
"""What may divide the columns of a table."""
_NAME = re.compile(r"^\"?[^\n=:;]{0,60}\"?$")
_LOG_LINE = re.compile(
    r"\b(INFO|WARNING|DEBUG|ERROR)\b|^slot |^\[\d{4}-\d\d-\d\d|llama_|srv +\w|eval time =|batch[.,] #|^=+ ?[A-Z]", re.MULTILINE
)


def layout_of(head: bytes, columns: Mapping[str, str] | None) -> Layout:
    """How to read a file that begins with ``head``; a file whose first line names a mapped column is a table."""
    if b"\x00" in head:
        return Layout.BINARY
    text = head.decode("utf-8", "replace").lstrip("\ufeff").lstrip()
    if _mostly_objects(text):
        return Layout.LINES
    if text[:1] in {"{", "["} and not re.match(r"\[\d{4}-\d\d-\d\d|\[\d+\] ", text):
        return Layout.LINES if _one_a_line(text) else Layout.DOCUMENT
    if is_yaml_report(text):
        return Layout.YAML
    if prometheus.looks_like(text):
        return Layout.METRICS
    header = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    mapped = any((name.rpartition(":")[0] or name) in header for name in (columns or {}).values())
    return Layout.TABLE if mapped or _is_table(text) else Layout.LOG


def is_yaml_report(text: str) -> bool:
    """A mapping with a list of benchmarks, as GuideLLM writes it."""
    return re.search(r"^benchmarks:\s*\n *- ", text, re.MULTILINE) is not None


def _is_table(text: str) -> bool:
    """A header of short names, and a second line that is divided by the same mark."""
    lines = [line for line in text.splitlines()[:50] if line.strip() and not line.startswith("#")]
    if len(lines) < 2 or lines[0].startswith("|") or _LOG_LINE.search("\n".join(lines)):
        return False
    mark = max(MARKS, key=lines[0].count)
    names = lines[0].split(mark)
    return len(names) > 1 and all(_NAME.match(name.strip()) for name in names) and mark in lines[1]


def _one_a_line(text: str) -> bool:
    """An object that ends on its line, or a line too long to tell; one broken line does not hide the others."""
    first, newline, rest = text.partition("\n")
    if not newline:
        return text.startswith("{")
    if not first.startswith("{") or len(first.strip()) < 2:
        return False
    try:
        json.loads(first)
    except ValueError:
        return rest.startswith("{")
    except RecursionError:
        return True
    return True


def _mostly_objects(text: str) -> bool:
    """Objects one a line behind a first line that is none: a banner, a comment."""
    lines = [line for line in text.splitlines()[:50] if line.strip()]
    objects = [line for line in lines if line.startswith("{") and line.rstrip().endswith("}")]
    return len(objects) > len(lines) / 2


def format_of(value: Any) -> JsonFormat | None:
    """The format of one JSON object."""
    if not isinstance(value, Mapping):
        return None
    return next((known for known in FORMATS if known.matches(value)), None)


def wrapped(value: Any) -> Iterator[tuple[str, Any]]:
    """Results inside a plain wrapper such as ``{"results": [...]}``: their place and value."""
    if not isinstance(value, Mapping):
        return
    for key, inner in value.items():
        for index, item in enumerate(inner if isinstance(inner, list) else ()):
            if format_of(item) is not None:
                yield f"{key}[{index}]", item
        if format_of(inner) is not None:
            yield str(key), inner
