"""Devices by name: of the catalogue (the only code that reads ``devices.json``), or a file that describes one's own."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from models.describe.hardware import Device
from models.errors import UnknownNameError
from models.readers.device_file import is_device_file, read_device

_FILE = Path(__file__).parent / "devices.json"
_PEAKS = (("bf16", "bf16_tflops"), ("fp16", "fp16_tflops"), ("fp8", "fp8_tflops"), ("fp4", "fp4_tflops"), ("int8", "int8_tops"))


@cache
def _catalogue() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_FILE.read_bytes())
    return found


def catalogue_version() -> str:
    """Version of the device file, named in every plan."""
    return str(_catalogue()["version"])


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", name.lower().replace("nvidia", "").replace("amd ", "").replace("geforce", ""))


@cache
def _aliases() -> dict[str, str]:
    found: dict[str, str] = {}
    for row in _catalogue()["devices"]:
        for alias in (row["id"], row["name"], *row.get("aliases", ())):
            found.setdefault(_plain(alias), row["id"])
    return found


def device_ids() -> tuple[str, ...]:
    """Identifiers of all devices."""
    return tuple(row["id"] for row in _catalogue()["devices"])


def load_device(name: str) -> Device:
    """The device of that id, full name or common alias, or described in a ``.yaml`` or ``.json`` file; the nearest names on a miss."""
    return read_device(name) if is_device_file(name) else _from_catalogue(name)


@cache
def _from_catalogue(name: str) -> Device:
    found = _aliases().get(_plain(name))
    if found is None:
        raise UnknownNameError.suggest("device", name, device_ids(), path="hardware.device")
    row = next(row for row in _catalogue()["devices"] if row["id"] == found)
    return Device(
        id=row["id"], name=row["name"], architecture=row["architecture"], memory_bytes=row["memory_bytes"],
        memory_known=row["driver_total_mib"] is not None, memory_bandwidth_bytes_per_s=row["bandwidth_gb_per_s"] * 1e9,
        peaks=MappingProxyType({p: row[key] * 1e12 for p, key in _PEAKS if row[key] is not None}),
        host_link_bytes_per_s=_bytes(row["host_link_gb_per_s"]), gpu_link_bytes_per_s=_bytes(row["gpu_link_gb_per_s"]),
        power_w=row["power_w"], sources=tuple(row["sources"]), disagreements=tuple(row["disagreements"]), note=row["note"] or "",
    )  # fmt: skip


def _bytes(gigabytes: float | None) -> float | None:
    return None if gigabytes is None else gigabytes * 1e9
