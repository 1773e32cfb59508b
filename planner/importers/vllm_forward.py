"""``vllm bench forward``: device time of one forward of an exact batch, without sampling and host work.

A list of cases; each rank carries ``num_tokens``, ``kv_blocks`` and ``latency_us`` (microseconds: ``median``, ``sample_spread_pct``).
A request's ``kv_len`` holds its ``query_len`` new tokens in; one with ``num_draft_tokens`` verifies them.
The step of several ranks ends with the slowest. ``requests`` says what each request of the case does.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Any

from planner.importers.common import MICRO, Draft, MeasurementError, Origin, number, optional, required, text, whole
from planner.importers.facts import set_fact
from planner.importers.plausible import agree
from planner.records import SequenceGroup, StepKind, StepObservation

NAME = "vllm bench forward"
_NEW = ("num_tokens", "new_tokens", "query_len", "q_len", "num_new_tokens", "num_scheduled_tokens", "tokens")
_OLD = ("context_len", "num_computed_tokens", "context_tokens", "kv_len_before", "context", "past_len", "prefix_len")
_TOTAL = ("kv_len", "seq_len", "total_len")


def matches(value: Mapping[str, Any]) -> bool:
    """A case with ranks, or an object that holds cases."""
    return "median_us" in value and ("ranks" in value or "case" in value)


def drafts(value: Mapping[str, Any], _origin: Origin) -> Iterator[Draft]:
    """One run of one step."""
    draft = Draft(NAME)
    draft.setup["engine"] = "vllm"
    for key, raw in value.items():
        if key not in {"case", "requests", "median_us", "ranks"} and isinstance(raw, str | int | float | bool):
            set_fact(draft, key, raw)
    if (case := text(value.get("case"))) is not None:
        draft.metadata["case"] = case
    listed = value.get("ranks")
    ranks = [rank for rank in listed if isinstance(rank, Mapping)] if isinstance(listed, list) else []
    groups = tuple(_groups(value, ranks, draft))
    kind = _kind(value, groups)
    seconds = required(value, "median_us", MICRO)
    for rank in ranks:
        if isinstance(rank.get("latency_us"), Mapping):
            agree("median_us", seconds, optional(rank["latency_us"], "median", MICRO))
    repeats = max((whole(rank["latency_us"], "count") or 1 for rank in ranks if isinstance(rank.get("latency_us"), Mapping)), default=1)
    draft.steps.append(
        StepObservation(kind=kind, groups=groups, seconds=seconds, spread=_spread(ranks), repeats=repeats, includes_host=False)
    )
    yield draft


def _kind(value: Mapping[str, Any], groups: tuple[SequenceGroup, ...]) -> StepKind:
    """Requests with draft tokens verify them; any other with several new tokens prefills."""
    requests = value.get("requests")
    listed = [request for request in requests if isinstance(request, Mapping)] if isinstance(requests, list) else []
    verified = {_shape(request) for request in listed if whole(request, "num_draft_tokens")}
    shapes = [(group.new_tokens / group.sequences, group.context_tokens and group.context_tokens / group.sequences) for group in groups]
    prefills = [new > 1 and (new, old) not in verified for new, old in shapes]
    if any(prefills):
        return StepKind.PREFILL if all(prefills) else StepKind.MIXED
    return StepKind.VERIFY if verified else StepKind.DECODE


def _spread(ranks: list[Mapping[str, Any]]) -> float | None:
    found = [optional(rank["latency_us"], "sample_spread_pct", 0.01) for rank in ranks if isinstance(rank.get("latency_us"), Mapping)]
    known = [spread for spread in found if spread is not None]
    return max(known) if known else None


def _groups(value: Mapping[str, Any], ranks: list[Mapping[str, Any]], draft: Draft) -> Iterator[SequenceGroup]:
    """Equal requests of the case together; where lengths are not named, the tokens of the fullest rank."""
    raw = value.get("requests")
    requests = list(raw) if isinstance(raw, list | array) else []
    if requests and all(isinstance(request, Mapping) for request in requests):
        alike: dict[tuple[float, float | None], int] = {}
        for request in requests:
            shape = _shape(request)
            alike[shape] = alike.get(shape, 0) + (whole(request, "count") or 1)
        for (new, old), count in alike.items():
            yield SequenceGroup(sequences=count, new_tokens=new * count, context_tokens=None if old is None else old * count)
        return
    if not ranks:
        raise MeasurementError("holds neither named lengths nor ranks: the batch is not known", path="requests")
    draft.warnings.append("the lengths of the requests are not named: the context is not known")
    yield SequenceGroup(sequences=max(len(requests), 1), new_tokens=max(required(rank, "num_tokens") for rank in ranks))


def _shape(request: Mapping[str, Any]) -> tuple[float, float | None]:
    new = next((number(request[key], f"requests.{key}") for key in _NEW if request.get(key) is not None), None)
    if new is None:
        raise MeasurementError("holds a request without new tokens", path="requests", value=",".join(map(str, request)))
    old = next((number(request[key], f"requests.{key}") for key in _OLD if request.get(key) is not None), None)
    if old is None:
        total = next((number(request[key], f"requests.{key}") for key in _TOTAL if request.get(key) is not None), None)
        old = None if total is None else max(total - new, 0.0)
    return new, old
