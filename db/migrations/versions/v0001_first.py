"""Plans, runs, calibrations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None

APPEND_ONLY = ("runs", "calibrations", "calibration_runs")

_REFUSE = (
    "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
)


def upgrade() -> None:
    """Create everything."""
    _plans()
    _runs()
    _calibrations()
    _append_only()


def _plans() -> None:
    op.create_table(
        "plans",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("id", sa.String(64), nullable=False, unique=True),
        sa.Column("created_at", sa.String(40), nullable=False),
        sa.Column("calibration", sa.String(200), nullable=False),
        sa.Column("calibration_version", sa.String(200), nullable=False),
        sa.Column("horizon", sa.Integer, nullable=False),
        sa.Column("catalogue_version", sa.String(200), nullable=False),
        sa.Column("schema_version", sa.String(40), nullable=False),
        sa.Column("scenario", sa.JSON, nullable=False),
        sa.Column("answer", sa.JSON, nullable=False),
        sqlite_autoincrement=True,
    )


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("added_at", sa.String(40), nullable=False),
        sa.Column("content_hash", sa.String(64), nullable=False, unique=True),
        sa.Column("record_version", sa.Integer, nullable=False),
        sa.Column("format", sa.String(100), nullable=False),
        sa.Column("model", sa.String),
        sa.Column("device", sa.String),
        sa.Column("engine", sa.String),
        sa.Column("precision", sa.String),
        sa.Column("document", sa.JSON, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_runs_model", "runs", ["model"])
    op.create_index("ix_runs_device", "runs", ["device"])


def _calibrations() -> None:
    op.create_table(
        "calibrations",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("created_at", sa.String(40), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.UniqueConstraint("name", "version"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "calibration_runs",
        sa.Column("calibration", sa.Integer, sa.ForeignKey("calibrations.number"), primary_key=True),
        sa.Column("run", sa.Integer, sa.ForeignKey("runs.id"), primary_key=True),
    )


def _append_only() -> None:
    """Refuse UPDATE and DELETE (and PostgreSQL's TRUNCATE) whoever asks."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(_REFUSE)
        for table in APPEND_ONLY:
            op.execute(
                f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
                "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
            )
        return
    for table in APPEND_ONLY:
        for event in ("UPDATE", "DELETE"):
            name = f"{table}_no_{event.lower()}"
            op.execute(f"CREATE TRIGGER {name} BEFORE {event} ON {table} BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END")
