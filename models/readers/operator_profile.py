"""Per-operator profiles of one model on one device: seconds of each operator of one layer and one rank, from CSV tables.

A profile is a folder with ``attention.csv`` and, beside it, ``dense.csv``, ``per_sequence.csv`` and, for routed experts, ``moe.csv``;
``meta.yaml`` stands there or in a folder above. Several profiles may lie below one root (``tpN`` folders, one folder a model); columns are
recognised by their meaning and a time's unit by the end of its name. Units: seconds, tokens.
Tables
    dense         operator, rows -> time           every operator without attention, once a layer
    per_sequence  operator, sequences -> time      output head and sampler, once a step
    attention     chunk, cached, decoders, context -> time     one prefill chunk after cached tokens, beside equal decoders
    moe           rows, activated experts -> time  the routed experts of a layer
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from models.errors import FileFormatError, InputError
from models.simulation_types import Floats

MAX_ROWS = 5_000_000
_META_BYTES = 4_000_000
_MOST_FOLDERS = 10_000
_ABOVE = 4  # folders above the tables in which meta.yaml is looked for
_SCALE = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_TIME = re.compile(r"^(?:\w*?(?:time|latency|duration)\w*?)[_ (\[]*(s|sec|ms|us|µs|ns)[)\]]?$", re.IGNORECASE)
_OPERATOR = ("layer", "layer_name", "operator", "op", "name")
_ROWS = ("tokens", "num_tokens", "n_tokens", "total_tokens", "rows", "input")
_SEQUENCES = ("sequences", "num_sequences", "n_sequences", "num_seqs", "n_seqs", "seqs", "batch", "batch_size")
_CHUNK = ("prefill_chunk", "chunk", "chunk_size", "prefill_tokens", "n_prefill_tokens", "num_prefill_tokens")
_CACHED = ("kv_prefill", "prefill_kv", "cached", "prefill_context", "kv_cached", "prefill_kv_len")
_DECODERS = ("n_decode", "num_decode", "decode_batch", "decoders", "n_decodes", "num_decodes", "decode_batch_size")
_CONTEXT = ("kv_decode", "decode_kv", "decode_context", "context", "decode_kv_len", "kv_len_decode")
_EXPERTS = re.compile(r"expert|activ", re.IGNORECASE)


@dataclass(frozen=True)
class OperatorProfile:
    """Tables of one rank. ``dense`` and ``heads``: operator -> (counts, seconds), counts rising.

    ``attention`` (M, 5): chunk, cached, decoders, context, seconds; ``experts`` (M, 3): rows, activated experts (NaN where no column says),
    seconds. ``facts``: what ``meta.yaml`` says. A point that was measured more than once has its median.
    """

    folder: Path
    degree: int
    dense: Mapping[str, tuple[Floats, Floats]]
    heads: Mapping[str, tuple[Floats, Floats]]
    attention: Floats
    experts: Floats | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def skew(self) -> float:
        """How far uneven contexts push a decoder's attention from that at the mean towards that at the longest (0: not measured)."""
        fit = self.facts.get("skew_fit")
        fit = fit if isinstance(fit, Mapping) and fit.get("enabled", True) else {}
        by_degree = fit.get("per_tp")
        found = by_degree.get(self.degree, by_degree.get(str(self.degree))) if isinstance(by_degree, Mapping) else None
        share = found.get("alpha_default") if isinstance(found, Mapping) else None
        return float(share) if isinstance(share, int | float) and 0 <= share <= 1 else 0.0


def is_attention_header(line: str) -> bool:
    """Whether this line names the columns of an attention table."""
    names = {name.strip().lower() for name in line.split(",")}
    return all(names.intersection(meaning) for meaning in (_CHUNK, _CACHED, _DECODERS, _CONTEXT))


