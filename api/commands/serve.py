"""``goodput serve``: REST and web page."""

from __future__ import annotations

from typing import Annotated

import typer


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
) -> None:
    """Serve REST (/v1, /docs) and the web page, storing plans under GOODPUT_HOME."""
    import uvicorn

    uvicorn.run("api.app:create_app", factory=True, host=host, port=port)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("serve")(serve)
