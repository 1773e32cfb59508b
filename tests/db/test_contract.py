"""What every store promises, on SQLite and on a real PostgreSQL."""

import hashlib
import math
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.command import upgrade
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError

from db import migrate
from db.connect import make_engine, writing
from db.database import database_url, open_database
from db.tables import Base
from models.catalog.calibrations_catalog import load_calibration
from models.errors import InputError, NotStoredError, StorageError
from planner.ports import CalibrationStore, PlanStore, RunFilter, RunStore, StoredPlan
from planner.records import RunRecord, RunSetup, ServingObservation, Source

ROOT = Path(__file__).parents[2]


def digest(number):
    return hashlib.sha256(str(number).encode()).hexdigest()


def run_record(number, **setup):
    """A run that holds awkward floats and text."""
    serving = ServingObservation(ttft={"mean": 0.1 + 0.2, "p99": 1e-7}, tpot={"mean": math.nextafter(0.03, 1)}, completed=10**12)
    return RunRecord(
        format="csv",
        source=Source(file="a\u0000b é\U0001f600.csv", file_sha256=digest("file")), content_hash=digest(number), serving=(serving,),
        setup=RunSetup(**{"model": "Qwen/Qwen3-8B", "device": "h100-sxm-80"} | setup), metadata={"note": "it's \"quoted\" \\ %s ?"},
    )  # fmt: skip


def document(**extra):
    return {"calibration": load_calibration("chapter8").model_dump(mode="json"), **extra}


def stored_plan(plan_id, **changes):
    values = {
        "id": plan_id, "created_at": "2026-01-01T00:00:00.000000Z", "scenario": {"z": 1, "a": [1.0, 1e-300, None, "é"]},
        "answer": {"b": {"y": 0.1}},
        "calibration": "chapter8", "calibration_version": "1", "horizon": 0, "catalogue_version": "c", "schema_version": "1",
    }  # fmt: skip
    return StoredPlan(**values | changes)


class TestMigration:
    def test_tables_are_those_of_the_code(self, database):
        with database.engine.connect() as connection:
            differences = compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), Base.metadata)
        assert differences == []

    def test_head_is_the_newest_script(self):
        config = Config()
        config.set_main_option("script_location", "db:migrations")
        assert ScriptDirectory.from_config(config).get_current_head() == migrate.HEAD

    def test_opening_twice_changes_nothing(self, database, url):
        database.runs.append([run_record(1)])
        again = open_database(url)
        assert [one.record for one in again.runs.list()] == [run_record(1)]
        again.check()
        again.close()

    def test_a_newer_database_is_refused_and_left_alone(self, database, url):
        with database.engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        with pytest.raises(StorageError, match="newer goodput"):
            open_database(url)
        with pytest.raises(StorageError, match="9999"):
            database.check()

    def test_processes_that_start_together_migrate_once(self, url):
        """Three processes, imports done, are let go at the same moment on an empty database."""
        command = [sys.executable, "-c", _STARTING, url]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
        started = [subprocess.Popen(command, **pipes) for _ in range(3)]
        assert [process.stdout.readline() for process in started] == ["ready\n"] * 3
        for process in started:
            process.stdin.write("go\n")
            process.stdin.flush()
        ended = [process.communicate(timeout=60) for process in started]
        assert ended == [("0001\n", "")] * 3


_STARTING = """
import sys
from alembic.command import upgrade
from db import connect, migrate
engine = connect.make_engine(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
migrate.upgrade(engine)
print(migrate.revision(engine))
engine.dispose()
"""


