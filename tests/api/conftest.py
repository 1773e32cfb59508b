"""A real server on a free port of this machine, over SQLite in a temporary home."""

import socket
import threading
import time
from contextlib import contextmanager

import httpx
import pytest
import uvicorn

from api.app import create_app
from api.settings import Settings


@contextmanager
def served(settings):
    """Client of a server with these settings."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(settings), log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=120, trust_env=False) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def client(home):
    with served(Settings(home=home)) as one:
        yield one
