"""Measured runs on SQLAlchemy: ``planner.ports.RunStore``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import Engine, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from db.clock import now
from db.connect import one_writer, reading, writing
from db.rows import run_of, run_values
from db.tables import RunRow
from models.errors import NotStoredError
from planner.ports import Appended, RunFilter, StoredRun
from planner.records import RunRecord

_BATCH = 200
_ANY = RunFilter()


@dataclass(frozen=True)
class SqlRuns:
    """Append-only: there is no way here to change or delete a run."""

    engine: Engine

    def append(self, runs: Iterable[RunRecord]) -> Appended:
        """All or none, in one transaction; a known content is skipped. Streams its input in batches and keeps none of it."""
        added_at, waiting = now(), iter(runs)
        ids: list[int | None] = []
        with writing(self.engine) as session:
            one_writer(session, RunRow)
            while batch := list(islice(waiting, _BATCH)):
                ids += _insert(session, batch, added_at)
        return Appended(added_at, tuple(ids))

    def get(self, run_id: int) -> StoredRun:
        with reading(self.engine) as session:
            row = session.get(RunRow, run_id)
            if row is None:
                raise NotStoredError("no such run", path="run", value=run_id, way_out="list the runs")
            return run_of(row)

    def known(self, hashes: Iterable[str]) -> frozenset[str]:
        waiting, found = iter(hashes), set[str]()
        with reading(self.engine) as session:
            while batch := list(islice(waiting, _BATCH)):
                found.update(session.scalars(select(RunRow.content_hash).where(RunRow.content_hash.in_(batch))))
        return frozenset(found)

    def list(self, which: RunFilter = _ANY, *, limit: int | None = None, offset: int = 0) -> Iterator[StoredRun]:
        """Oldest first, streamed."""
        query = select(RunRow).order_by(RunRow.id).limit(limit).offset(offset or None)
        for name in ("model", "device", "engine", "precision", "format"):
            wanted = getattr(which, name)
            query = query if wanted is None else query.where(getattr(RunRow, name) == wanted)
        with reading(self.engine) as session:
            for row in session.scalars(query.execution_options(yield_per=_BATCH)):
                yield run_of(row)


def _insert(session: Session, batch: list[RunRecord], added_at: str) -> list[int | None]:
    """The database decides what is new; within a batch the first of equal contents counts."""
    by_hash: dict[str, RunRecord] = {}
    for record in batch:
        by_hash.setdefault(record.content_hash, record)
    values = [run_values(record, added_at) for record in by_hash.values()]
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    statement = insert(RunRow).on_conflict_do_nothing(index_elements=["content_hash"]).returning(RunRow.id, RunRow.content_hash)
    new = {row.content_hash: row.id for row in session.execute(statement, values)}
    return [new.pop(record.content_hash, None) for record in batch]