REVISIONS = [script.revision for script in ScriptDirectory(str(ROOT / "db" / "migrations")).walk_revisions()]


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_filled_database_of_every_version_is_brought_up_and_keeps_what_it_holds(url, revision):
    """``tests/data/database/REVISION.sql`` fills the tables of that version; a new migration needs one for the version before it."""
    config = Config()
    config.set_main_option("script_location", "db:migrations")
    engine = make_engine(url)
    with writing(engine) as session:
        config.attributes["connection"] = session.connection()
        upgrade(config, revision)
        for statement in (ROOT / "tests" / "data" / "database" / f"{revision}.sql").read_text().strip().split(";\n"):
            session.connection().exec_driver_sql(statement.replace("%", "%%") if engine.dialect.name == "postgresql" else statement)
    engine.dispose()
    database = open_database(url)
    database.check()
    (run,) = database.runs.list()
    assert (run.record.setup.model, run.record.serving[0].ttft) == ("Qwen/Qwen3-8B", {"mean": 0.1 + 0.2})
    (calibration,) = database.calibrations.list()
    assert (calibration.name, calibration.version, calibration.run_ids) == ("mine", 1, (run.id,))
    assert database.plans.get("a").scenario == {"z": 1, "a": [1.0, None, "é"]}
    database.close()


