"""The only mapping from this project's errors to HTTP: problem details (RFC 9457) with ``path``, ``value`` and ``way_out``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from models.errors import CalibrationError, GoodputError, InputError, NotStoredError, SolverError, StorageError

MEDIA_TYPE = "application/problem+json"
_TYPE = "urn:goodput-planner:problem:"
_SHOWN = 200


class RequestError(GoodputError):
    """The HTTP request itself cannot be served: its size, its media type, its syntax, or the load."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        path: str = "",
        value: object = None,
        way_out: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, path=path, value=value, way_out=way_out)
        self.status = status
        self.headers = dict(headers or {})


_STATUS: tuple[tuple[type[GoodputError], int, str], ...] = (
    (NotStoredError, 404, "Not found"),
    (InputError, 422, "The input cannot be used"),
    (CalibrationError, 409, "The calibration cannot be used"),
    (SolverError, 500, "The solver failed"),
    (StorageError, 503, "The storage failed"),
    (GoodputError, 500, "Internal error"),
)
_REQUEST_TITLES = {
    400: "Malformed request", 404: "Not found", 405: "Method not allowed", 413: "Request too large", 415: "Unsupported media type",
    503: "Busy",
}  # fmt: skip


def problem(
    status: int,
    kind: str,
    title: str,
    detail: str,
    *,
    path: str = "",
    value: object = None,
    way_out: str = "",
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """One problem document; members that say nothing are null."""
    content: dict[str, Any] = {
        "type": _TYPE + kind, "title": title, "status": status, "detail": detail,
        "path": path or None, "value": _json_value(value), "way_out": way_out or None,
    }  # fmt: skip
    return JSONResponse(content, status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def of_error(error: GoodputError) -> JSONResponse:
    """The problem document of an error raised on purpose."""
    if isinstance(error, RequestError):
        status, title, headers = error.status, _REQUEST_TITLES.get(error.status, "Request refused"), error.headers
    else:
        status, title = next((status, title) for kind, status, title in _STATUS if isinstance(error, kind))
        headers = {}
    kind = _slug(title) if isinstance(error, RequestError) else _slug(type(error).__name__.removesuffix("Error"))
    return problem(status, kind, title, error.message, path=error.path, value=error.value, way_out=error.way_out, headers=headers)


def install(app: FastAPI) -> None:
    """Answer every failure of ``app`` with a problem document."""
    app.add_exception_handler(GoodputError, _goodput)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


def _goodput(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, GoodputError)
    return of_error(error)


def _validation(_request: Request, error: Exception) -> JSONResponse:
    """FastAPI's own checks of query parameters and bodies; bad JSON is 400, as for scenarios."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return of_error(
            RequestError(400, f"is not JSON: {first.get('ctx', {}).get('error', first['msg'])}", path="body", way_out="correct it")
        )
    path = ".".join(str(part) for part in first["loc"])
    return of_error(InputError(first["msg"], path=path, value=first.get("input"), way_out="see /openapi.json"))


def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    title = _REQUEST_TITLES.get(error.status_code, "Request refused")
    known = "see /openapi.json"
    return problem(error.status_code, _slug(title), title, error.detail, path=request.url.path, way_out=known, headers=error.headers)


def _unexpected(_request: Request, _error: Exception) -> JSONResponse:
    """A fault of ours: logged by the server, not shown to the client."""
    return problem(500, "internal-error", "Internal error", "something failed inside goodput; its log says what")


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()).strip("-")


def _json_value(value: object) -> object:
    """Scalars as they are, anything else as short text."""
    if value is None or isinstance(value, bool | int):
        return value
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
