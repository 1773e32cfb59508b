"""The only reader of ``serving_prior.json``: coefficients and prior widths from engineering estimates (see its source)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent / "serving_prior.json"


@cache
def _prior() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_FILE.read_bytes())
    return found


def step_coefficients() -> dict[str, float]:
    """Coefficient of each term of ``served_load.step_terms``."""
    return dict(_prior()["step"])


def first_token_coefficients() -> dict[str, float]:
    """Coefficient of each term of ``served_load.first_token_terms``."""
    return dict(_prior()["first_token"])


def kernel_widths() -> dict[str, Any]:
    """Standard deviations in log space by label, and the length of each feature; by metric ("step", "first_token") those that differ."""
    return dict(_prior()["kernel"])
