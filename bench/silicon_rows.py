"""Read the columns of a published accuracy table and make them honest before anything is fitted.

What is repaired, and why
    parallelism  ``tp`` = moe_tp x moe_ep with moe_tp = moe_ep counts one parallel size twice (a node has that many devices, not its square)
    attention DP concurrency is listed per rank where the column is filled and differs from the source's own, or where it is left empty
    duplicates   the same measurement is listed up to four times: across sources, roundings and sister models of one architecture
What is refused (with the reason)
    aggregated rows whose tensor parallelism cannot divide the heads, and the sheets that hold mostly such rows: they count a whole cluster
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import TextIO

import numpy as np

from models.catalog.devices import load_device
from models.catalog.models_catalog import model_names
from models.errors import FileFormatError, GoodputError
from models.facts.weights import check_tensor_parallel
from models.readers.load import load_architecture as _load

load_architecture = cache(_load)
_SAME = 1e-3  # relative difference of both times below which two rows are one measurement (sources round to 3-6 digits)
_FORMAT = re.compile(r"[-_](fp8|nvfp4|mxfp4|int4|awq|gptq|bf16|w4a16|fp4|hf|instruct|it|base)(?=$|[-_])")
_LINEAGE = ((re.compile(r"^deepseek-(r1|v3)(-\d{4})?$"), "deepseek-v3"), (re.compile(r"^llama-3\.3-"), "llama-3.1-"))
_QUANT = {  # AIConfigurator's names of a format -> compute precision, bits of everything but the experts
    "fp8": ("fp8", 8.0), "fp8_block": ("fp8", 8.0), "fp8_static": ("fp8", 8.0), "fp8_ootb": ("fp8", 8.0), "nvfp4": ("fp4", 8.0),
    "sq": ("int8", 8.0), "int8_wo": ("bf16", 8.0), "int4_wo": ("bf16", 8.0), "w4afp8": ("fp8", 8.0), "": ("bf16", 16.0),
    "bf16": ("bf16", 16.0), "bfloat16": ("bf16", 16.0), "float16": ("bf16", 16.0), "w4a16_mxfp4": ("bf16", 16.0),
    "w4a8_mxfp4_mxfp8": ("fp8", 16.0),
}  # fmt: skip
_FOUR_BITS = {"nvfp4": 4.5, "int4_wo": 4.5, "w4afp8": 4.5, "w4a16_mxfp4": 4.25, "w4a8_mxfp4_mxfp8": 4.25}  # scales included


@dataclass(frozen=True)
class Row:
    """One measurement, repaired. Times in seconds."""

    key: str
    line: int
    group: str
    model: str  # architecture that the model shares with its sisters
    engine: str
    version: str
    system: str
    precision: str
    harness: str
    years: float | None  # since 2026, of the measurement
    prompt: int
    output: int
    concurrency: float
    devices: int
    attention_ranks: int
    expert_parallel: bool
    compute_precision: str
    dense_bits: float
    expert_bits: float
    kv_format: str
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True)
class Refused:
    """A row that cannot be used, and why."""

    line: int
    key: str
    reason: str


def plain_model(path: str) -> str:
    """Name without publisher, stored format and tuning; sister models of one architecture share it."""
    name = path.rsplit("/", maxsplit=1)[-1].lower().removeprefix("meta-")
    while (shorter := _FORMAT.sub("", name)) != name:
        name = shorter
    for pattern, to in _LINEAGE:
        name = pattern.sub(to, name)
    return name


def architectures() -> dict[str, str]:
    """Plain name -> catalogue name; the original publication before its quantised copies."""
    found: dict[str, str] = {}
    for name in sorted(model_names(), key=lambda n: (len(n.split("/")[-1]), n.startswith("nvidia/"), n)):
        found.setdefault(plain_model(name), name)
    return found


def _integer(row: dict[str, str], name: str, default: int) -> int:
    text = (row.get(name) or "").strip()
    value = float(text) if text else default
    if not (math.isfinite(value) and value == int(value) and 0 <= value < 1e9):
        raise ValueError(f"{name} is not a count: {text!r}")
    return int(value)


def _time(row: dict[str, str], name: str) -> float:
    value = float(row.get(name) or "nan") / 1e3
    if not (math.isfinite(value) and 1e-5 < value < 3600):
        raise ValueError(f"{name} is not a plausible time in milliseconds: {row.get(name)!r}")
    return value


def _layout(row: dict[str, str]) -> tuple[int, int, int, bool]:
    """(devices, attention ranks, replicas of attention, expert parallel) of one replica, parallelism counted once."""
    tp, dp = max(_integer(row, "tp_size", 1), 1), max(_integer(row, "attention_dp_size", 1), 1)
    moe_tp, moe_ep = max(_integer(row, "moe_tp_size", 1), 1), max(_integer(row, "moe_ep_size", 1), 1)
    product, attention = moe_tp * moe_ep, tp * dp
    if moe_tp == moe_ep > 1 and attention == product:
        devices = moe_tp
    elif tp == dp > 1 and attention == product:
        devices = tp
    else:
        devices = max(attention, product)
    split = tp < devices and devices % tp == 0 and not moe_tp == moe_ep > 1
    ranks = 1 if dp > 1 else tp if split else devices
    return devices, ranks, devices // ranks, moe_ep > 1


def _concurrency(row: dict[str, str], source: str, replicas: int) -> float:
    """Requests in flight on the whole replica, whichever convention the row follows."""
    batch, dp = _integer(row, "batch_size", 0), max(_integer(row, "attention_dp_size", 1), 1)
    if batch < 1:
        raise ValueError("batch_size is missing")
    told = re.search(r"silicon_concurrency=(\d+)", source)
    if dp > 1:
        return float(batch if told and int(told.group(1)) == batch else batch * dp)
    blank = not (row.get("attention_dp_size") or "").strip()
    return float(batch * (replicas if blank and replicas > 1 else 1))


def _harness(source: str) -> str:
    """Which kind of load generator the source used: a public dashboard's sweeps, queued jobs, or one analyst's sheet."""
    if re.search(r"\d{4}-\d\d-\d\d\.csv|db-dump", source.split(";", maxsplit=1)[0]):
        return "dashboard"
    return "job" if "gtl_job" in source else "sheet"


def _years(source: str) -> float | None:
    found = re.search(r"measured=(\d{4})-(\d\d)-(\d\d)", source)
    return (date(*map(int, found.groups())) - date(2026, 1, 1)).days / 365 if found else None


def read_row(row: dict[str, str], line: int, known: dict[str, str]) -> Row:
    """One repaired row; ``ValueError`` or ``GoodputError`` says why not."""
    source, model = row.get("silicon_data_source") or "", plain_model(row["model_path"])
    if model not in known:
        raise ValueError(f"unknown model {row['model_path']}")
    if _integer(row, "pp_size", 1) > 1:
        raise ValueError("pipeline parallelism is not covered")
    devices, ranks, replicas, expert_parallel = _layout(row)
    gemm, moe = row.get("gemm_quant_mode") or "", row.get("moe_quant_mode") or ""
    for mode in (gemm, moe):
        if mode not in _QUANT:
            raise ValueError(f"unknown quantisation {mode!r}")
    prompt, output = _integer(row, "isl", 0), _integer(row, "osl", 0)
    if min(prompt, output) < 1:
        raise ValueError("isl and osl must be at least 1")
    check_tensor_parallel(load_architecture(known[model]), max(_integer(row, "tp_size", 1) if devices > 8 else ranks, 1))
    compute, dense = _QUANT[gemm]
    if compute not in load_device(row["system"]).peaks:
        compute = "bf16"
    experts = load_architecture(known[model]).layers[-1].ffn
    routed = bool(experts and experts.experts)
    return Row(
        key=row.get("id") or str(line), line=line, model=model, engine=row["backend"], version=row.get("backend_version") or "",
        group=f"{row['model_path']} | {row['system']} | {row['backend']} | {row.get('precision') or 'unstated'}",
        system=row["system"], precision=row.get("precision") or "", harness=_harness(source), years=_years(source),
        prompt=prompt, output=output, concurrency=_concurrency(row, source, replicas),
        devices=devices, attention_ranks=ranks, expert_parallel=expert_parallel, compute_precision=compute,
        dense_bits=dense if routed else _FOUR_BITS.get(gemm, dense), expert_bits=_FOUR_BITS.get(moe or gemm, _QUANT[moe or gemm][1]),
        kv_format="bf16" if dense == 16.0 else "fp8_e4m3",
        ttft_s=_time(row, "silicon_ttft_ms"), tpot_s=_time(row, "silicon_tpot_ms"),
    )  # fmt: skip


def _lines(file: TextIO, path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and cells of each row; a file that is no such table is refused in one line."""
    reader = csv.DictReader(file)
    try:
        missing = {"model_path", "system", "backend", "isl", "osl", "batch_size"} - set(reader.fieldnames or ())
        if missing:
            raise FileFormatError("not an accuracy table: columns are missing", path=str(path), value=sorted(missing))
        for line, row in enumerate(reader, start=2):
            yield line, {name: cell or "" for name, cell in row.items() if name}  # a short row has empty cells
    except (UnicodeDecodeError, csv.Error) as cause:
        raise FileFormatError("not a CSV text file", path=str(path), value=str(cause)) from cause


