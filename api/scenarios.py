"""Scenarios from a terminal: a file or standard input, changed by ``--set``; the options of a search checked."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from models.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from planner.plan import Options
    from planner.resolve import CalibrationLookup

STANDARD_INPUT = "-"
_LONGEST_S = 86_400.0


def read(path: str, assignments: Sequence[str] = (), calibration: str | None = None) -> dict[str, Any]:
    """Raw scenario data of a file (``-``: standard input) with every ``PATH=VALUE`` applied in order."""
    from models.readers.yaml_text import LARGEST_FILE
    from planner.scenario_file import parse_assignment, parse_raw, read_raw, with_value

    if path == STANDARD_INPUT:
        data = sys.stdin.buffer.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise FileFormatError("scenario is larger than 1 MiB", path="standard input", way_out="a scenario is a page of YAML")
        try:
            raw = parse_raw(data.decode("utf-8"), "standard input")
        except UnicodeDecodeError:
            raise FileFormatError("is not UTF-8 text", path="standard input", way_out="send YAML or JSON text") from None
    else:
        raw = read_raw(path)
    for text in assignments:
        raw = with_value(raw, *parse_assignment(text))
    return raw if calibration is None else raw | {"calibration": calibration}


def options(*, time_limit: float, proof: bool, explain: bool = True, stored: CalibrationLookup | None = None) -> Options:
    """Search options; a limit that is no duration is refused."""
    from planner.plan import Options

    if not (math.isfinite(time_limit) and 0 < time_limit <= _LONGEST_S):
        raise InputError(
            "must be above 0 and at most a day, in seconds", path="--time-limit", value=time_limit, way_out="write for example 30"
        )
    return Options(time_limit_s=time_limit, prove=proof, explain=explain, stored=stored)


def changed(raw: dict[str, Any], changes: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """``raw`` with every change applied in order."""
    from planner.scenario_file import with_value

    for path, value in changes:
        raw = with_value(raw, path, value)
    return raw


def rate(text: str | None) -> float | None:
    """A rate such as ``8 /s``; a bare number is meant a second."""
    if text is None:
        return None
    from models.units import parse_rate

    return parse_rate(f"{text} /s" if text.replace(".", "", 1).isdecimal() else text, "--rate")


MOST_VALUES = 200


def parse_sweep(text: str) -> tuple[str, list[Any]]:
    """``PATH=a,b,c`` to the path and its values, each read as a single value of ``--set`` is."""
    from planner.scenario_file import parse_assignment

    path, separator, listed = text.partition("=")
    words = [word.strip() for word in listed.split(",")]
    if not separator or not path.strip() or not all(words):
        raise InputError("expected PATH=A,B,C", path="--sweep", value=text, way_out="write for example hardware.kv_budget=6GiB,9GiB,12GiB")
    if len(words) > MOST_VALUES:
        raise InputError(f"more than {MOST_VALUES} values", path="--sweep", value=len(words), way_out="sweep in parts")
    return path.strip(), [parse_assignment(f"{path}={word}", "--sweep")[1] for word in words]
