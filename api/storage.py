"""The user's database for the commands: opened only where it exists or something is about to be written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from db.database import Database
    from planner.resolve import CalibrationLookup

_HOME, _URL, _FILE = "GOODPUT_HOME", "GOODPUT_DATABASE_URL", "goodput.db"


def home() -> Path:
    """Folder of the database: ``GOODPUT_HOME``, or the user's data folder."""
    given = os.environ.get(_HOME)
    if given:
        return Path(given).expanduser()
    import platformdirs

    return platformdirs.user_data_path("goodput-planner", appauthor=False)


def exists() -> bool:
    """Whether there is a database to read, without importing what opens it."""
    return bool(os.environ.get(_URL)) or (home() / _FILE).is_file()


@contextmanager
def database() -> Iterator[Database]:
    """The open database, made and migrated where needed."""
    from db.database import database_url, open_database

    opened = open_database(database_url(home(), os.environ.get(_URL) or None))
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def stored_calibrations() -> Iterator[CalibrationLookup | None]:
    """What plans may look up; None where nothing is stored."""
    if not exists():
        yield None
        return
    from planner.stored_calibrations import CalibrationsUpTo

    with database() as opened:
        yield CalibrationsUpTo(opened.calibrations, opened.calibrations.horizon())
