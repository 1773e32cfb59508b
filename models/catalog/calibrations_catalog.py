"""The calibrations that ship with the package: one JSON file each, with sources. Only reading."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from models.describe.calibration import Calibration
from models.errors import UnknownNameError

_FOLDER = Path(__file__).parent / "calibrations"
SPECIFICATION = "none"


@cache
def calibration_names() -> tuple[str, ...]:
    """Names of the shipped calibrations."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


@cache
def load_calibration(name: str) -> Calibration:
    """The shipped calibration of that name; ``none`` is the specification alone."""
    if name not in calibration_names():
        raise UnknownNameError.suggest("calibration", name, [*calibration_names(), "latest"], path="calibration")
    return Calibration.parse(json.loads((_FOLDER / f"{name}.json").read_bytes()), f"calibration {name}")
