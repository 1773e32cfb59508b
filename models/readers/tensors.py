"""Small words in which layers are written down: a linear map with its bias, a vector, a norm.

Every function returns a tuple of ``Tensor``; layer builders add tuples. Names are the checkpoint's module names below the layer.
"""

from __future__ import annotations

from models.describe.architecture import FP32, Role, Split, StoredFormat, Tensor

Tensors = tuple[Tensor, ...]


def linear(
    name: str, rows: int, cols: int, role: Role, split: Split = "rows", *, bias: bool = False, copies: int = 1, units: int = 0
) -> Tensors:
    """A matrix that every row of the batch passes; its bias is cut as its rows are."""
    matrix = Tensor(name, rows, cols, role, copies, linear=True, split=split, units=units)
    if not bias:
        return (matrix,)
    return matrix, Tensor(name + ".bias", rows, 1, role, copies, split="rows" if split == "rows" else "none", units=units)


def vector(name: str, size: int, role: Role = "norm", split: Split = "none", stored: StoredFormat | None = None) -> Tensors:
    """A vector: norm weight, bias, per-head parameter."""
    return (Tensor(name, size, 1, role, split=split) if stored is None else Tensor(name, size, 1, role, split=split, format=stored),)


def norm(name: str, size: int, *, bias: bool = False, role: Role = "norm") -> Tensors:
    """RMSNorm (weight), or LayerNorm with ``bias``."""
    return vector(name, size, role) + (vector(name + ".bias", size, role) if bias else ())


def buffer(name: str, size: int, stored: StoredFormat = FP32) -> Tensors:
    """Stored, but not a parameter (router correction bias)."""
    return (Tensor(name, size, 1, "buffer", format=stored),)
