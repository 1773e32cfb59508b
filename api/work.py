"""Plans take seconds of CPU: they run in a bounded number of threads, so that the event loop goes on answering."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread

from api.errors import RequestError

P = ParamSpec("P")
T = TypeVar("T")


class PlanWorkers:
    """At most ``workers`` at once and ``waiting`` more in line; one beyond is told to come back."""

    def __init__(self, workers: int, waiting: int) -> None:
        self._limiter = CapacityLimiter(workers)
        self._waiting = waiting

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result, computed in a thread."""
        if self._limiter.available_tokens <= 0 and self._limiter.statistics().tasks_waiting >= self._waiting:
            raise RequestError(503, "too many plans are waiting", way_out="try again in a few seconds", headers={"Retry-After": "5"})
        return await to_thread.run_sync(partial(function, *args, **kwargs), limiter=self._limiter)
