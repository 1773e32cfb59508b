"""The charts of a plan as a file: those of a burst in closed form, or those of simulated traffic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planner.answer import Answer
from planner.charts import burst, traffic
from planner.charts.style import render
from planner.resolve import CalibrationLookup


def draw(
    raw: Mapping[str, Any], answer: Answer, suffix: str, stored: CalibrationLookup | None = None,
    step: Callable[[float], None] = lambda _: None,
) -> bytes:  # fmt: skip
    """The bytes of a ``.png``, ``.svg`` or self-contained ``.html`` file; ``step`` hears the share that is done."""
    if any(one.simulated is not None for one in answer.configurations):
        return render(traffic.specification(raw, answer), suffix)
    return render(burst.specification(raw, answer, stored, step), suffix)
