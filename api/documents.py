"""What REST returns beside the planner's own answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from planner.answer import Answer, Ranked
from planner.ports import StoredPlan


class Document(BaseModel):
    """A frozen piece of a response or a request; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PlanDocument(Document):
    """A stored plan. ``answer`` is what ``goodput plan --json`` prints; ``scenario`` is what was asked."""

    id: str
    created_at: str
    scenario: dict[str, Any]
    answer: Answer


class PlanSummary(Document):
    """A plan in a list."""

    id: str
    created_at: str
    model: str
    device: str
    engine: str
    status: str
    winner: str | None
    calibration: str
    calibration_version: str


class PlanList(Document):
    """Newest first."""

    items: list[PlanSummary]
    limit: int
    offset: int


class ConfigurationList(Document):
    """Configurations of a plan in the order of their rank; ``total`` counts those that the filter lets through."""

    items: list[Ranked]
    total: int
    limit: int
    offset: int


class Changes(Document):
    """What to change: scenario path to value, as ``--set`` of the command line."""

    set: Annotated[dict[str, Any], Field(min_length=1, examples=[{"hardware.kv_budget": "6 GiB"}])]


class Problem(BaseModel):
    """RFC 9457 problem details."""

    type: str
    title: str
    status: int
    detail: str
    path: str | None
    value: str | int | bool | None
    way_out: str | None


def plan_document(stored: StoredPlan) -> dict[str, Any]:
    """JSON of a stored plan; the answer as it was stored, to the last digit."""
    return {"id": stored.id, "created_at": stored.created_at, "scenario": stored.scenario, "answer": stored.answer}


def plan_summary(stored: StoredPlan) -> dict[str, Any]:
    """JSON of a plan in a list."""
    answer = stored.answer
    first: list[Mapping[str, Any]] = [one for one in answer["configurations"][:1] if one["feasible"]]
    scenario = stored.scenario
    return {
        "id": stored.id, "created_at": stored.created_at, "model": scenario["model"], "device": scenario["hardware"]["device"],
        "engine": answer["engine"], "status": answer["status"], "winner": first[0]["id"] if first else None,
        "calibration": stored.calibration, "calibration_version": stored.calibration_version,
    }  # fmt: skip


def sent(content: Any, status: int = 200, **headers: str) -> JSONResponse:
    """A response that is sent as it is, without a second validation."""
    return JSONResponse(content, status, headers=headers)