class TestRuns:
    def test_is_a_store(self, database):
        assert isinstance(database.runs, RunStore)

    def test_comes_back_exactly(self, database):
        added = database.runs.append([run_record(1)])
        stored = database.runs.get(added.ids[0])
        assert (stored.record, stored.added_at) == (run_record(1), added.added_at)

    def test_known_contents(self, database):
        database.runs.append(run_record(number) for number in range(450))
        assert database.runs.known(digest(number) for number in range(440, 2000)) == {digest(number) for number in range(440, 450)}
        assert database.runs.known([]) == frozenset()

    def test_known_content_is_skipped(self, database):
        database.runs.append([run_record(1)])
        added = database.runs.append([run_record(2), run_record(1), run_record(3), run_record(2)])
        assert [one and database.runs.get(one).record.content_hash for one in added.ids] == [digest(2), None, digest(3), None]
        assert [one.record.content_hash for one in database.runs.list()] == [digest(1), digest(2), digest(3)]

    def test_all_or_none(self, database):
        def failing():
            yield from (run_record(number) for number in range(500))
            raise ValueError("the file is cut short here")

        with pytest.raises(ValueError, match="cut short"):
            database.runs.append(failing())
        assert list(database.runs.list()) == []

    def test_filter_limit_offset(self, database):
        database.runs.append([run_record(1), run_record(2, model="b"), run_record(3, model="b", device="d"), run_record(4)])

        def found(*args, **kwargs):
            return [one.record.content_hash for one in database.runs.list(*args, **kwargs)]

        assert found(RunFilter(model="b")) == [digest(2), digest(3)]
        assert found(RunFilter(model="b", device="d")) == [digest(3)]
        assert found(RunFilter(format="nothing")) == []
        assert found(limit=2, offset=1) == [digest(2), digest(3)]
        assert found(offset=3) == [digest(4)]

    def test_unknown_run(self, database):
        with pytest.raises(NotStoredError, match="no such run"):
            database.runs.get(7)

    @pytest.mark.parametrize("statement", ["UPDATE runs SET format = 'x'", "DELETE FROM runs"])
    def test_append_only(self, database, statement):
        database.runs.append([run_record(1)])
        with pytest.raises(DBAPIError, match="append-only"), database.engine.begin() as connection:
            connection.execute(text(statement))
        assert len(list(database.runs.list())) == 1

    def test_eight_writers_at_once(self, database):
        """Each pair shares half of its runs, in opposite orders; every content is stored once and every writer is told what it added."""

        def write(writer):
            numbers = range(writer // 2 * 100, writer // 2 * 100 + 100)
            return database.runs.append(run_record(n) for n in (numbers if writer % 2 else reversed(numbers)))

        with ThreadPoolExecutor(8) as pool:
            added = [one for some in pool.map(write, range(8)) for one in some.ids if one is not None]
        stored = list(database.runs.list())
        assert sorted(added) == [one.id for one in stored]
        assert {one.record.content_hash for one in stored} == {digest(number) for number in range(400)}
        assert len(stored) == 400


class TestCalibrations:
    def test_is_a_store(self, database):
        assert isinstance(database.calibrations, CalibrationStore)

    def test_versions_grow(self, database):
        runs = database.runs.append([run_record(1), run_record(2)]).ids
        first = database.calibrations.append("mine", document(covariance=[[0.1]]), runs)
        second = database.calibrations.append("mine", document(), [])
        other = database.calibrations.append("other", document(), runs[:1])
        assert [(one.name, one.version) for one in (first, second, other)] == [("mine", 1), ("mine", 2), ("other", 1)]
        assert first.run_ids == runs
        assert database.calibrations.get("mine", 1) == first
        assert database.calibrations.get("mine") == second
        assert list(database.calibrations.list()) == [first, second, other]
        assert list(database.calibrations.newest()) == [other, second, first]
        assert list(database.calibrations.newest("mine")) == [second, first]
        assert list(database.calibrations.newest(horizon=second.number)) == [second, first]
        assert database.calibrations.horizon() == other.number
        assert first.document == document(covariance=[[0.1]])

    def test_empty(self, database):
        assert database.calibrations.horizon() == 0
        assert list(database.calibrations.newest()) == []
        with pytest.raises(NotStoredError, match="mine"):
            database.calibrations.get("mine")
        with pytest.raises(NotStoredError, match="mine@3"):
            database.calibrations.get("mine", 3)

    @pytest.mark.parametrize("name", ["latest", "none", "chapter8", "a@1", "", "../x", "a b", "x" * 101])
    def test_names_that_cannot_be_asked_for(self, database, name):
        with pytest.raises(InputError):
            database.calibrations.append(name, document(), [])
        assert database.calibrations.horizon() == 0

    @pytest.mark.parametrize("bad", [{}, {"calibration": {}}, {"calibration": 3}, document(covariance=[math.nan])])
    def test_unusable_documents(self, database, bad):
        with pytest.raises(InputError):
            database.calibrations.append("mine", bad, [])
        assert database.calibrations.horizon() == 0

    def test_unknown_run_leaves_nothing(self, database):
        with pytest.raises(InputError, match="no such run"):
            database.calibrations.append("mine", document(), [99])
        assert list(database.calibrations.list()) == []

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE calibrations SET version = 9",
            "DELETE FROM calibrations",
            "UPDATE calibration_runs SET run = 1",
            "DELETE FROM calibration_runs",
        ],
    )
    def test_append_only(self, database, statement):
        ids = database.runs.append([run_record(1)]).ids
        database.calibrations.append("mine", document(), ids)
        with pytest.raises(DBAPIError, match="append-only"), database.engine.begin() as connection:
            connection.execute(text(statement))
        assert database.calibrations.get("mine", 1).run_ids == ids

    def test_eight_writers_get_eight_versions(self, database):
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda n: database.calibrations.append("mine", document(n=n), []), range(8)))
        in_order = sorted(made, key=lambda one: one.number)
        assert [one.version for one in in_order] == list(range(1, 9))


class TestPlans:
    def test_is_a_store(self, database):
        assert isinstance(database.plans, PlanStore)

    def test_comes_back_exactly_in_the_same_order(self, database):
        plan = stored_plan("a")
        database.plans.put(plan)
        found = database.plans.get("a")
        assert found == plan
        assert list(found.scenario) == ["z", "a"]

    def test_newest_first(self, database):
        for name in "abc":
            database.plans.put(stored_plan(name))
        assert [one.id for one in database.plans.list()] == ["c", "b", "a"]
        assert [one.id for one in database.plans.list(limit=1, offset=1)] == ["b"]

    def test_an_id_is_written_once(self, database):
        database.plans.put(stored_plan("a"))
        with pytest.raises(StorageError):
            database.plans.put(stored_plan("a", calibration="other"))
        assert database.plans.get("a").calibration == "chapter8"

    def test_unknown_plan(self, database):
        with pytest.raises(NotStoredError, match="no such plan"):
            database.plans.get("b")

    def test_nan_is_refused(self, database):
        with pytest.raises(InputError, match="answer"):
            database.plans.put(stored_plan("a", answer={"x": math.nan}))
        assert list(database.plans.list()) == []


