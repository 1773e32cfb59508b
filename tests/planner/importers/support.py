"""What every importer test does: write a file, import it alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from planner.importers import import_paths


def one(path, **options):
    report = import_paths([path], **options)
    assert not report.refused, report.refused
    assert len(report.imported) == 1
    return report.imported[0]


def write(folder: Path, name: str, value: Any) -> Path:
    """A file below ``folder``: text as it stands, anything else as JSON."""
    path = Path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path
