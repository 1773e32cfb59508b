"""What was predicted against what was measured: halves of the make-ups, errors of held-out steps and of served loads, noise."""

from __future__ import annotations

import csv
import json
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.here.loads import Served, scenario
from bench.here.shell import Goodput, say
from models.calibration.document import from_document
from models.calibration.posterior import interval
from models.catalog.devices import load_device
from planner.import_runs import checked_facts
from planner.importers import iterate_import
from planner.observations import material, template_of
from planner.ports import StoredRun
from planner.records import RunRecord
from planner.run_groups import Group, key_of

COLUMNS = {
    "step.composition": "composition", "step.kind": "kind", "step.seconds": "cpu_s:s", "step.repeats": "repeats", "kv_format": "kv_type",
}  # fmt: skip
TABLE = ("kv_type", "exp", "kind", "composition", "cpu_s", "repeats")


def repeats(steps: Iterable[Path]) -> dict[tuple[str, ...], list[tuple[float, float]]]:
    """(CPU, wall) seconds of every repeat, over all tables, by make-up: the first fields of ``TABLE``."""
    found: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for table in steps:
        with table.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                key = (row["kv_type"], row["exp"], row["kind"], row["composition_seq_new_ctx"])
                found.setdefault(key, []).append((float(row["cpu_s"]), float(row["wall_s"])))
    return found


def make_ups(steps: Iterable[Path]) -> list[dict[str, Any]]:
    """One row for each measured make-up with the median CPU seconds of its repeats: a served load meets the usual speed, not the best."""
    table = repeats(steps).items()
    return [dict(zip(TABLE, (*key, f"{statistics.median(cpu for cpu, _ in times):.6f}", len(times)), strict=True)) for key, times in table]


def noise(steps: Iterable[Path]) -> dict[str, float]:
    """Median over the make-ups of (largest - least) / median of the repeats, and the engine's share of a core: CPU over wall seconds."""
    found = [np.array(times) for times in repeats(steps).values()]
    spread = statistics.median(float(np.ptp(times[:, 0]) / np.median(times[:, 0])) for times in found)
    cpu, wall = np.concatenate(found).sum(axis=0)
    return {"range_of_repeats": round(spread, 4), "share_of_a_core": round(float(cpu / wall), 3)}


def table_halves(rows: list[dict[str, Any]], out: Path, seed: int = 0) -> tuple[Path, Path]:
    """Tables of a random half of the make-ups (to calibrate on) and of the others (to predict)."""
    drawn = random.Random(seed).sample(rows, len(rows))
    files = out / "steps-calibrated.csv", out / "steps-held-out.csv"
    for file, half in zip(files, (drawn[: len(rows) // 2], drawn[len(rows) // 2 :]), strict=True):
        write_table(file, half)
    return files


def write_table(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Make-ups as ``goodput import`` reads them with ``COLUMNS``."""
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, TABLE)
        writer.writeheader()
        writer.writerows(rows)


def held_out(table: Path, known: Mapping[str, str], fitted: Mapping[str, Any]) -> dict[str, Any]:
    """Errors |predicted / measured - 1| of the calibration on the make-ups of ``table``, by kind of step; how many its intervals hold."""
    group = _group(table, known)
    evidence = material(group).evidence
    answer = interval(from_document(fitted["fit"]), evidence, template_of(group.architecture, group.device, group.key.tensor_parallel))
    measured = np.exp(evidence.measured)
    wrong = np.abs(answer.median / measured - 1)
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    kinds = [f"{rows[int(name.split()[1])]['exp']} {rows[int(name.split()[1])]['kv_type']}" for name in evidence.names]
    by_kind = {kind: _errors([float(w) for w, k in zip(wrong, kinds, strict=True) if k == kind]) for kind in sorted(set(kinds))}
    inside = float(np.mean((answer.low <= measured) & (measured <= answer.high)))
    return {"overall": _errors(wrong.tolist()), "inside_90": round(inside, 3), "by_kind": by_kind}


def _group(table: Path, known: Mapping[str, str]) -> Group:
    records = [e for e in iterate_import([table], known=checked_facts(known), columns=COLUMNS) if isinstance(e, RunRecord)]
    key, architecture = key_of(records[0].setup)
    return Group(key, architecture, load_device(key.device), tuple(StoredRun(n, "", r) for n, r in enumerate(records)))


def _errors(wrong: Sequence[float]) -> dict[str, float]:
    return {"rows": len(wrong), "median": round(statistics.median(wrong), 4), "worst": round(max(wrong), 4)}


def served_errors(served: Mapping[Served, Path], out: Path, goodput: Goodput, model: str, device: str) -> dict[str, Any]:
    """Measured and simulated medians of TTFT, TPOT and e2e of each load (and the file of its answers), and the median of their errors."""
    found: dict[str, Any] = {}
    for load, answer in served.items():
        seen, said = measured_medians(json.loads(answer.read_text())["requests"]), _simulated(load, out, goodput, model, device)
        found[load.name] = {m: {"measured": seen[m], "predicted": said[m], "error": round(said[m] / seen[m] - 1, 4)} for m in seen}
    overall = {m: round(statistics.median(abs(one[m]["error"]) for one in found.values()), 4) for m in ("ttft", "tpot", "e2e")}
    return {"median_error": overall, "loads": found}


def measured_medians(requests: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Medians over the requests, seconds."""
    tpot = [(r["e2e"] - r["ttft"]) / (r["out"] - 1) for r in requests]
    values = {"ttft": [r["ttft"] for r in requests], "tpot": tpot, "e2e": [r["e2e"] for r in requests]}
    return {name: round(statistics.median(v), 6) for name, v in values.items()}


def _simulated(load: Served, out: Path, goodput: Goodput, model: str, device: str) -> dict[str, float]:
    trace = None
    if load.rate is not None:
        trace = f"{load.name}.trace.csv"
        lines = [f"{at!r},{p},{o}" for at, (p, o) in zip(load.arrivals, load.lengths, strict=True)]
        (out / trace).write_text("\n".join(["arrival,prompt,output", *lines]) + "\n")
    asked = out / f"{load.name}.yaml"
    asked.write_text(json.dumps(scenario(load, model, device, trace)))
    say(f"simulating {load.name} …")
    found = goodput.json("simulate", asked, "--config", "engine", "--requests", load.count)["overall"]
    return {name: found[f"{name}_s"]["p50"] for name in ("ttft", "tpot", "e2e")}
