"""What an engine logs at start about its KV pool: bytes, tokens or blocks, block size, concurrency, or why it refuses."""

from models.capacity.report import CapacityReport, capacity, capacity_report
from models.capacity.settings import Measured, Settings

__all__ = ["CapacityReport", "Measured", "Settings", "capacity", "capacity_report"]
