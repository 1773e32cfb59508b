"""One's own device, described in a file: what the catalogue would say of it, each figure with its unit.

``name``, ``memory``, ``bandwidth``, ``peaks`` (the fastest dense product of each precision that is known), ``source`` and ``date`` are
required: ``{name: EPYC 7763 core, memory: 8 GiB, bandwidth: 35 GB/s, peaks: {bf16: 65 GFLOP/s}, source: numpy, date: 2026-11-29}``.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field

from models.describe.base import Bandwidth, ByteCount, Description, FlopRate, Watts
from models.describe.hardware import Device
from models.readers.yaml_text import read_mapping

_SUFFIXES = (".yaml", ".yml", ".json")

Precision = Literal["bf16", "fp16", "fp8", "fp4", "int8"]
Text = Annotated[str, Field(min_length=1, max_length=200)]


class DeviceFile(Description):
    """What stands in the file. Links are for one direction."""

    name: Text
    architecture: str = ""
    memory: Annotated[ByteCount, Field(gt=0)]
    bandwidth: Annotated[Bandwidth, Field(gt=0)]
    peaks: Annotated[dict[Precision, Annotated[FlopRate, Field(gt=0)]], Field(min_length=1)]
    host_link: Bandwidth | None = None
    device_link: Bandwidth | None = None
    power: Watts | None = None
    source: Text
    date: date
    note: str = ""


def is_device_file(name: str) -> bool:
    """Whether ``name`` names a file rather than a device of the catalogue."""
    return name.lower().endswith(_SUFFIXES)


def read_device(name: str) -> Device:
    """The device that the file describes; its id is the file's whole path, so that stored runs find it again.

    Errors: FileFormatError and UnitError, each naming file and key.
    """
    path = Path(name).expanduser().resolve()
    said = DeviceFile.parse(read_mapping(path, "device", "give name, memory, bandwidth, peaks, source and date"), str(path))
    return Device(
        id=str(path), name=said.name, architecture=said.architecture, memory_bytes=said.memory, memory_known=True,
        memory_bandwidth_bytes_per_s=said.bandwidth, peaks=MappingProxyType({str(p): rate for p, rate in said.peaks.items()}),
        host_link_bytes_per_s=said.host_link, gpu_link_bytes_per_s=said.device_link, power_w=said.power,
        sources=(f"{said.source}, {said.date}",), disagreements=(), note=said.note,
    )  # fmt: skip
