"""Where trials run: anything with ``concurrent.futures.Executor``'s interface (threads here; Dask's or Ray's client elsewhere)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def local_executor(workers: int | None = None) -> Iterator[Executor]:
    """Threads on all cores: compiled kernels release the interpreter's lock, so trials run side by side without copies."""
    with ThreadPoolExecutor(max_workers=workers or cores(), thread_name_prefix="trial") as executor:
        yield executor
