"""/v1/plans: plan a scenario, read plans, ask what if."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from api import documents
from api.body import YAML_TYPES, scenario_of
from api.guard import refuse_files
from api.settings import Settings
from api.work import PlanWorkers
from db.database import Database
from models.describe.scenario import Scenario
from planner.plan import Options
from planner.ports import StoredPlan
from planner.scenario_file import parse_scenario, with_value
from planner.stored_plans import plan_and_store, what_if_stored
from planner.what_if import WhatIf

_REFUSED: dict[int | str, dict[str, Any]] = {
    status: {"model": documents.Problem, "description": text} for status, text in ((404, "No such plan"), (422, "The input cannot be used"))
}
_UNREADABLE: dict[int | str, dict[str, Any]] = {
    status: {"model": documents.Problem, "description": text}
    for status, text in ((400, "Malformed"), (413, "Too large"), (415, "Neither JSON nor YAML"), (503, "Busy"))
}
_SCENARIO_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"type": "object", "description": "A scenario, as in a scenario file"}},
            **{kind: {"schema": {"type": "string"}} for kind in YAML_TYPES},
        },
    }
}

Limit = Annotated[int, Query(ge=1, le=100)]
Offset = Annotated[int, Query(ge=0, le=2**31)]

router = APIRouter(prefix="/v1/plans", tags=["plans"])


def _database(request: Request) -> Database:
    found: Database = request.app.state.database
    return found


def _workers(request: Request) -> PlanWorkers:
    found: PlanWorkers = request.app.state.workers
    return found


def _options(request: Request) -> Options:
    settings: Settings = request.app.state.settings
    return Options(time_limit_s=settings.solver_time_limit_s)


@router.post(
    "", status_code=201, response_model=documents.PlanDocument, responses=_UNREADABLE | {422: _REFUSED[422]}, openapi_extra=_SCENARIO_BODY
)
async def create_plan(request: Request) -> Response:
    """Plan the scenario in the body (JSON or YAML), store and return it."""
    body, kind, database = await request.body(), request.headers.get("content-type", ""), _database(request)
    stored = await _workers(request).run(_create, body, kind, database, _options(request))
    return documents.sent(documents.plan_document(stored), 201, Location=f"/v1/plans/{stored.id}")


def _create(body: bytes, kind: str, database: Database, options: Options) -> StoredPlan:
    raw = scenario_of(body, kind)
    refuse_files(parse_scenario(raw))
    return plan_and_store(raw, database.plans, database.calibrations, options)


@router.get("", response_model=documents.PlanList)
def list_plans(request: Request, limit: Limit = 20, offset: Offset = 0) -> JSONResponse:
    """Plans, newest first."""
    found = _database(request).plans.list(limit=limit, offset=offset)
    return documents.sent({"items": [documents.plan_summary(one) for one in found], "limit": limit, "offset": offset})


@router.get("/{plan_id}", response_model=documents.PlanDocument, responses={404: _REFUSED[404]})
def read_plan(request: Request, plan_id: str) -> JSONResponse:
    """One plan with its scenario."""
    return documents.sent(documents.plan_document(_database(request).plans.get(plan_id)))


@router.get("/{plan_id}/configurations", response_model=documents.ConfigurationList, responses={404: _REFUSED[404]})
def list_configurations(
    request: Request, plan_id: str, feasible: bool | None = None, limit: Limit = 20, offset: Offset = 0
) -> JSONResponse:  # fmt: skip
    """The ranked configurations of a plan; ``feasible`` keeps those that are, or are not."""
    found = _database(request).plans.get(plan_id).answer["configurations"]
    kept = [one for one in found if feasible is None or one["feasible"] is feasible]
    return documents.sent({"items": kept[offset : offset + limit], "total": len(kept), "limit": limit, "offset": offset})


@router.post("/{plan_id}/what-if", response_model=WhatIf, responses=_UNREADABLE | _REFUSED)
async def what_if(request: Request, plan_id: str, changes: documents.Changes) -> Response:
    """The plan's scenario with and without some changes, both with the calibrations that the plan saw; nothing is stored."""
    text = await _workers(request).run(_what_if, plan_id, changes, _database(request), _options(request))
    return Response(text, media_type="application/json")


def _what_if(plan_id: str, changes: documents.Changes, database: Database, options: Options) -> str:
    stored = database.plans.get(plan_id)
    changed: dict[str, Any] = json.loads(json.dumps(stored.scenario))
    for path, value in changes.set.items():
        changed = with_value(changed, path, value)
    refuse_files(Scenario.parse(changed))
    return what_if_stored(stored, list(changes.set.items()), database.calibrations, options).model_dump_json()
