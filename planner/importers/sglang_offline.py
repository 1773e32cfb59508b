"""SGLang ``bench_offline_throughput --result-filename``: all requests given to the engine at once, one object a line, in seconds.

It records neither the model nor any server argument, and no time of a single request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from models.errors import FileFormatError
from planner.importers.common import Draft, Origin, optional, required, text
from planner.importers.facts import set_known_facts
from planner.importers.flat import completed_requests, mean_lengths, serving
from planner.records import Arrival

NAME = "sglang bench_offline_throughput"
_RATES = (("requests_per_s", "request_throughput"), ("input_tokens_per_s", "input_throughput"),
          ("output_tokens_per_s", "output_throughput"), ("total_tokens_per_s", "total_throughput"))  # fmt: skip


def matches(value: Mapping[str, Any]) -> bool:
    """Totals of a batch under the names of this tool alone."""
    return {"successful_requests", "total_latency", "total_output_tokens", "output_throughput"} <= value.keys()


def drafts(value: Mapping[str, Any], _origin: Origin) -> Iterator[Draft]:
    """One run."""
    draft = Draft(NAME)
    draft.setup["engine"] = "sglang"
    set_known_facts(draft, value)
    completed = completed_requests(value, draft, "successful_requests", "failed_requests", "num_prompts")
    if value["total_latency"] == -1:
        raise FileFormatError("the batch did not end: nothing was measured", path="total_latency", value=-1)
    mean_lengths(value, draft, completed, "total_input_tokens", "total_output_tokens")
    draft.workload["arrival"] = Arrival.OFFLINE
    if (backend := text(value.get("backend"))) is not None:
        draft.metadata["backend"] = backend
    found: dict[str, Any] = {"completed": completed, "duration": required(value, "total_latency")}
    found.update({target: optional(value, key) for target, key in _RATES})
    draft.serving.append(serving(found))
    yield draft
