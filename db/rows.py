"""Row to record and back; nothing is computed here."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from db.tables import CalibrationRow, PlanRow, RunRow
from models.errors import StorageError
from planner.ports import StoredCalibration, StoredPlan, StoredRun
from planner.records import RunRecord
from planner.stored_calibrations import plain_json

RECORD_VERSION = 1
"""Layout of a stored run; a reader of an older one belongs into ``run_of``."""


def run_values(record: RunRecord, added_at: str) -> dict[str, Any]:
    """Column values of a run."""
    setup = record.setup
    return {
        "added_at": added_at, "content_hash": record.content_hash, "record_version": RECORD_VERSION, "format": record.format,
        "model": setup.model, "device": setup.device, "engine": setup.engine, "precision": setup.precision,
        "document": record.model_dump(mode="json"),
    }  # fmt: skip


def run_of(row: RunRow) -> StoredRun:
    """A stored run."""
    if row.record_version != RECORD_VERSION:
        raise StorageError(
            "a run was written by a newer goodput", path=f"runs.{row.id}", value=row.record_version, way_out="install that version"
        )
    try:
        record = RunRecord.model_validate(row.document)
    except ValidationError as error:
        raise StorageError(f"a stored run cannot be read: {error.errors()[0]['msg']}", path=f"runs.{row.id}") from None
    return StoredRun(id=row.id, added_at=row.added_at, record=record)


def calibration_of(row: CalibrationRow, run_ids: tuple[int, ...]) -> StoredCalibration:
    """A stored calibration."""
    return StoredCalibration(row.number, row.name, row.version, row.created_at, row.document, run_ids)


def plan_row(plan: StoredPlan) -> PlanRow:
    """Row of a plan."""
    return PlanRow(
        id=plan.id, created_at=plan.created_at, calibration=plan.calibration, calibration_version=plan.calibration_version,
        horizon=plan.horizon, catalogue_version=plan.catalogue_version, schema_version=plan.schema_version,
        scenario=plain_json(plan.scenario, "scenario"), answer=plain_json(plan.answer, "answer"),
    )  # fmt: skip


def plan_of(row: PlanRow) -> StoredPlan:
    """A stored plan."""
    return StoredPlan(
        id=row.id, created_at=row.created_at, scenario=row.scenario, answer=row.answer, calibration=row.calibration,
        calibration_version=row.calibration_version, horizon=row.horizon, catalogue_version=row.catalogue_version,
        schema_version=row.schema_version,
    )  # fmt: skip
