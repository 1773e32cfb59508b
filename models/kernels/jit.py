"""The door to compiled code: kernels are decorated here. ``machine_code`` is the one place that knows numba and LLVM.

``compiled`` marks an entry: C-contiguous arrays, named tuples of them, integers and floats in; results in its arrays.
``part`` and ``rare`` mark pieces that entries call. All of it divides like IEEE (no exception checks), allocates nothing, counts
no references (which would cost ten times the work) and runs without the GIL, so that trials run on threads.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from models.kernels import machine_code

Kernel = TypeVar("Kernel", bound=Callable[..., object])
Constant = machine_code.Constant


class _Entry:
    """A kernel that Python calls; its machine code is chosen by the types of the arguments."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.py_func = function
        self._code: dict[object, Callable[[int], None]] = {}
        self._lock = threading.Lock()

    def __call__(self, *arguments: object) -> None:
        leaves = list(_leaves(arguments))
        types = tuple(_kind(leaf) for leaf in leaves)
        code = self._code.get(types)
        if code is None:
            with self._lock:
                code = self._code.setdefault(types, machine_code.load(self.py_func, repr(types), arguments))
        table = np.array([word for leaf in leaves for word in _words(leaf)], np.int64)
        code(table.ctypes.data)


def _leaves(values: tuple[object, ...]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _leaves(value)
        else:
            yield value


def _kind(leaf: Any) -> object:
    """What the machine code depends on: a constant's value, of anything else its type."""
    if isinstance(leaf, Constant):
        return leaf
    return (leaf.dtype, leaf.ndim) if isinstance(leaf, np.ndarray) else type(leaf)


def _words(leaf: Any) -> tuple[int, ...]:
    """What ``machine_code`` unpacks: address and shape of an array, the 64 bits of a number."""
    if isinstance(leaf, np.ndarray):
        if not leaf.flags.c_contiguous:
            raise ValueError("kernels take contiguous arrays")
        return (leaf.ctypes.data, *leaf.shape)
    if isinstance(leaf, Constant):
        return ()
    return struct.unpack("q", struct.pack("d", leaf)) if isinstance(leaf, float) else (leaf,)


def compiled(function: Kernel) -> Kernel:
    """An entry from Python: compiled at the first call, its machine code kept on disk for later processes."""
    entry: Any = _Entry(function)
    typed: Kernel = entry
    return typed


def part(function: Kernel) -> Kernel:
    """A piece of an entry: inlined into it, and not callable from Python (``.py_func`` is)."""
    piece: Any = machine_code.Piece(function, inline=True)
    typed: Kernel = piece
    return typed


def rare(function: Kernel) -> Kernel:
    """A piece that seldom runs: called, not inlined, which keeps the entry small and its compilation short.

    A call copies the whole ``World``, some 250 machine words: test first, in the caller, whether it is needed at all.
    """
    piece: Any = machine_code.Piece(function, inline=False)
    typed: Kernel = piece
    return typed
