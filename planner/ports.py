"""What storage must offer to the use cases. Implementations live outside this room.

Runs and calibrations are append-only: nothing here changes or deletes what was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from planner.records import RunRecord


@dataclass(frozen=True)
class StoredRun:
    """A run as stored: its identity and when it came in (UTC, ISO 8601)."""

    id: int
    added_at: str
    record: RunRecord


@dataclass(frozen=True)
class Appended:
    """What an append did: for each of its runs in turn the new identity, or None where the content was known."""

    added_at: str
    ids: tuple[int | None, ...]


@dataclass(frozen=True)
class RunFilter:
    """Which runs to list; ``None`` means any. Names compare exactly."""

    model: str | None = None
    device: str | None = None
    engine: str | None = None
    precision: str | None = None
    format: str | None = None


@dataclass(frozen=True)
class StoredCalibration:
    """One version of a calibration and the runs it was fitted on.

    ``document["calibration"]`` is a ``models.describe.calibration.Calibration`` (its name and version are set by the store);
    what else the document holds (covariance, residuals) belongs to the fit. ``number`` grows with every append to the store.
    """

    number: int
    name: str
    version: int
    created_at: str
    document: Mapping[str, Any]
    run_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class StoredPlan:
    """A plan with what it needs to be run again to the same answer.

    ``scenario`` is as it was asked; ``horizon`` is the number of the newest stored calibration that the plan could see, so that
    ``latest`` and names without a version mean the same again.
    """

    id: str
    created_at: str
    scenario: Mapping[str, Any]
    answer: Mapping[str, Any]
    calibration: str
    calibration_version: str
    horizon: int
    catalogue_version: str
    schema_version: str


@runtime_checkable
class RunStore(Protocol):
    """Measured runs, append-only."""

    def append(self, runs: Iterable[RunRecord]) -> Appended:
        """Store all of ``runs`` or none (one transaction); a known ``content_hash`` is skipped."""
        ...

    def get(self, run_id: int) -> StoredRun:
        """Raises ``NotStoredError``."""
        ...

    def known(self, hashes: Iterable[str]) -> frozenset[str]:
        """Those of the content hashes that are stored."""
        ...

    def list(self, which: RunFilter = ..., *, limit: int | None = None, offset: int = 0) -> Iterator[StoredRun]:
        """Oldest first."""
        ...


@runtime_checkable
class CalibrationStore(Protocol):
    """Calibrations by name, each with growing versions, append-only."""

    def append(self, name: str, document: Mapping[str, Any], run_ids: Iterable[int]) -> StoredCalibration:
        """Store the next version of ``name``; unknown runs and names that cannot be asked for again are an ``InputError``."""
        ...

    def get(self, name: str, version: int | None = None) -> StoredCalibration:
        """A version, the newest by default. Raises ``NotStoredError``."""
        ...

    def newest(self, name: str | None = None, *, horizon: int | None = None) -> Iterator[StoredCalibration]:
        """Of that name or any, newest first, none beyond ``horizon``."""
        ...

    def horizon(self) -> int:
        """Number of the newest calibration, 0 when there is none."""
        ...

    def list(self) -> Iterator[StoredCalibration]:
        """Every version, oldest first."""
        ...


@runtime_checkable
class PlanStore(Protocol):
    """Finished plans."""

    def put(self, plan: StoredPlan) -> None:
        """Store a plan; an id is written once."""
        ...

    def get(self, plan_id: str) -> StoredPlan:
        """Raises ``NotStoredError``."""
        ...

    def list(self, *, limit: int | None = None, offset: int = 0) -> Iterator[StoredPlan]:
        """Newest first."""
        ...
