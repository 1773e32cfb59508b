"""GuideLLM's CSV export: a row for each benchmark, read into the mapping that its JSON holds.

Releases from 0.4 on write three rows of names (group, what and of which requests, statistic or unit); those before write one
(``Successful Time to first token ms mean``). Percentiles stand as a list of eleven in one cell. How many streams or which rate a row had
stands in its profile alone, at the place of the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from planner.importers import guidellm
from planner.importers.common import Draft, Origin

_METRICS = {
    ("Request Latency", "Sec"): "request_latency", ("Time to First Token", "ms"): "time_to_first_token_ms",
    ("Inter Token Latency", "ms"): "inter_token_latency_ms", ("Server Throughput", "Requests/Sec"): "requests_per_second",
    ("Server Throughput", "Concurrency"): "request_concurrency", ("Token Metrics", "Input Tokens"): "prompt_token_count",
    ("Token Metrics", "Output Tokens"): "output_token_count", ("Token Throughput", "Input Tokens/Sec"): "prompt_tokens_per_second",
    ("Token Throughput", "Output Tokens/Sec"): "output_tokens_per_second", ("Token Throughput", "Total Tokens/Sec"): "tokens_per_second",
}  # fmt: skip
_PERCENTILES = ("min", "p001", "p01", "p05", "p10", "p25", "p75", "p90", "p95", "p99", "max")
_OLD_PERCENTILES = "[min, 0.1, 1, 5, 10, 25, 75, 90, 95, 99, max]"
_STATISTICS = {"mean": "mean", "median": "median", "std dev": "std_dev"}
_GOOD = "Successful "
Name = tuple[str, str, str]


def matches(header: Sequence[str]) -> bool:
    """The first row of names of either form."""
    return {"Run Info", "Request Counts", "Request Latency"} <= set(header) or {"Run Id", "Successful Requests", "Args"} <= set(header)


def drafts(header: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[Draft | Exception]:
    """One run for each row that can be read."""
    if "Run Info" in header:
        second, third = next(rows, ()), next(rows, ())
        names: list[Name] = list(zip(header, second, third, strict=False))
    else:
        names = [_of_old(name) for name in header]
    for row in rows:
        report = _report(dict(zip(names, row, strict=False)))
        try:
            yield from guidellm.drafts(report, Origin("", ""))
        except ValueError as error:  # each row stands alone; the caller reports it
            yield error


def _of_old(name: str) -> Name:
    """``Successful Request latency std dev`` under the names of the later form."""
    for statistic in (*_STATISTICS, _OLD_PERCENTILES):
        if name.startswith(_GOOD) and name.endswith(f" {statistic}"):
            metric = name.removeprefix(_GOOD).removesuffix(f" {statistic}").lower().replace(" ", "_")
            group, what = next((key for key, known in _METRICS.items() if known == metric), ("", ""))
            return group, f"{_GOOD}{what}", "Percentiles" if statistic == _OLD_PERCENTILES else statistic.title()
    known = {"Duration": ("Timings", "Duration", "Sec"), "Successful Requests": ("Request Counts", "Successful", ""),
             "Errored Requests": ("Request Counts", "Errored", ""), "Total Requests": ("Request Counts", "Total", "")}  # fmt: skip
    return known.get(name, ("", name, ""))


def _report(cells: Mapping[Name, str]) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    for (group, what, statistic), cell in cells.items():
        metric = _METRICS.get((group, what.removeprefix(_GOOD))) if what.startswith(_GOOD) else None
        if metric is not None and cell != "":
            metrics.setdefault(metric, {"successful": {}})["successful"].update(_statistic(statistic, cell))
    counts = {key: cells.get(("Request Counts", key.title(), "")) or None for key in ("successful", "errored", "total")}
    metrics["request_totals"] = {key: int(float(count)) for key, count in counts.items() if count is not None}
    benchmark = {"metrics": metrics, "duration": cells.get(("Timings", "Duration", "Sec")) or None, "config": _config(cells)}
    benchmark |= {key: _json(cells.get(("", key.title(), ""))) for key in ("args", "worker")}
    return {"metadata": _json(cells.get(("Runtime Info", "Metadata", ""))), "benchmarks": [benchmark]}


def _statistic(name: str, cell: str) -> dict[str, Any]:
    if name == "Percentiles":
        listed = _json(cell.replace("None", "null"))
        return dict(zip(_PERCENTILES, listed, strict=False)) if isinstance(listed, list) else {}
    return {_STATISTICS[name.lower()]: cell} if name.lower() in _STATISTICS else {}


def _config(cells: Mapping[Name, str]) -> dict[str, Any]:
    """Backend and strategy; the streams or the rate of the run are those of its place in the profile."""
    profile = _json(cells.get(("Run Info", "Profile", "")))
    place = _json(cells.get(("Run Info", "Run Index", "")))
    strategy: dict[str, Any] = {"type_": cells.get(("Benchmark", "Strategy", ""), "")}
    for key in ("streams", "rate", "max_concurrency"):
        stated = profile.get(key) if isinstance(profile, Mapping) else None
        chosen: Iterable[Any] = stated if isinstance(stated, list) else [stated]
        listed = list(chosen)
        at = place if isinstance(place, int) and len(listed) > 1 else 0
        strategy[key] = listed[at] if at < len(listed) else None
    found: dict[str, Any] = {"backend": _json(cells.get(("Run Info", "Backend", "")))}
    return found | ({"strategy": strategy} if strategy["type_"] else {})


def _json(cell: str | None) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(cell or "null")
    return None
