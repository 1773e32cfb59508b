"""Request bodies: at most so many bytes, JSON or YAML of a scenario."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import RequestError, of_error
from models.errors import FileFormatError
from planner.scenario_file import parse_raw

_JSON = "application/json"
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")


class BodyLimit:
    """Reads the body before anything else does, and answers 413 for one that is too large, whatever its length claims."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        try:
            body = None if declared.isdigit() and int(declared) > self._limit else await self._read(receive)
        except ClientDisconnect:
            return  # half a body must not be taken for a whole one
        if body is None:
            error = RequestError(413, f"the body is larger than {self._limit} bytes", path="body", way_out="a scenario is a page of text")
            await of_error(error)(scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)

    async def _read(self, receive: Receive) -> bytes | None:
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._limit:
                return None
            if not message.get("more_body", False):
                return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again


def scenario_of(body: bytes, media_type: str) -> dict[str, Any]:
    """Raw scenario data. The media type is required: a page of another site cannot send these without asking first."""
    kind = media_type.partition(";")[0].strip().lower()
    if kind != _JSON and kind not in YAML_TYPES:
        raise RequestError(
            415, "is not a media type for a scenario", path="Content-Type", value=media_type, way_out=f"send {_JSON} or {YAML_TYPES[0]}"
        )
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise RequestError(400, "is not UTF-8 text", path="body", way_out="send UTF-8") from None
    if kind == _JSON:
        return _json_mapping(text)
    try:
        return parse_raw(text, "body")
    except FileFormatError as error:
        raise RequestError(400, error.message, path=error.path, way_out=error.way_out) from None


def _json_mapping(text: str) -> dict[str, Any]:
    try:
        raw = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"is not JSON: {error}", path="body", way_out="correct the syntax") from None
    if not isinstance(raw, dict):
        raise RequestError(400, "does not hold an object", path="body", way_out="send a scenario as one JSON object")
    return raw


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """As in YAML, a key written twice is a mistake and not a choice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice!r} stands twice")
    return found
