"""Planning with storage, and planning again to the same answer."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from planner.plan import Options, plan
from planner.ports import CalibrationStore, PlanStore, StoredPlan
from planner.stored_calibrations import CalibrationsUpTo, plain_json
from planner.what_if import WhatIf, what_if


def plan_and_store(
    raw: Mapping[str, Any], plans: PlanStore, calibrations: CalibrationStore, options: Options | None = None
) -> StoredPlan:  # fmt: skip
    """Plan with the calibrations stored by now, keep scenario, answer and what it rests on."""
    scenario = plain_json(raw, "scenario")
    horizon = calibrations.horizon()
    answer = plan(raw, replace(options or Options(), stored=CalibrationsUpTo(calibrations, horizon)))
    stored = StoredPlan(
        id=uuid.uuid4().hex, created_at=datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        scenario=scenario, answer=json.loads(answer.model_dump_json()), calibration=answer.calibration.name,
        calibration_version=answer.calibration.version, horizon=horizon, catalogue_version=answer.catalogue_version,
        schema_version=answer.schema_version,
    )  # fmt: skip
    plans.put(stored)
    return stored


def what_if_stored(
    stored: StoredPlan, changes: Sequence[tuple[str, Any]], calibrations: CalibrationStore, options: Options | None = None
) -> WhatIf:  # fmt: skip
    """What if, on a stored plan: both sides with the calibrations that the plan saw, whatever was stored since."""
    lookup = CalibrationsUpTo(calibrations, stored.horizon)
    return what_if(stored.scenario, changes, replace(options or Options(), explain=False, stored=lookup))
