"""Stored calibrations in use: what may be stored, and what a plan may see."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from models.calibration.document import from_document
from models.calibration.posterior import Posterior
from models.catalog.calibrations_catalog import calibration_names
from models.describe.calibration import Calibration
from models.errors import InputError, NotStoredError
from planner.ports import CalibrationStore, StoredCalibration

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_LATEST = "latest"


def checked_document(name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """What may be stored as a calibration: a name that can be asked for and no shipped one has, a usable description, plain JSON."""
    if not _NAME.fullmatch(name):
        raise InputError("is not a name for a calibration", path="name", value=name, way_out="use up to 100 letters, digits and . _ + -")
    if name in (_LATEST, *calibration_names()):
        raise InputError("is taken by a calibration that ships with goodput", path="name", value=name, way_out="choose another name")
    description = document.get("calibration")
    Calibration.parse({**description, "name": name, "version": "0"} if isinstance(description, Mapping) else description, "calibration")
    return plain_json(document, "calibration")


def plain_json(raw: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A copy through JSON; what JSON cannot hold (dates, NaN, sets) is refused."""
    try:
        copied: dict[str, Any] = json.loads(json.dumps(dict(raw), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"holds a value that JSON cannot ({error})", path=path, way_out="use text, numbers, lists and mappings") from None
    return copied


def calibration_of(stored: StoredCalibration) -> Calibration:
    """The description inside, under the store's own name and version."""
    return Calibration.parse(
        {**stored.document["calibration"], "name": stored.name, "version": str(stored.version)}, f"calibration {stored.name}"
    )


@dataclass(frozen=True)
class CalibrationsUpTo:
    """The stored calibrations up to ``horizon``: a ``CalibrationLookup`` that gives the same for ever, as the store only grows."""

    store: CalibrationStore
    horizon: int

    def named(self, name: str, /) -> Calibration | None:
        if name in calibration_names():
            return None
        plain, at, version = name.partition("@")
        if not at:
            return next((one for one in self._newest if one.name == plain), None)
        if not version.isdecimal() or len(version) > 9:
            raise InputError("is not a version", path="calibration", value=name, way_out="write NAME@NUMBER")
        return self._version(plain, int(version))

    def newest(self) -> tuple[Calibration, ...]:
        return self._newest

    def posterior(self, calibration: Calibration, /) -> Posterior | None:
        if calibration.name in calibration_names():
            return None
        document = self.store.get(calibration.name, int(calibration.version)).document
        return from_document(document["fit"]) if "fit" in document else None

    @cached_property
    def _newest(self) -> tuple[Calibration, ...]:
        found: dict[str, Calibration] = {}
        for stored in self.store.newest(horizon=self.horizon):
            if stored.name not in found:
                found[stored.name] = calibration_of(stored)
        return tuple(found.values())

    def _version(self, name: str, version: int) -> Calibration:
        found = self.store.get(name, version)
        if found.number > self.horizon:
            raise NotStoredError(
                "this version is younger than the plan", path="calibration", value=f"{name}@{version}", way_out="plan anew"
            )
        return calibration_of(found)
