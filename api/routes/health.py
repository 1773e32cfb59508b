"""Is the process alive; can it do its work."""

from __future__ import annotations

from fastapi import APIRouter, Request

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(request: Request) -> dict[str, str]:
    """The database answers and has this version's tables; else a 503 problem."""
    request.app.state.database.check()
    return {"status": "ready"}
