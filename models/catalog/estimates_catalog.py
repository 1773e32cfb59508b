"""Memory that no description determines, with source and spread: the only code that reads ``estimates.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from models.describe.hardware import Device

_FILE = Path(__file__).parent / "estimates.json"


@dataclass(frozen=True, slots=True)
class Guess:
    """``bytes`` with a standard deviation ``sd``."""

    bytes: int
    sd: float


@cache
def estimates() -> dict[str, Any]:
    """The whole file."""
    found: dict[str, Any] = json.loads(_FILE.read_bytes())
    return found


def guess(name: str) -> Guess:
    """A plain amount: ``non_torch``, ``context``, ``distributed``."""
    entry = estimates()[name]
    return Guess(int(entry["bytes"]), float(entry["sd_bytes"]))


def visible_memory(device: Device) -> Guess:
    """What the runtime shows an engine: as logged for this card, else the driver's total less what drivers keep on other cards."""
    logged = estimates()["visible"]["bytes"].get(device.id)
    if logged is not None:
        return Guess(int(logged), float(logged) * 1e-3)
    reserve = estimates()["driver_reserve"]
    if device.memory_known and device.name.lower().startswith(tuple(reserve["vendor_words"])):
        return Guess(device.memory_bytes - int(reserve["bytes"]), float(reserve["sd_bytes"]))
    return Guess(device.memory_bytes, 0.02 * device.memory_bytes)
