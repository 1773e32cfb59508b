"""The way into this room: one database with its three stores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, text

from db.calibrations import SqlCalibrations
from db.connect import make_engine, reading, sqlite_url
from db.migrate import HEAD, revision, upgrade
from db.plans import SqlPlans
from db.runs import SqlRuns
from models.errors import StorageError

FILE = "goodput.db"


@dataclass(frozen=True)
class Database:
    """Stores over one engine; safe to share between threads, to be opened anew in a forked process."""

    engine: Engine
    runs: SqlRuns
    calibrations: SqlCalibrations
    plans: SqlPlans

    def check(self) -> None:
        """Raise ``StorageError`` unless the database answers and has this version's tables."""
        with reading(self.engine) as session:
            session.execute(text("SELECT 1"))
        if (found := revision(self.engine)) != HEAD:
            raise StorageError("the database has other tables than this version", value=found, way_out="restart goodput")

    def close(self) -> None:
        """Give every connection back."""
        self.engine.dispose()


def database_url(home: Path, url: str | None = None) -> str:
    """``url`` where one is set, else the file under ``home``."""
    return url or sqlite_url(home / FILE)


def open_database(url: str) -> Database:
    """Open and migrate; any number of processes may do so at once."""
    engine = make_engine(url)
    try:
        upgrade(engine)
    except BaseException:
        engine.dispose()
        raise
    return Database(engine, SqlRuns(engine), SqlCalibrations(engine), SqlPlans(engine))
