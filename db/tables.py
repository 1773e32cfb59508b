"""Tables. Documents are JSON text, so that what was stored comes back to the last digit; columns beside them are for finding.

Runs and calibrations are append-only: triggers of the first migration refuse UPDATE and DELETE.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Metadata of all tables; ``JSON`` is text on SQLite and type ``json`` (also text) on PostgreSQL."""

    type_annotation_map = {dict[str, Any]: JSON}  # noqa: RUF012 - SQLAlchemy reads a plain dict


class PlanRow(Base):
    """One finished plan. ``number`` orders, ``id`` is what clients see."""

    __tablename__ = "plans"
    __table_args__ = ({"sqlite_autoincrement": True},)

    number: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[str] = mapped_column(String(40))
    calibration: Mapped[str] = mapped_column(String(200))
    calibration_version: Mapped[str] = mapped_column(String(200))
    horizon: Mapped[int]
    catalogue_version: Mapped[str] = mapped_column(String(200))
    schema_version: Mapped[str] = mapped_column(String(40))
    scenario: Mapped[dict[str, Any]]
    answer: Mapped[dict[str, Any]]


class RunRow(Base):
    """One measured run; ``record_version`` is the layout of ``document``."""

    __tablename__ = "runs"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(primary_key=True)
    added_at: Mapped[str] = mapped_column(String(40))
    content_hash: Mapped[str] = mapped_column(String(64), unique=True)
    record_version: Mapped[int]
    format: Mapped[str] = mapped_column(String(100))
    model: Mapped[str | None] = mapped_column(String, index=True)
    device: Mapped[str | None] = mapped_column(String, index=True)
    engine: Mapped[str | None] = mapped_column(String)
    precision: Mapped[str | None] = mapped_column(String)
    document: Mapped[dict[str, Any]]


class CalibrationRow(Base):
    """One version of a calibration."""

    __tablename__ = "calibrations"
    __table_args__ = (UniqueConstraint("name", "version"), {"sqlite_autoincrement": True})

    number: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    version: Mapped[int]
    created_at: Mapped[str] = mapped_column(String(40))
    document: Mapped[dict[str, Any]]


class CalibrationRunRow(Base):
    """A run that a calibration was fitted on."""

    __tablename__ = "calibration_runs"

    calibration: Mapped[int] = mapped_column(ForeignKey("calibrations.number"), primary_key=True)
    run: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True)