_KILLED = """
import hashlib, sys
from db.database import database_url, open_database
from planner.records import RunRecord
model = RunRecord.model_validate_json(sys.argv[2])

def runs():
    for number in range(10**6):
        if number == 1000:
            print("writing", flush=True)
        yield model.model_copy(update={"content_hash": hashlib.sha256(b"%d" % number).hexdigest()})

open_database(sys.argv[1]).runs.append(runs())
"""


def test_a_killed_writer_leaves_nothing_half_written(url):
    """SIGKILL in the middle of an import: none of its runs is there, and the next one works."""
    database = open_database(url)
    database.runs.append([run_record("before")])
    command = [sys.executable, "-c", _KILLED, url, run_record(0).model_dump_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout.readline() == b"writing\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    database.runs.append([run_record("after")])
    assert [one.record.content_hash for one in database.runs.list()] == [digest("before"), digest("after")]
    if database.engine.dialect.name == "sqlite":
        with writing(database.engine) as session:
            assert session.scalar(text("PRAGMA integrity_check")) == "ok"
    database.close()


class TestSqliteFile:
    """What a SQLite file may meet on its disk: said in one line, with a way out."""

    @pytest.fixture
    def file(self, tmp_path):
        url = database_url(tmp_path / "home")
        database = open_database(url)
        database.runs.append([run_record(1)])
        database.close()
        return tmp_path / "home" / "goodput.db"

    def test_a_database_that_cannot_be_written_can_be_read(self, file, monkeypatch):
        monkeypatch.setattr("db.connect.os.access", lambda *_: False)  # the tests may run as root, whom no permission stops
        file.chmod(0o444)
        database = open_database(database_url(file.parent))
        assert [one.record for one in database.runs.list()] == [run_record(1)]
        with pytest.raises(StorageError, match="readonly database; it can be read, not written"):
            database.runs.append([run_record(2)])
        database.close()
        assert sorted(path.name for path in file.parent.iterdir()) == ["goodput.db"]

    @pytest.mark.parametrize(("damage", "said"), [(lambda data: b"x" * 9000, "not a database"), (lambda data: data[:9000], "malformed")])
    def test_a_damaged_file(self, file, damage, said):
        file.write_bytes(damage(file.read_bytes()))
        with pytest.raises(StorageError, match=f"{said}.*restore a copy"):
            open_database(database_url(file.parent))

    def test_a_writer_that_does_not_end(self, file, monkeypatch):
        monkeypatch.setattr("db.connect.BUSY_TIMEOUT_MS", 50)
        first, second = (open_database(database_url(file.parent)) for _ in range(2))
        with writing(first.engine) as session:
            session.execute(text("SELECT 1"))  # the transaction begins
            with pytest.raises(StorageError, match="locked; another process writes"):
                second.runs.append([run_record(2)])
        second.runs.append([run_record(2)])
        for database in (first, second):
            database.close()

    def test_a_full_disk_stores_nothing_of_an_import(self, file):
        """The page limit is SQLite's own way to end like a full disk."""
        database = open_database(database_url(file.parent))

        @event.listens_for(database.engine, "connect")
        def limited(connection, _record):
            connection.execute("PRAGMA max_page_count = 60")

        database.engine.dispose()
        with pytest.raises(StorageError, match="full; free some space"):
            database.runs.append(run_record(number) for number in range(2, 500))
        assert [one.record for one in database.runs.list()] == [run_record(1)]
        database.close()
