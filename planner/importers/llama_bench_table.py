"""The Markdown table that ``llama-bench`` prints by default: one row a measurement, ``test`` says its make-up, ``t/s`` its rate.

``pp512`` prefills 512 tokens, ``tg128`` generates 128, ``pp512+tg128`` does both, ``@ d4096`` begins behind 4,096 cached tokens. The
device stands above the table where the back end says it (``Device 0: …``), the build below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from models.errors import FileFormatError, GoodputError
from planner.importers import llama_bench
from planner.importers.common import Draft, Origin, number

_TEST = re.compile(r"^(?:pp(\d+))?\+?(?:tg(\d+))?(?: @ d(\d+))?$")
_RATE = re.compile(r"^([\d.]+)(?: ± [\d.]+)?$")
_DEVICE = re.compile(r"^\s*Device \d+: ([^,]+),")
_BUILD = re.compile(r"^build: (\w+) \((\d+)\)")
_COLUMNS = {"model": "model_type", "ngl": "n_gpu_layers", "threads": "n_threads", "backend": "backends", "type_k": "type_k",
            "type_v": "type_v", "fa": "flash_attn", "n_batch": "n_batch", "n_ubatch": "n_ubatch", "ncmoe": "n_cpu_moe",
            "sm": "split_mode", "mmap": "use_mmap", "ts": "tensor_split"}  # fmt: skip


class LlamaBenchTable:
    """Takes lines one by one; each row of the table is a run."""

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._rows: list[tuple[int, dict[str, str]]] = []
        self._devices: list[str] = []
        self._build: dict[str, str] = {}

    def feed(self, number_of_line: int, line: str) -> bool:
        """Take a line; True when it said something."""
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if "test" in cells and "t/s" in cells:
                self._columns = cells
            elif len(cells) == len(self._columns) and not set(line) <= set("|-: "):
                self._rows.append((number_of_line, dict(zip(self._columns, cells, strict=True))))
                return True
        elif found := _DEVICE.match(line):
            self._devices.append(found.group(1).strip())
        elif found := _BUILD.match(line):
            self._build = {"build_commit": found.group(1), "build_number": found.group(2)}
        return False

    def drafts(self) -> Iterator[Draft]:
        """The runs; a row that cannot be read costs only itself."""
        for line, cells in self._rows:
            try:
                draft = next(llama_bench.drafts(self._values(cells), Origin("", "")))
            except GoodputError as error:
                draft = Draft(llama_bench.NAME)
                draft.problem = FileFormatError(str(error))
            draft.line, draft.coarse = line, True
            yield draft

    def _values(self, cells: dict[str, str]) -> dict[str, Any]:
        """The row as the tool's JSON would have it."""
        test, rate = _TEST.match(cells["test"]), _RATE.match(cells["t/s"])
        if test is None or rate is None or cells["test"] == "":
            raise FileFormatError("is no measurement of llama-bench", value=f"{cells['test']} | {cells['t/s']}")
        prompt, generated, depth = (int(part or 0) for part in test.groups())
        speed = number(rate.group(1), "t/s")
        values: dict[str, Any] = {"n_prompt": prompt, "n_gen": generated, "n_depth": depth, "avg_ts": speed, **self._build}
        values["avg_ns"] = (prompt + generated) / speed * 1e9 if speed else 0
        values["gpu_info"] = ", ".join(self._devices) or None
        return values | {key: cells[column] for column, key in _COLUMNS.items() if column in cells}
