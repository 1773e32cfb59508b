"""Calibrations on SQLAlchemy: ``planner.ports.CalibrationStore``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, Select, func, select
from sqlalchemy.orm import Session

from db.clock import now
from db.connect import one_writer, reading, writing
from db.rows import calibration_of
from db.tables import CalibrationRow, CalibrationRunRow, RunRow
from models.errors import InputError, NotStoredError
from planner.ports import StoredCalibration
from planner.stored_calibrations import checked_document

_BATCH = 100


@dataclass(frozen=True)
class SqlCalibrations:
    """Append-only; numbers and versions grow in the order of the commits."""

    engine: Engine

    def append(self, name: str, document: Mapping[str, Any], run_ids: Iterable[int]) -> StoredCalibration:
        """The next version of ``name`` with its runs, in one transaction."""
        content = checked_document(name, document)
        runs = sorted(set(run_ids))
        with writing(self.engine) as session:
            one_writer(session, CalibrationRow)
            _require_runs(session, runs)
            newest = session.scalar(select(func.max(CalibrationRow.version)).where(CalibrationRow.name == name))
            row = CalibrationRow(name=name, version=(newest or 0) + 1, created_at=now(), document=content)
            session.add(row)
            session.flush()
            session.add_all(CalibrationRunRow(calibration=row.number, run=run) for run in runs)
            return calibration_of(row, tuple(runs))

    def get(self, name: str, version: int | None = None) -> StoredCalibration:
        query = select(CalibrationRow).where(CalibrationRow.name == name).order_by(CalibrationRow.version.desc()).limit(1)
        if version is not None:
            query = query.where(CalibrationRow.version == version)
        for found in self._read(query):
            return found
        wanted = name if version is None else f"{name}@{version}"
        raise NotStoredError("no such stored calibration", path="calibration", value=wanted, way_out="list the calibrations")

    def newest(self, name: str | None = None, *, horizon: int | None = None) -> Iterator[StoredCalibration]:
        query = select(CalibrationRow).order_by(CalibrationRow.number.desc())
        query = query if name is None else query.where(CalibrationRow.name == name)
        return self._read(query if horizon is None else query.where(CalibrationRow.number <= horizon))

    def horizon(self) -> int:
        with reading(self.engine) as session:
            return session.scalar(select(func.max(CalibrationRow.number))) or 0

    def list(self) -> Iterator[StoredCalibration]:
        return self._read(select(CalibrationRow).order_by(CalibrationRow.number))

    def _read(self, query: Select[CalibrationRow]) -> Iterator[StoredCalibration]:
        with reading(self.engine) as session:
            for rows in session.scalars(query.execution_options(yield_per=_BATCH)).partitions(_BATCH):
                runs = _runs_of(session, rows)
                yield from (calibration_of(row, tuple(runs[row.number])) for row in rows)


def _runs_of(session: Session, rows: Sequence[CalibrationRow]) -> Mapping[int, Sequence[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    query = select(CalibrationRunRow).where(CalibrationRunRow.calibration.in_([row.number for row in rows])).order_by(CalibrationRunRow.run)
    for link in session.scalars(query):
        found[link.calibration].append(link.run)
    return found


def _require_runs(session: Session, run_ids: Sequence[int]) -> None:
    """Runs are named before the foreign key would refuse them without a name."""
    for start in range(0, len(run_ids), _BATCH):
        wanted = run_ids[start : start + _BATCH]
        known = set(session.scalars(select(RunRow.id).where(RunRow.id.in_(wanted))))
        for run in wanted:
            if run not in known:
                raise InputError("no such run", path="run_ids", value=run, way_out="list the runs")
