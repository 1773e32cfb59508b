"""The web application. No page of it loads anything from another host: OpenAPI is at ``/openapi.json``, without a viewer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from api import errors
from api.body import BodyLimit
from api.routes import catalogue, health, plans
from api.settings import Settings, load_settings
from api.work import PlanWorkers
from db.database import open_database

DESCRIPTION = "Ranked, proven serving configurations for a model, a device, traffic and deadlines."


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application; its database is opened and migrated when it starts."""
    chosen = settings or load_settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.workers = PlanWorkers(chosen.plan_workers, chosen.plans_waiting)
        app.state.database = open_database(chosen.database())
        yield
        app.state.database.close()

    app = FastAPI(title="Goodput Planner", version="1", description=DESCRIPTION, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.settings = chosen
    app.add_middleware(BodyLimit, limit=chosen.body_bytes)
    for part in (plans, catalogue, health):
        app.include_router(part.router)
    errors.install(app)
    return app
