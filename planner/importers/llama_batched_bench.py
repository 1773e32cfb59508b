"""``llama-batched-bench``: ``pl`` sequences prefilled with ``pp`` tokens each and decoded together for ``tg`` steps; seconds, no sampling.

JSON lines (``--output-format jsonl``) or the table that it prints, whose settings stand above it. The mean decode step stands in the
middle. With ``is_pp_shared`` one prompt is prefilled and all sequences read its cells: that decode step is no step of separate contexts.
The model is not named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from models.errors import GoodputError
from planner.importers.common import Draft, MeasurementError, Origin, optional, required, whole
from planner.importers.facts import set_fact
from planner.importers.plausible import agree
from planner.records import Arrival, SequenceGroup, StepKind, StepObservation

NAME = "llama-batched-bench"
_FLAGS = ("n_batch", "n_ubatch", "n_threads", "n_threads_batch", "n_gpu_layers", "flash_attn")
_HEADER = ("PP", "TG", "B", "N_KV", "T_PP s", "S_PP t/s", "T_TG s", "S_TG t/s", "T s", "S t/s")
_KEYS = ("pp", "tg", "pl", "n_kv", "t_pp", "speed_pp", "t_tg", "speed_tg", "t", "speed")
_SETTINGS = re.compile(r"\b(n_kv_max|n_batch|n_ubatch|flash_attn|is_pp_shared|n_gpu_layers|n_threads|n_threads_batch) = (-?\d+)")


def matches(value: Mapping[str, Any]) -> bool:
    """Counts of tokens and sequences beside both times."""
    return {"pp", "tg", "pl", "t_pp", "t_tg"} <= value.keys()


def drafts(value: Mapping[str, Any], _origin: Origin) -> Iterator[Draft]:
    """One run: a prefill and a decode step."""
    draft = Draft(NAME)
    draft.setup.update(engine="llama.cpp", tensor_parallel=1)
    for key in _FLAGS:
        set_fact(draft, key, value.get(key))
    prompt, steps, sequences = (whole(value, key) or 0 for key in ("pp", "tg", "pl"))
    shared = bool(optional(value, "is_pp_shared"))
    if not sequences or not (prompt or steps):
        raise MeasurementError("nothing was computed", path="pl", value=sequences)
    draft.workload.update(
        arrival=Arrival.OFFLINE, prompt_tokens=prompt or None, output_tokens=steps or None, requests=sequences, concurrency=sequences
    )
    if prompt:
        rows = prompt * (1 if shared else sequences)
        seconds = _time(value, "t_pp", "speed_pp", rows)
        group = SequenceGroup(sequences=rows // prompt, new_tokens=rows, context_tokens=0)
        parts = -(-rows // (whole(value, "n_ubatch") or rows))
        draft.steps.append(StepObservation(kind=StepKind.PREFILL, groups=(group,), seconds=seconds, parts=parts))
    if steps and not shared:
        seconds = _time(value, "t_tg", "speed_tg", sequences * steps) / steps
        middle = sequences * (prompt + (steps - 1) / 2)
        group = SequenceGroup(sequences=sequences, new_tokens=sequences, context_tokens=middle)
        draft.steps.append(StepObservation(kind=StepKind.DECODE, groups=(group,), seconds=seconds, repeats=steps))
    elif steps:
        draft.warnings.append("all sequences read one prompt: the decode step is not used")
    yield draft


def _time(value: Mapping[str, Any], key: str, speed: str, tokens: int) -> float:
    seconds = required(value, key)
    if seconds == 0:
        raise MeasurementError("is zero and cannot be a measurement", path=key)
    rate = optional(value, speed)
    agree(key, seconds, tokens / rate if rate else None)
    return seconds


class LlamaBatchedBenchTable:
    """Takes the lines of a printout one by one; each row of the table is a run."""

    def __init__(self) -> None:
        self._settings: dict[str, str] = {}
        self._inside = False
        self._rows: list[tuple[int, dict[str, str]]] = []

    def feed(self, number_of_line: int, line: str) -> bool:
        """Take a line; True when it said something."""
        if not line.startswith("|"):
            if "n_kv_max" in line and (found := dict(_SETTINGS.findall(line))):
                self._settings = found
            return False
        cells = tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
        if "PP" in cells or len(cells) != len(_HEADER):
            self._inside = cells == _HEADER
            return False
        if not self._inside or set(line) <= set("|- "):
            return False
        self._rows.append((number_of_line, dict(zip(_KEYS, cells, strict=True)) | self._settings))
        return True

    def drafts(self) -> Iterator[Draft]:
        """The runs; a row that cannot be read costs only itself."""
        for line, values in self._rows:
            try:
                draft = next(drafts(values, Origin("", "")))
            except GoodputError as error:
                draft = Draft(NAME)
                draft.problem = MeasurementError(str(error))
            draft.line, draft.coarse = line, True
            yield draft
