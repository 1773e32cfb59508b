"""CPU seconds to read every catalogue model and work out all of its facts in one process.

usage: python bench/model_facts.py [FOLDER_OF_CONFIGS]      prints JSON
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from models.catalog.models_catalog import model_names
from models.model_report import model_report
from models.readers import load_architecture


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    names = sorted(str(p) for p in folder.glob("*.json")) if folder else list(model_names())
    started = time.process_time()
    slowest = ("", 0.0)
    for name in names:
        before = time.process_time()
        model_report(load_architecture(name), tokens=8192, rows=64)
        spent = time.process_time() - before
        slowest = max(slowest, (name, spent), key=lambda pair: pair[1])
    total = time.process_time() - started
    figures = {
        "models": len(names),
        "cpu_s": round(total, 3),
        "limit_cpu_s": 2.0,
        "slowest": slowest[0],
        "slowest_cpu_ms": round(slowest[1] * 1e3, 2),
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
