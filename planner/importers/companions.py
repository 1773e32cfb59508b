"""Files of a result folder that are not read: companions that hold no result, and second copies of one that stands beside them."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from planner.importers.detect import is_yaml_report
from planner.importers.stream import CHUNK

_COMPANION = re.compile(
    r"^(readme|licen[cs]e|provenance|notice|inputs\.json$)|\.(md|ya?ml|png|svg|html|pdf|py|sh|toml|parquet|tex)$", re.IGNORECASE
)
_BESIDE = (  # the file, what stands beside it, the reason
    (
        re.compile(r"^profile_export(_raw)?\.jsonl?$|_timeslices\.|^(server_metrics|gpu_telemetry)_export\."),
        re.compile(r"_(aiperf|genai_perf)\.json$"),
        "its summary stands beside it",
    ),
    (
        re.compile(r"_(aiperf|genai_perf)\.csv$|^benchmarks\.(csv|ya?ml)$"),
        re.compile(r"_(aiperf|genai_perf)\.json$|^benchmarks\.json$"),
        "the same stands beside it as JSON",
    ),
    (
        re.compile(r"^benchmarks\.csv$"),
        re.compile(r"^benchmarks\.ya?ml$"),
        "the same stands beside it as YAML",
    ),
    (
        re.compile(r"^(summary|per_request|per_session|adapter)_.*metrics\.json$|_(session_lifecycle|prometheus)_metrics\.json$"),
        re.compile(r"^stage_\d+_lifecycle_metrics\.json$"),
        "its stages stand beside it",
    ),
    (re.compile(r"^(meta\.json|timeseries\.csv)$"), re.compile(r"^requests\.jsonl$"), "it tells of requests.jsonl"),
    (re.compile(r"^(dense|per_sequence|moe|skew|skew_fit)\.csv$"), re.compile(r"^attention\.csv$"), "read with attention.csv"),
)


def set_aside(file: Path, beside: set[str]) -> str | None:
    """Why a file found in a folder is not read at all; ``beside`` holds all names of the folder."""
    if file.name.startswith("."):
        return "a hidden file"
    if file.is_symlink():
        return "a symbolic link"
    if _COMPANION.search(file.name) and not _yaml_report(file):
        return "a companion file, no result"
    if file.name.endswith(".pytorch.json"):
        return "a copy for PyTorch's dashboard"
    return next((reason for own, other, reason in _BESIDE if own.search(file.name) and any(map(other.search, beside - {file.name}))), None)


def _yaml_report(file: Path) -> bool:
    """Whether a YAML file is a report: most of them configure something."""
    if file.suffix not in {".yaml", ".yml"} or not file.is_file():
        return False
    with suppress(OSError), file.open("rb") as opened:
        return is_yaml_report(opened.read(CHUNK).decode("utf-8", "replace"))
    return False
