"""The one door to numba: kernels are decorated here, and nothing else in the project imports it.

Compiled code is cached on disk, drops the GIL (trials run on threads) and divides like IEEE (no exception checks).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(function: Kernel) -> Kernel:
    """Compile at the first call and keep the machine code for the next process."""
    kernel: Kernel = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return kernel


def inlined(function: Kernel) -> Kernel:
    """Like ``compiled``, and copied into its callers: for the small functions of the inner loop."""
    kernel: Kernel = numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")(function)
    return kernel
