"""Engines and transactions: SQLite (WAL) in a file, PostgreSQL by URL. Every database error leaves here as a ``StorageError``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Session

from models.errors import InputError, StorageError

BUSY_TIMEOUT_MS = 30_000
"""How long a SQLite writer waits for another one."""

_WRITES = "goodput_writes"
_ADVICE = {
    "database is locked": "another process writes: try again when it is done",
    "disk is full": "free some space; nothing of this was stored",
    "readonly": "it can be read, not written: use another GOODPUT_HOME",
    "not a database": "restore a copy, or use another GOODPUT_HOME",
    "malformed": "restore a copy, or use another GOODPUT_HOME",
}


def sqlite_url(file: Path) -> str:
    """URL of a database file."""
    return f"sqlite:///{file}"


def make_engine(url: str) -> Engine:
    """An engine for ``sqlite:///FILE`` or ``postgresql://…``; nothing is opened yet."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise _bad_url() from None
    family = parsed.get_backend_name()
    if family == "sqlite" and parsed.database:
        return _sqlite(parsed.database)
    if family not in {"postgresql", "postgres"}:
        raise _bad_url()
    try:
        return create_engine(
            parsed.set(drivername="postgresql+psycopg"), json_serializer=_to_json, pool_pre_ping=True, connect_args={"connect_timeout": 10}
        )
    except ModuleNotFoundError:
        raise StorageError(
            "PostgreSQL needs the package psycopg", path="GOODPUT_DATABASE_URL", way_out="install goodput-planner[postgres]"
        ) from None


def _bad_url() -> InputError:
    """The URL itself may hold a password and is not repeated."""
    return InputError(
        "is not a database URL that is known", path="GOODPUT_DATABASE_URL", way_out="write postgresql://user:password@host/name"
    )


def _to_json(value: Any) -> str:
    """ASCII with every special character escaped, exact floats, never NaN."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _sqlite(database: str) -> Engine:
    file = Path(database)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"the folder cannot be made ({error.strerror})", path=str(file.parent), way_out="set GOODPUT_HOME") from None
    only_read = _only_readable(file)
    url = f"{sqlite_url(Path(f'file:{quote(str(file))}'))}?mode=ro&immutable=1&uri=true" if only_read else sqlite_url(file)
    engine = create_engine(url, json_serializer=_to_json, connect_args={"timeout": BUSY_TIMEOUT_MS / 1e3})
    if not only_read:
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
    return engine


def _only_readable(file: Path) -> bool:
    """Whether a database lies where nothing can be written: WAL mode needs files beside it, so it is read as one that never changes."""
    writable = os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)
    return file.is_file() and not writable and not Path(f"{file}-wal").exists()


def _prepare(connection: Any, _record: Any) -> None:
    """Explicit transactions (the driver's own do not cover DDL); a REPLACE fires triggers too."""
    connection.isolation_level = None
    for pragma in (f"busy_timeout = {BUSY_TIMEOUT_MS}", "foreign_keys = ON", "recursive_triggers = ON", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")
    _write_ahead(connection)


def _write_ahead(connection: Any) -> None:
    """WAL mode is kept in the file; SQLite's busy timeout does not cover the switch, hence the loop."""
    for attempt in range(50):
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                connection.execute("PRAGMA journal_mode = WAL")
        except connection.OperationalError as error:
            if "locked" not in str(error) or attempt == 49:
                raise
            time.sleep(0.02 * (attempt + 1))
        else:
            return


def _begin(connection: Connection) -> None:
    """A writer takes its lock at once, so that it never fails half-way because another one wrote meanwhile."""
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def storage_errors() -> Iterator[None]:
    """Translate the library's errors: one line, without SQL or parameters."""
    try:
        yield
    except DBAPIError as error:
        said = (str(error.orig).strip().splitlines() or ["the database failed"])[0]
        way_out = next((advice for words, advice in _ADVICE.items() if words in said), "check that the database can be reached and written")
        raise StorageError(said, way_out=way_out) from error
    except SQLAlchemyError as error:
        raise StorageError(str(error).splitlines()[0]) from error


@contextmanager
def reading(engine: Engine) -> Iterator[Session]:
    """A session for reading."""
    with storage_errors(), Session(engine) as session:
        yield session


@contextmanager
def writing(engine: Engine) -> Iterator[Session]:
    """A session whose one transaction is committed at the end, or rolled back as a whole."""
    with storage_errors(), Session(engine.execution_options(**{_WRITES: True})) as session, session.begin():
        yield session


def one_writer(session: Session, table: type[DeclarativeBase]) -> None:
    """Let one transaction at a time append to a table, so that numbers grow in the order of the commits and none deadlock.

    SQLite has one writer anyway.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text(f"LOCK TABLE {table.__tablename__} IN SHARE ROW EXCLUSIVE MODE"))