def profile_folders(root: Path) -> tuple[Path, ...]:
    """Folders at or below ``root`` that hold a profile; below a root without any, those around the table that ``root`` names."""
    root = root.parent if root.is_file() else root
    if not root.is_dir():
        raise FileFormatError("no such folder of profiles", path=str(root), way_out="check the path")
    found = sorted({path.parent for path in root.rglob("attention.csv")}, key=str)
    if len(found) > _MOST_FOLDERS:
        raise FileFormatError("too many profiles below this folder", path=str(root), value=len(found), way_out="name one of them")
    return tuple(found)


def choose_profile(root: Path, degree: int, names: tuple[str, ...] = ()) -> Path:
    """The folder of the profile of this tensor-parallel degree and, where several models or devices lie below ``root``, of ``names``."""
    folders = profile_folders(root)
    if not folders:
        raise FileFormatError("no attention.csv at or below this folder", path=str(root), way_out="name the folder of a profile")
    fitting = [folder for folder in folders if degree_of(folder) in (None, degree)]
    if not fitting:
        known = ", ".join(str(d) for d in sorted({degree_of(folder) or 1 for folder in folders}))
        raise InputError("no profile of this tensor-parallel degree", path=str(root), value=degree, way_out=f"there are those of {known}")
    wanted = {name.lower() for name in names}
    matched = [sum(part.lower() in wanted for part in folder.parts) for folder in fitting]
    best = [folder for folder, count in zip(fitting, matched, strict=True) if count == max(matched)]
    if len(best) > 1:
        listed = ", ".join(str(folder) for folder in best[:4])
        raise InputError("several profiles fit", path=str(root), value=len(best), way_out=f"name one: {listed}")
    return best[0]


def degree_of(folder: Path) -> int | None:
    """N of a folder named tpN."""
    found = re.fullmatch(r"tp[_-]?(\d+)", folder.name, re.IGNORECASE)
    return int(found.group(1)) if found else None


def read_operator_profile(folder: Path, degree: int | None = None) -> OperatorProfile:
    """The profile whose tables lie in ``folder``. Errors name file, line and column."""
    tables = {name: folder / f"{name}.csv" for name in ("dense", "attention", "per_sequence", "moe")}
    missing = [name for name in ("dense", "attention", "per_sequence") if not tables[name].is_file()]
    if missing:
        raise FileFormatError(f"no {missing[0]}.csv in this folder", path=str(folder), way_out="name the folder that holds the tables")
    return OperatorProfile(
        folder=folder, degree=degree or degree_of(folder) or 1, dense=_curves(tables["dense"], _ROWS),
        heads=_curves(tables["per_sequence"], _SEQUENCES), attention=_attention(tables["attention"]),
        experts=_experts(tables["moe"]) if tables["moe"].is_file() else None, facts=_facts(folder),
    )  # fmt: skip


def _facts(folder: Path) -> Mapping[str, Any]:
    for place in (folder, *list(folder.resolve().parents)[:_ABOVE]):
        path = place / "meta.yaml"
        if path.is_file() and path.stat().st_size <= _META_BYTES:
            try:
                found = yaml.safe_load(path.read_text(encoding="utf-8"))
            except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as cause:
                raise FileFormatError("not YAML", path=str(path), value=str(cause)[:80], way_out="repair or remove it") from cause
            return found if isinstance(found, Mapping) else {}
    return {}


