"""Quantities with units at the edges; plain SI numbers (bytes, seconds, 1/s, FLOP/s, W) inside.

``GB`` is 10^9 bytes and ``GiB`` is 2^30 bytes, never confused. Byte counts are exact integers.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation

from models.errors import UnitError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_BYTES = {
    "B": 1,
    "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}  # fmt: skip
_SECONDS = {
    "s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "µs": Decimal("1e-6"), "ns": Decimal("1e-9"),
    "min": Decimal(60), "h": Decimal(3600),
}  # fmt: skip
_RATES = {"/s": Decimal(1), "/min": Decimal(1) / 60, "/h": Decimal(1) / 3600, "req/s": Decimal(1), "Hz": Decimal(1)}
_BANDWIDTHS = {f"{unit}/s": size for unit, size in _BYTES.items()}
_FLOP_RATES = {f"{prefix}FLOP/s": Decimal(10) ** power for prefix, power in (("", 0), ("M", 6), ("G", 9), ("T", 12), ("P", 15))}
_WATTS = {"W": Decimal(1), "kW": Decimal(1000)}
_SHAPE = re.compile(r"^\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S+(?:\s*/\s*\S+)?)?\s*$")


def _split(text: object, path: str, example: str) -> tuple[Decimal, str]:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise UnitError("expected a quantity with a unit", path=path, value=text, way_out=f"write for example '{example}'")
    match = _SHAPE.match(str(text))
    if match is None:
        raise UnitError("not a quantity", path=path, value=text, way_out=f"write for example '{example}'")
    try:
        number = Decimal(match.group(1).replace("_", ""))
    except InvalidOperation as cause:  # pragma: no cover - the pattern admits only numbers
        raise UnitError("not a number", path=path, value=text, way_out=f"write for example '{example}'") from cause
    return number, (match.group(2) or "").replace(" ", "")


def _scale(text: object, table: dict[str, int] | dict[str, Decimal], path: str, example: str) -> Decimal:
    number, unit = _split(text, path, example)
    if not unit:
        raise UnitError("missing unit", path=path, value=text, way_out=f"write for example '{example}'")
    if unit not in table:
        raise UnitError(f"unknown unit '{unit}'", path=path, value=text, way_out=f"use one of {', '.join(table)}")
    if number < 0:
        raise UnitError("must not be negative", path=path, value=text, way_out=f"write for example '{example}'")
    value = number * table[unit]
    if not math.isfinite(float(value)):
        raise UnitError("absurdly large", path=path, value=text, way_out=f"write for example '{example}'")
    return value


def parse_bytes(text: object, path: str = "") -> int:
    """``'12 GiB'`` → 12884901888. A fractional byte rounds down; a bare number is refused."""
    return int(_scale(text, _BYTES, path, "12 GiB"))


def parse_seconds(text: object, path: str = "") -> float:
    """``'7 s'`` → 7.0; ``'250 ms'`` → 0.25."""
    return float(_scale(text, _SECONDS, path, "7 s"))


def parse_rate(text: object, path: str = "") -> float:
    """``'4 /s'`` → 4.0 (events a second)."""
    return float(_scale(text, _RATES, path, "4 /s"))


def parse_bandwidth(text: object, path: str = "") -> float:
    """``'64 GB/s'`` → 6.4e10 bytes a second."""
    return float(_scale(text, _BANDWIDTHS, path, "64 GB/s"))


def parse_flop_rate(text: object, path: str = "") -> float:
    """``'65 GFLOP/s'`` → 6.5e10 operations a second, a multiply-add counting two."""
    return float(_scale(text, _FLOP_RATES, path, "65 GFLOP/s"))


def parse_watts(text: object, path: str = "") -> float:
    """``'600 W'`` → 600.0."""
    return float(_scale(text, _WATTS, path, "600 W"))


def format_bytes(count: float) -> str:
    """Binary units with two decimals: 9684647936 → ``'9.02 GiB'``."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(count) >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"


def format_seconds(value: float) -> str:
    """Seconds with the unit that reads best: 0.02737 → ``'27.37 ms'``."""
    if value != 0 and abs(value) < 1e-3:
        return f"{value * 1e6:.1f} µs"
    return f"{value * 1e3:.2f} ms" if abs(value) < 1 else f"{value:.2f} s"


def ceil_to(value: float, decimals: int) -> float:
    """Round up to ``decimals`` places, so that a printed limit still admits ``value``."""
    step = Decimal(1).scaleb(-decimals)
    return float((Decimal(repr(value)) / step).to_integral_value(rounding="ROUND_CEILING") * step)
