"""Run the service: what ``goodput serve`` calls."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import uvicorn

from api.app import create_app
from api.settings import load_settings
from db.database import open_database
from models.errors import InputError

HOST = "127.0.0.1"
"""Without authentication the service is for this machine alone."""
PORT = 8000


def run(host: str = HOST, port: int = PORT, home: Path | None = None) -> None:
    """Serve until interrupted; a port that is taken or a database that cannot be opened is an error before anything starts."""
    settings = load_settings(home=home)
    open_database(settings.database()).close()
    with _listening(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        sys.stderr.write(f"goodput serves http://{shown}:{listener.getsockname()[1]}/v1 (described in /openapi.json); Ctrl-C ends it\n")
        uvicorn.Server(uvicorn.Config(create_app(settings), log_level="info")).run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise InputError(f"cannot be listened on ({error.strerror})", path="--host", value=host, way_out="use 127.0.0.1") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise InputError(
            f"cannot listen there ({error.strerror})", path="--port", value=f"{host}:{port}", way_out="choose another port"
        ) from None
    return listener
