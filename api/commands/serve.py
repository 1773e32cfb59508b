"""``goodput serve``: REST."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    home: Annotated[Path | None, typer.Option(help="Folder of the database; default: GOODPUT_HOME, else the user's data folder.")] = None,
) -> None:
    """Serve REST (/v1, /openapi.json), storing plans under GOODPUT_HOME. No authentication: keep it on this machine."""
    from api.serve import run

    run(host, port, home)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("serve")(serve)