def read_table(path: Path) -> tuple[list[Row], list[Refused]]:
    """All aggregated rows of ``path``, repaired, and the others with their reasons."""
    if not path.is_file():
        raise FileFormatError("no such file", path=str(path), way_out="give a CSV with the columns of the accuracy table")
    rows: list[Row] = []
    refused: list[Refused] = []
    sheets: dict[int, str] = {}
    known = architectures()
    with path.open(newline="", encoding="utf-8") as file:
        for line, raw in _lines(file, path):
            if (raw.get("mode") or "agg") != "agg":
                refused.append(Refused(line, raw.get("id") or "", "disaggregated serving is another model"))
                continue
            sheets[line] = "|".join((raw["model_path"], raw.get("system") or "", (raw.get("silicon_data_source") or "").split(";")[0]))
            try:
                rows.append(read_row(raw, line, known))
            except (ValueError, KeyError, GoodputError) as reason:
                refused.append(Refused(line, raw.get("id") or "", str(reason)))
    return _without_mislabelled(rows, refused, sheets)


def _without_mislabelled(rows: list[Row], refused: list[Refused], sheets: dict[int, str]) -> tuple[list[Row], list[Refused]]:
    impossible = Counter(sheets[r.line] for r in refused if "divide over the ranks" in r.reason or "KV heads" in r.reason)
    possible = Counter(sheets[r.line] for r in rows)
    bad = {s for s, n in impossible.items() if n > possible[s]}
    reason = "its sheet mostly lists parallel sizes that cannot divide the heads: a cluster's device count, not one replica's"
    refused = refused + [Refused(r.line, r.key, reason) for r in rows if sheets[r.line] in bad]
    return [r for r in rows if sheets[r.line] not in bad], refused


