"""Bring a database to this version's tables; any number of processes may try at once."""

from __future__ import annotations

import threading

from sqlalchemy import Connection, Engine, inspect, text

from db.connect import reading, writing
from models.errors import StorageError

HEAD = "0001"
"""Newest revision under ``migrations/versions``."""

_LOCK = 0x600D9047  # any fixed number; PostgreSQL's advisory lock of this project


_ONE_THREAD = threading.Lock()  # Alembic keeps its context in globals


def upgrade(engine: Engine) -> None:
    """Migrate to ``HEAD`` in one transaction; does nothing when it is there (and then does not import Alembic)."""
    if revision(engine) == HEAD:
        return
    with _ONE_THREAD, writing(engine) as session:
        connection = session.connection()
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        _run(connection)


def revision(engine: Engine) -> str | None:
    """The revision that the database has, None when it is empty."""
    with reading(engine) as session:
        connection = session.connection()
        if not inspect(connection).has_table("alembic_version"):
            return None
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        return None if found is None else str(found)


def _run(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415 - slow to import, needed once
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", "db:migrations")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise StorageError(
            f"the database cannot be migrated ({error})",
            way_out="it was written by a newer goodput: install that version, or use another home",
        ) from None
