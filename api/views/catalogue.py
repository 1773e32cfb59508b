"""Lists of the catalogue as quiet tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from api.views import parts
from models.units import GIB

_PEAKS = ("bf16", "fp8", "fp4")


def table_view(rows: Sequence[dict[str, Any]], columns: Sequence[tuple[str, str]]) -> list[Table | Text]:
    """Rows of plain values; ``columns`` are (key, heading)."""
    if not rows:
        return [Text("nothing matches")]
    table = Table.grid(padding=(0, 2), pad_edge=False)
    for _ in columns:
        table.add_column(overflow="fold")
    table.add_row(*(Text(heading, style=parts.FAINT) for _, heading in columns))
    for row in rows:
        table.add_row(*(_written(row[key]) for key, _ in columns))
    return [table]


def devices_view(rows: Sequence[dict[str, Any]]) -> list[Table | Text]:
    """Devices with the figures that decide a plan; ``--json`` holds sources and disagreements."""
    if not rows:
        return [Text("nothing matches")]
    table = Table.grid(padding=(0, 2), pad_edge=False)
    table.add_column(no_wrap=True)
    for _ in range(3 + len(_PEAKS)):
        table.add_column(justify="right", no_wrap=True)
    heads = ("id", "GiB", "GB/s", *(f"{name} TFLOP/s" if name == "bf16" else name for name in _PEAKS), "host GB/s")
    table.add_row(*(Text(name, style=parts.FAINT) for name in heads))
    for row in rows:
        peaks = [_scaled(row["peaks_flop_per_s"].get(name), 1e12) for name in _PEAKS]
        table.add_row(
            row["id"], f"{row['memory_bytes'] / GIB:.1f}", _scaled(row["memory_bandwidth_bytes_per_s"], 1e9), *peaks,
            _scaled(row["host_link_bytes_per_s"], 1e9),
        )  # fmt: skip
    return [table]


def _scaled(value: float | None, unit: float) -> str:
    return parts.NOTHING if value is None else f"{value / unit:,.4g}" if value / unit < 1000 else f"{value / unit:,.0f}"


def _written(value: Any) -> str:
    if value is None:
        return "any"
    return ", ".join(str(one) for one in value) if isinstance(value, list) else str(value)
