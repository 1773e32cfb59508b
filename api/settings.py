"""Settings of the service, from the environment (``GOODPUT_HOME``, ``GOODPUT_DATABASE_URL``, …)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import platformdirs
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from models.errors import InputError


def default_home() -> Path:
    """The user's data folder."""
    return platformdirs.user_data_path("goodput-planner", appauthor=False)


class Settings(BaseSettings):
    """Bytes and seconds. ``plan_workers`` plans run at once, ``plans_waiting`` more wait; beyond that a client is told to come back."""

    model_config = SettingsConfigDict(env_prefix="GOODPUT_", frozen=True, extra="ignore", env_ignore_empty=True)

    home: Path = Field(default_factory=default_home)
    database_url: SecretStr | None = None
    body_bytes: Annotated[int, Field(ge=1)] = 1 << 20
    plan_workers: Annotated[int, Field(ge=1, le=256)] = 2
    plans_waiting: Annotated[int, Field(ge=0)] = 32
    solver_time_limit_s: Annotated[float, Field(gt=0, le=3600)] = 30.0

    def database(self) -> str:
        """URL of the database; may hold a password, so never shown."""
        from db.database import database_url

        return database_url(self.home.expanduser(), self.database_url.get_secret_value() if self.database_url else None)


def load_settings(**given: object) -> Settings:
    """From the environment and what is given (None: not given); a bad value is one clear error."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        name = "GOODPUT_" + "_".join(str(part) for part in problem["loc"]).upper()
        raise InputError(problem["msg"], path=name, way_out="correct the setting") from None
