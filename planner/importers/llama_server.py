"""llama-server: the ``timings`` of its answers (milliseconds) and the same numbers in its log.

The first token is sampled from the prompt's last row, so ``predicted_ms`` covers ``predicted_n - 1`` steps (with a draft: rounds).
The times are those of one slot; they are step times only while no other slot works.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from planner.importers.common import MILLI, Draft, MeasurementError, Origin, fraction, optional, text, whole
from planner.importers.facts import set_fact
from planner.importers.flat import serving
from planner.importers.plausible import agree
from planner.records import SequenceGroup, StepKind, StepObservation

NAME, LOG = "llama-server timings", "llama-server log"
_N = r"(\d+(?:\.\d+)?)"
_TASK = re.compile(r"task (-?\d+) \|")
_PROMPT_DONE = re.compile(r"task (-?\d+) \| prompt done, n_(?:past|tokens) = (\d+)")
_PROMPT = re.compile(rf"prompt eval time =\s*{_N} ms /\s*(\d+) tokens")
_EVAL = re.compile(rf"(?<!prompt )\beval time =\s*{_N} ms /\s*(\d+) (?:tokens|runs)")
_DRAFT = re.compile(rf"draft acceptance(?: rate)? =\s*{_N} \(\s*(\d+) accepted /\s*(\d+) generated\)(?:, mean len =\s*{_N})?")
_ALONE = "times of one slot: step times only if no other slot was working"
MAX_REQUESTS = 200_000


def matches(value: Mapping[str, Any]) -> bool:
    """An answer with its timings, or the timings alone."""
    inner = value.get("timings", value)
    if not isinstance(inner, Mapping) or "predicted_n" not in inner:
        return False
    return "predicted_ms" in inner or "predicted_per_second" in inner or ("prompt_n" in inner and "prompt_ms" in inner)


def drafts(value: Mapping[str, Any], _origin: Origin) -> Iterator[Draft]:
    """One run of one request."""
    timings: Mapping[str, Any] = value.get("timings", value)
    draft = _draft(NAME)
    set_fact(draft, "model", value.get("model"))
    if (stamp := text(value.get("system_fingerprint"))) is not None:
        draft.setup["engine_version"] = stamp.partition("-")[0]
    request = {key: whole(timings, key) for key in ("cache_n", "prompt_n", "predicted_n", "draft_n", "draft_n_accepted")}
    if request["prompt_n"] is not None:
        request["cache_n"] = request["cache_n"] or 0  # old servers do not reuse and do not say so
    times = {key: optional(timings, key, MILLI) for key in ("prompt_ms", "predicted_ms")}
    rate, filled = optional(timings, "predicted_per_second"), optional(timings, "prompt_per_second")
    agree("prompt_ms", times["prompt_ms"], (request["prompt_n"] or 0) / filled if filled else None)
    agree("predicted_ms", times["predicted_ms"], (request["predicted_n"] or 0) / rate if rate else None)
    if times["predicted_ms"] is None and rate and request["predicted_n"]:
        times["predicted_ms"] = request["predicted_n"] / rate
    _add(draft, request, times)
    if not draft.steps:
        raise MeasurementError("hold no prompt and no generated token: nothing was measured", path="timings")
    yield draft


def _draft(name: str) -> Draft:
    draft = Draft(name, needs=("model", "device"))
    draft.setup.update(engine="llama.cpp", tensor_parallel=1)
    draft.warnings.append(_ALONE)
    return draft


def _add(draft: Draft, request: Mapping[str, int | None], times: Mapping[str, float | None]) -> None:
    cached, prompt, predicted = request.get("cache_n"), request.get("prompt_n") or 0, request.get("predicted_n") or 0
    prompt_s, predicted_s = times.get("prompt_ms"), times.get("predicted_ms")
    if prompt and prompt_s:
        group = SequenceGroup(sequences=1, new_tokens=prompt, context_tokens=cached)
        draft.steps.append(StepObservation(kind=StepKind.PREFILL, groups=(group,), seconds=prompt_s))
    if predicted < 2 or not predicted_s:
        return
    drafted, accepted = request.get("draft_n") or 0, request.get("draft_n_accepted") or 0
    if drafted and accepted > drafted:
        raise MeasurementError("is above draft_n", path="draft_n_accepted", value=accepted)
    rounds = max(predicted - 1 - accepted, 1) if drafted else predicted - 1
    middle = None if cached is None else cached + prompt + (predicted - 2) / 2
    group = SequenceGroup(sequences=1, new_tokens=1 + drafted / rounds, context_tokens=middle)
    kind = StepKind.VERIFY if drafted else StepKind.DECODE
    draft.steps.append(StepObservation(kind=kind, groups=(group,), seconds=predicted_s / rounds, repeats=rounds))
    if drafted:
        found = {"acceptance_rate": fraction(accepted / drafted, "draft_n_accepted"), "acceptance_length": 1 + accepted / rounds}
        draft.serving.append(serving(found))


class LlamaServerLog:
    """Takes lines one by one; every request of the log adds its steps to one run."""

    def __init__(self) -> None:
        self._draft = _draft(LOG)
        self._draft.needs = ("model", "device")
        self._first_line: int | None = None
        self._prompt: tuple[int, float] | None = None
        self._eval: tuple[int, float] | None = None
        self._requests = 0
        self._task = ""
        self._filled: dict[str, int] = {}  # task → tokens in its slot when the prompt was done

    def feed(self, number: int, line: str) -> bool:
        """Take a line; True when it said something."""
        if "eval time =" in line:
            return self._time(number, line)
        if "draft acceptance" in line and (found := _DRAFT.search(line)):
            self._finish(accepted=int(found.group(2)), drafted=int(found.group(3)), length=found.group(4))
        elif "print_timing: id" in line or "general.name" in line or "prompt done" in line:
            self._header(line)
        return False

    def _header(self, line: str) -> None:
        if "print_timing: id" in line and "n_decoded" not in line:
            self._finish()
            found = _TASK.search(line)
            self._task = found.group(1) if found else ""
        elif found := _PROMPT_DONE.search(line):
            if len(self._filled) < 10_000:
                self._filled[found.group(1)] = int(found.group(2))
        elif found := re.search(r"general\.name\s+str\s*=\s*(.+)$", line):
            self._draft.setup.setdefault("model", found.group(1).strip())

    def _time(self, number: int, line: str) -> bool:
        if found := _PROMPT.search(line):
            self._finish()
            self._prompt = (int(found.group(2)), float(found.group(1)) * MILLI)
        elif found := _EVAL.search(line):
            self._eval = (int(found.group(2)), float(found.group(1)) * MILLI)
        else:
            return False
        self._first_line = self._first_line or number
        return True

    def _finish(self, accepted: int = 0, drafted: int = 0, length: str | None = None) -> None:
        if self._prompt is None and self._eval is None:
            if length is not None and drafted:
                rate = fraction(accepted / drafted, "draft acceptance")
                self._draft.serving.append(serving({"acceptance_length": float(length), "acceptance_rate": rate}))
            return
        self._requests += 1
        if self._requests <= MAX_REQUESTS:
            prompt, evaluated = self._prompt or (0, 0.0), self._eval or (0, 0.0)
            filled = self._filled.pop(self._task, None)
            cached = None if filled is None else max(filled - prompt[0], 0)
            request = {"cache_n": cached, "prompt_n": prompt[0], "predicted_n": evaluated[0], "draft_n": drafted}
            request["draft_n_accepted"] = min(accepted, drafted)
            _add(self._draft, request, {"prompt_ms": prompt[1], "predicted_ms": evaluated[1]})
        self._prompt = self._eval = None

    def drafts(self) -> list[Draft]:
        """The run, if the log held one."""
        self._finish()
        if self._requests > MAX_REQUESTS:
            self._draft.warnings.append(f"only the first {MAX_REQUESTS} of {self._requests} requests were taken")
        self._draft.line = self._first_line
        return [self._draft] if self._draft.steps or self._draft.serving else []