def _near(a: Row, b: Row) -> bool:
    return abs(math.log(a.ttft_s / b.ttft_s)) < _SAME and abs(math.log(a.tpot_s / b.tpot_s)) < _SAME


def distinct(rows: list[Row]) -> list[Row]:
    """Each measurement once, as first listed: equal times of one load on one kind of device and architecture are one run."""
    seen: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        alike = seen[row.model, row.system, row.prompt, row.output, row.concurrency, row.devices]
        if not any(_near(row, other) for other in alike):
            alike.append(row)
    return sorted((r for alike in seen.values() for r in alike), key=lambda r: r.line)


def with_years(rows: list[Row]) -> list[Row]:
    """Rows without a date take the median of their engine's."""
    dated: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.years is not None:
            dated[row.engine].append(row.years)
    middle = {engine: sorted(values)[len(values) // 2] for engine, values in dated.items()}
    return [r if r.years is not None else replace(r, years=middle.get(r.engine, 0.0)) for r in rows]


def thin(rows: list[Row], most: int, seed: int) -> tuple[list[Row], list[Refused]]:
    """At most ``most`` rows, small groups whole and large ones by random choice; the others with the reason."""
    if len(rows) <= most:
        return rows, []
    rng = np.random.default_rng(seed)
    sizes = Counter(r.group for r in rows)
    share = max(most // len(sizes), 1)
    while sum(min(n, share + 1) for n in sizes.values()) <= most:
        share += 1
    rank = dict[int, int]()
    seen: Counter[str] = Counter()
    for i in rng.permutation(len(rows)).tolist():
        rank[i] = seen[rows[i].group]
        seen[rows[i].group] += 1
    kept = [i for i in range(len(rows)) if rank[i] < share][:most]
    chosen = set(kept)
    reason = f"left out at random: more than {most} rows"
    return [rows[i] for i in kept], [Refused(r.line, r.key, reason) for i, r in enumerate(rows) if i not in chosen]
