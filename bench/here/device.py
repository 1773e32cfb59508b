"""Describe this machine's core as a device: what one thread of numpy reads and multiplies at best.

    OPENBLAS_NUM_THREADS=1 python device.py this-cpu.yaml

The bandwidth is that of reading an array larger than any cache, the peak that of a 32-bit matrix product: figures of this machine, not of
its specification. The engine reads and multiplies less well, so that efficiencies stay below 1.
"""

from __future__ import annotations

import datetime as dt
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

_REPEATS = 25


def _cpu_seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def bandwidth() -> float:
    """Bytes a second."""
    words = np.ones(1 << 24, dtype=np.int64)
    return words.nbytes / min(_cpu_seconds(words.max) for _ in range(_REPEATS))


def peak() -> float:
    """FLOP/s, a multiply-add counting two."""
    size = 1024
    a, b = (np.random.default_rng(n).standard_normal((size, size)).astype(np.float32) for n in (1, 2))
    return 2 * size**3 / min(_cpu_seconds(lambda: a @ b) for _ in range(_REPEATS))


def _name() -> str:
    found = Path("/proc/cpuinfo")
    lines = found.read_text().splitlines() if found.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor() or "CPU")


def _memory() -> int:
    found = Path("/proc/meminfo")
    return int(found.read_text().split()[1]) * 1024


def main() -> None:
    described = {
        "name": f"{_name()}, one core", "architecture": f"CPU {platform.machine()}", "memory": f"{_memory()} B",
        "bandwidth": f"{bandwidth() / 1e9:.1f} GB/s", "peaks": {"bf16": f"{peak() / 1e9:.1f} GFLOP/s"},
        "source": f"measured: best of {_REPEATS} with numpy {np.__version__}, one thread",
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
    }  # fmt: skip
    Path(sys.argv[1]).write_text(json.dumps(described, indent=1) + "\n")


if __name__ == "__main__":
    main()
