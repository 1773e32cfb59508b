"""Plans on SQLAlchemy: ``planner.ports.PlanStore``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Engine, select

from db.connect import reading, writing
from db.rows import plan_of, plan_row
from db.tables import PlanRow
from models.errors import NotStoredError
from planner.ports import StoredPlan

_BATCH = 20


@dataclass(frozen=True)
class SqlPlans:
    """Finished plans, each written once."""

    engine: Engine

    def put(self, plan: StoredPlan) -> None:
        row = plan_row(plan)
        with writing(self.engine) as session:
            session.add(row)

    def get(self, plan_id: str) -> StoredPlan:
        with reading(self.engine) as session:
            row = session.scalar(select(PlanRow).where(PlanRow.id == plan_id))
            if row is None:
                raise NotStoredError("no such plan", path="plan", value=plan_id, way_out="list the plans")
            return plan_of(row)

    def list(self, *, limit: int | None = None, offset: int = 0) -> Iterator[StoredPlan]:
        query = select(PlanRow).order_by(PlanRow.number.desc()).limit(limit).offset(offset or None)
        with reading(self.engine) as session:
            for row in session.scalars(query.execution_options(yield_per=_BATCH)):
                yield plan_of(row)
