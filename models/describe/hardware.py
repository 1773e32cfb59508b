"""An accelerator's specification: dense peaks, bandwidths, memory, power; None where no source states a number."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from models.errors import NotCoveredError


@dataclass(frozen=True, slots=True)
class Device:
    """One device. Bytes, bytes/s, FLOP/s (two operations a multiply-add, dense), W. Links are for one direction."""

    id: str
    name: str
    architecture: str
    memory_bytes: int  # what the driver shows where known, else the nominal size
    memory_known: bool  # True where ``memory_bytes`` is the driver's own total
    memory_bandwidth_bytes_per_s: float
    peaks: MappingProxyType[str, float]  # precision -> FLOP/s: bf16, fp16, fp8, fp4, int8
    host_link_bytes_per_s: float | None
    gpu_link_bytes_per_s: float | None
    power_w: float | None
    sources: tuple[str, ...]
    disagreements: tuple[str, ...]
    note: str = ""

    @property
    def family(self) -> str:
        """First word of the architecture: Hopper, Ada, Blackwell, CDNA, ..."""
        return self.architecture.split(maxsplit=1)[0]

    def peak(self, precision: str) -> float:
        """Dense peak of a precision, FLOP/s."""
        found = self.peaks.get(precision)
        if found is None:
            known = ", ".join(self.peaks) or "none"
            raise NotCoveredError(
                f"no {precision} peak is known for {self.id}", path="hardware.device", value=precision, way_out=f"known: {known}"
            )
        return found
