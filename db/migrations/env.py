"""Alembic's entry: migrates the connection that ``db.migrate`` hands over, inside its transaction."""

from __future__ import annotations

from alembic import context

connection = context.config.attributes["connection"]
# SQLite's DDL is transactional once BEGIN is explicit (db.connect), so a killed migration leaves nothing behind.
context.configure(connection=connection, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