class _Table:
    """One CSV file: header, rows as numbers, errors with their line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.reader(file)
                self.header = [name.strip() for name in next(reader, [])]
                self.rows = [(line, row) for line, row in zip(range(2, MAX_ROWS), reader, strict=False) if any(row)]
        except (OSError, UnicodeDecodeError, csv.Error) as cause:
            raise FileFormatError("not a readable CSV table", path=str(path), value=str(cause)[:80], way_out="repair it") from cause
        if not self.rows:
            raise FileFormatError("the table holds no row", path=str(path), way_out="measure again, or remove it")

    def column(self, meaning: str, names: tuple[str, ...]) -> int:
        """The place of the column that means this."""
        places = {name.lower(): place for place, name in reversed(list(enumerate(self.header)))}
        found = next((places[name] for name in names if name in places), None)
        if found is None:
            raise FileFormatError(
                f"no column of {meaning}", path=str(self.path), value=", ".join(self.header), way_out=f"name it {' or '.join(names[:4])}"
            )
        return found

    def time(self) -> tuple[int, float]:
        """Place and unit of the time."""
        for place, name in enumerate(self.header):
            if found := _TIME.match(name):
                return place, _SCALE[found.group(1).lower()]
        raise FileFormatError(
            "no column of times with a unit", path=str(self.path), value=", ".join(self.header), way_out="name it time_us"
        )

    def numbers(self, places: list[int], scale: float) -> Iterator[tuple[list[str], list[float]]]:
        """Each row as it stands, and its numbers at ``places``, the last one a time above 0."""
        for line, row in self.rows:
            try:
                values = [float(row[place]) for place in places]
            except (IndexError, ValueError):
                raise FileFormatError("a row lacks a number", path=f"{self.path}:{line}", value=",".join(row)[:60]) from None
            if not all(math.isfinite(value) and value >= 0 for value in values) or values[-1] == 0:
                raise FileFormatError(
                    "counts are 0 or more and times above 0", path=f"{self.path}:{line}", value=",".join(row)[:60],
                    way_out="repair or drop the row",
                )  # fmt: skip
            values[-1] *= scale
            yield row, values


def _curves(path: Path, counts: tuple[str, ...]) -> dict[str, tuple[Floats, Floats]]:
    table = _Table(path)
    name, (place, scale) = table.column("operators", _OPERATOR), table.time()
    found: dict[str, dict[float, list[float]]] = {}
    for row, (count, seconds) in table.numbers([table.column("counts", counts), place], scale):
        found.setdefault(row[name].strip(), {}).setdefault(count, []).append(seconds)
    return {
        operator: (np.array(sorted(points)), np.array([float(np.median(points[count])) for count in sorted(points)]))
        for operator, points in found.items()
    }


def _attention(path: Path) -> Floats:
    table = _Table(path)
    place, scale = table.time()
    meanings = {"prefill chunks": _CHUNK, "cached tokens": _CACHED, "decoders": _DECODERS, "contexts": _CONTEXT}
    places = [table.column(meaning, names) for meaning, names in meanings.items()]
    found: dict[tuple[float, ...], list[float]] = {}
    for _, (chunk, cached, decoders, context, seconds) in table.numbers([*places, place], scale):
        if chunk or decoders:  # what means nothing without rows is 0
            found.setdefault((chunk, cached if chunk else 0.0, decoders, context if decoders else 0.0), []).append(seconds)
    return np.array([[*point, float(np.median(found[point]))] for point in sorted(found)], np.float64)


def _experts(path: Path) -> Floats:
    """(rows, activated, seconds), operators added up where the table tells them apart."""
    table = _Table(path)
    place, scale = table.time()
    rows = table.column("tokens", _ROWS)
    activated = [p for p, name in enumerate(table.header) if _EXPERTS.search(name) and p not in (place, rows)]
    if len(activated) > 1:  # the model's number of experts may stand beside the number of those activated
        activated = [p for p in activated if "activ" in table.header[p].lower()][:1]
    operators = [p for p, name in enumerate(table.header) if name.lower() in _OPERATOR][:1]
    found: dict[tuple[float, float], dict[str, list[float]]] = {}
    for row, values in table.numbers([rows, *activated, place], scale):
        by_operator = found.setdefault((values[0], values[1] if activated else -1.0), {})
        by_operator.setdefault(row[operators[0]].strip() if operators else "", []).append(values[-1])
    points = [
        [count, *([many] if activated else [math.nan]), sum(map(np.median, by.values()))] for (count, many), by in sorted(found.items())
    ]
    return np.array(points, np.float64)
