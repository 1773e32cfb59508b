"""The one door to numba: kernels are decorated here, and nothing else in the project imports it.

Compiled code is cached on disk, drops the GIL (trials run on threads), divides like IEEE (no exception checks) and counts no
references: kernels allocate nothing, and the counting would cost ten times the work.
numba's cache watches the file of a kernel alone, not the kernels that it calls, so the stamp here covers all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def _sources() -> tuple[tuple[str, int, int], ...]:
    """Name, time and size of every kernel's source."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)


_STAMP = _sources()
_NJIT: Any = numba.njit  # its stubs leave out half the options


def compiled(function: Kernel) -> Kernel:
    """An entry from Python: compiled at the first call, kept on disk for the next process."""
    kernel = _NJIT(cache=True, nogil=True, error_model="numpy", _nrt=False)(function)
    kernel._cache._cache_file._source_stamp = _STAMP  # noqa: SLF001  numba has no public way to name a kernel's dependencies
    typed: Kernel = kernel
    return typed


def part(function: Kernel) -> Kernel:
    """A piece of an entry: inlined into it, and not callable from Python (``.py_func`` is)."""
    typed: Kernel = _NJIT(nogil=True, error_model="numpy", forceinline=True, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(
        function
    )
    return typed


def rare(function: Kernel) -> Kernel:
    """A piece that seldom runs: called, not inlined, which keeps the entry small and its compilation short.

    A call copies the whole ``World``, some 250 machine words: test first, in the caller, whether it is needed at all.
    """
    typed: Kernel = _NJIT(nogil=True, error_model="numpy", _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
    return typed
