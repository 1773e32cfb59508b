"""From which stored calibrations a new one may borrow: its own device, devices of the same chip, of the same family, any device.

The nearest speak last: each circle's calibrations narrow the prior that the wider circle left (``models.calibration.posterior.borrow``),
and how far members of a circle differ among themselves is how far the new one may differ from them. From another device at most one
calibration is taken, of the same model where it has one, so that many models on one device do not pass for many devices.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

from models.calibration.document import from_document
from models.calibration.posterior import Posterior, borrow
from models.calibration.prior import Prior
from models.catalog.devices import load_device
from models.errors import UnknownNameError
from planner.ports import StoredCalibration
from planner.run_groups import Key

CIRCLES = ("another device", "same family", "same chip", "same device")
"""From the widest to the nearest."""


@dataclass(frozen=True)
class Relative:
    """A stored fit and how near it is: one of ``CIRCLES``."""

    name: str
    version: int
    circle: str
    device: str
    posterior: Posterior

    def __str__(self) -> str:
        where = self.circle if self.circle == CIRCLES[-1] else f"{self.circle}: {self.device}"
        return f"{self.name}@{self.version} ({where})"


def relatives_of(key: Key, known: Iterable[StoredCalibration]) -> tuple[Relative, ...]:
    """Relatives of ``key`` among ``known`` (newest first), the nearest first: same engine and use of graphs, its own fits left out."""
    found: dict[tuple[str, ...], Relative] = {}
    told = _own_evidence(known)
    for stored in sorted(told, key=lambda s: s.document.get("calibration", {}).get("model") != key.model):  # stable: newest first
        described = stored.document.get("calibration", {})
        device = described.get("device")
        if "fit" not in stored.document or any(described.get(n) != getattr(key, n) for n in ("engine", "cuda_graphs")):
            continue
        circle = _circle(key.device, device)
        own = circle == CIRCLES[-1]
        same = all(described.get(n) == getattr(key, n) for n in ("model", "weight_format", "tensor_parallel"))
        if device is None or (own and same):
            continue
        one = (stored.name,) if own else ("device", device)
        found.setdefault(one, Relative(stored.name, stored.version, circle, device, from_document(stored.document["fit"])))
    return tuple(sorted(found.values(), key=lambda r: -CIRCLES.index(r.circle)))


def _own_evidence(known: Iterable[StoredCalibration]) -> list[StoredCalibration]:
    """``known`` without versions that differ from the one before by their lenders alone: else two groups lend to and fro for ever."""
    kept: list[StoredCalibration] = []
    before: dict[str, StoredCalibration] = {}
    for stored in reversed(tuple(known)):  # oldest first
        last = before.get(stored.name)
        borrowed_only = last is not None and last.run_ids == stored.run_ids and _lenders(last) != _lenders(stored)
        kept += [] if borrowed_only else [stored]
        before[stored.name] = stored
    return kept[::-1]


def _lenders(stored: StoredCalibration) -> list[str]:
    return list(stored.document.get("borrowed_from", ()))


def _circle(device: str, other: str | None) -> str:
    if device == other:
        return CIRCLES[-1]
    try:
        mine, theirs = load_device(device), load_device(other or "")
    except UnknownNameError:  # a calibration from a catalogue that named other devices
        return CIRCLES[0]
    if mine.architecture == theirs.architecture:
        return CIRCLES[2]
    return CIRCLES[1] if mine.family == theirs.family else CIRCLES[0]


def borrowed(relatives: Iterable[Relative], specification: Prior) -> Prior:
    """The specification narrowed by each circle in turn."""
    circles = [[r.posterior for r in relatives if r.circle == circle] for circle in CIRCLES]
    return reduce(lambda prior, members: borrow(members, prior), circles, specification)
