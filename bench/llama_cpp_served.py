"""Served load of llama-server on a small CPU: what is calibrated on what, and how far the rest is off.

    python bench/llama_cpp_served.py steps.csv server.jsonl

The steps are of another model on the same machine. Their fit, with the work of the served model put in, is the prior of the served fits
(wider: smaller matrices, weights that fit into caches). Then
    steps alone    no served run is seen
    other runs     one run is seen, the other two predicted
    later requests the first half of a run's requests is seen, the rest of that run predicted
    other requests every other request of a run is seen, the others of that run predicted (they met the same machine on the same minute)
Arrivals and lengths are those that were sent. For each metric: the median's error, and the median error of single requests. Nothing
that was fitted is predicted. The machine has two virtual cores, which the load generator shares. How much its speed differs from run to
run, whatever is fitted, shows in what a request met that had the engine to itself (``alone``): seconds a prompt token, gaps by context.

Seen in the logs and in the engine's source, not in the model: decoders whose slots are not neighbours run in execution batches of their own
(src/llama-batch.cpp, split_equal); a lone decoder's context, padded to 256 cells, is cut evenly among the threads from 512 cells on, so one
thread waits for the other (ggml/src/ggml-cpu/ops.cpp); the weights return to the cache within some eight tokens after a prompt.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from models.calibration.evidence import StepObservation, from_steps, step_of
from models.calibration.phases import Phase, from_phases
from models.calibration.posterior import Posterior
from models.calibration.prior import Prior
from models.calibration.served_run import ServedRun, from_runs, request_times
from models.calibration.step_fit import fit_steps
from models.catalog.engines import load_engine
from models.catalog.step_prior import SINGLE, step_prior
from models.describe.configuration import KvFormat
from models.kernels.step import PHYSICAL, StepModel, of_format
from models.simulate import simulate
from models.simulation_types import EngineParameters, Policy, RequestArrays

PEAK_FLOPS, PEAK_BYTES = 1e12, 1e11  # above what two AVX-512 cores with their caches reach; the efficiencies say how far
TILED = load_engine("llama_cpp").tiled_from("CPU", KvFormat.BF16)
METRICS = ("ttft", "tpot", "e2e")
NAMES = (*SINGLE, "short_pair_cost@bf16", "conversion_s_per_byte@bf16", "request_s")
WIDTHS = {"matmul_efficiency": 0.2, "attention_efficiency": 0.4, "short_pair_cost@bf16": 0.4, "bandwidth_efficiency": 0.8}  # others: 0.5
SETTLED, SLACK_S = 8, 5e-3  # tokens after which the weights are back in the cache; by how much a client's clock blurs who was there
SHARE = 2  # one request in so many is seen where a run predicts its own rest: half, as the issue asks


def shape(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocabulary: int) -> tuple[StepModel, int]:
    """Work of a Qwen3-shaped model with heads of 64 in q8_0 (34 bytes for 32 weights), and bytes of 16-bit KV a token."""
    inner = layers * (hidden * 64 * (2 * heads + 2 * kv_heads) + 3 * hidden * ffn)
    head = hidden * vocabulary
    work = (2.0 * inner, 2.0 * head, 4.0 * layers * heads * 64, (inner + head) * 34 / 32)
    return StepModel(PHYSICAL, PEAK_FLOPS, PEAK_BYTES, *work, 0.0, 0.0), layers * kv_heads * 64 * 2 * 2


STEPS_MODEL, STEPS_KV = shape(16, 1024, 16, 4, 3072, 32000)
SERVED_MODEL, SERVED_KV = shape(12, 512, 8, 4, 1536, 8192)


def phases(path: Path) -> list[Phase]:
    """Clean rows with a 16-bit cache; decoders and each prompt's micro-batches run apart."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["clean"] == "1" and r["kv_type"] == "f16"]
    return [Phase(tuple(_batches(r)), float(r["wall_s"]), f"row {i}") for i, r in enumerate(rows)]


def _batches(row: dict[str, str]) -> list[StepObservation]:
    parts = [tuple(int(x) for x in part.split(":")[1:]) for part in row["composition_seq_new_ctx"].split(";")]
    size, verify = int(row["n_ubatch"]), row["exp"] == "verify"
    found = [step_of(decoders, kv_bytes_per_token=STEPS_KV, seconds=1.0, tiled_from=TILED)] if (
        decoders := [(new, context) for new, context in parts if new == 1]) else []  # fmt: skip
    for new, context in (part for part in parts if part[0] > 1):
        for start in range(0, new, size):
            rows = min(size, new - start)
            heads = rows if verify else int(start + rows == new)
            found.append(step_of([(rows, context + start)], kv_bytes_per_token=STEPS_KV, seconds=1.0, head_rows=heads, tiled_from=TILED))
    return found


def served(line: dict[str, Any]) -> tuple[ServedRun, dict[str, np.ndarray]]:
    """A run as it was sent, and what each request saw."""
    rows, args = line["requests"], line["args"]
    arrival = np.array([r["start"] for r in rows]) - min(r["start"] for r in rows)
    prompt, output = (np.array([int(r[k]) for r in rows]) for k in ("inp", "ntok"))
    follows = None
    if args["conc"]:
        follows = np.arange(len(rows)) - int(args["conc"])
        follows[follows < 0], arrival = -1, np.zeros(len(rows))
    engine = EngineParameters(
        policy=Policy.CHUNKED, max_num_seqs=args["np"], token_budget=args["b"], micro_batch=args["ub"], tiled_from=TILED, block_tokens=1,
        kv_bytes_per_token=SERVED_KV,
    )  # fmt: skip
    ttft, e2e = (np.array([r[k] for r in rows]) for k in ("ttft", "e2e"))
    times = {"ttft": ttft, "e2e": e2e, "tpot": (e2e - ttft) / (output - 1)}
    requests, everyone = RequestArrays(arrival, prompt, output, follows=follows), np.arange(len(rows))
    return ServedRun(requests, engine, figures_of(times, everyone), line["name"], drawn=False), times


def figures_of(times: dict[str, np.ndarray], seen: np.ndarray) -> dict[str, float]:
    """What the requests ``seen`` measured, one by one."""
    return {f"{m} #{i}": float(times[m][i]) for m in METRICS for i in seen.tolist()}


def alone(line: dict[str, Any]) -> dict[str, Any]:
    """Median milliseconds of what met no other request: of a prompt token, of the client's TTFT beyond the server's own count, and of a gap
    by its cells of context (in steps of 256, as the engine pads them) once ``SETTLED`` tokens have followed the prompt.
    """
    rows = line["requests"]
    spans = np.array([(r["start"], r["start"] + r["e2e"]) for r in rows])
    tokens, beyond, gaps = list[float](), list[float](), dict[int, list[float]]()

    def free(row: int, begin: float, end: float) -> bool:
        others = np.delete(spans, row, axis=0)
        return not bool(((others[:, 0] < end - SLACK_S) & (others[:, 1] > begin + SLACK_S)).any())

    for number, r in enumerate(rows):
        times = r["start"] + r["ttft"] + np.cumsum([0.0, *r["itl"]])
        if free(number, r["start"], times[0]):
            tokens.append(r["timings"]["prompt_ms"] / r["inp"])
            beyond.append(r["ttft"] * 1e3 - r["timings"]["prompt_ms"])
        for place in range(SETTLED, len(r["itl"])):
            if free(number, times[place], times[place + 1]):
                gaps.setdefault(-(-(r["inp"] + place + 1) // 256) * 256, []).append(r["itl"][place] * 1e3)
    measured = {"prompt token": tokens, "client beyond server": beyond} | {f"gap, {cells} cells": gaps[cells] for cells in sorted(gaps)}
    return {name: {"count": len(values), "ms": round(float(np.median(values)), 3)} for name, values in measured.items() if values}


def served_prior(steps: Posterior) -> Prior:
    """What the steps of the other model say, as far as it carries over: matrices are smaller, weights may fit into caches."""
    blank = step_prior(NAMES, peak_bytes_per_s=PEAK_BYTES)
    mean, sd = list(blank.mean), list(blank.sd)
    for at, name in enumerate(blank.names):
        if name in steps.names:
            mean[at] = float(steps.mean[steps.names.index(name)])
            sd[at] = WIDTHS.get(name, 0.5)
    return replace(blank, mean=tuple(mean), sd=tuple(sd))


def errors(run: ServedRun, times: dict[str, np.ndarray], posterior: Posterior, seen: np.ndarray | None = None) -> dict[str, Any]:
    """Of the requests that were not ``seen``: error of the median, and median error of a request."""
    rest = np.setdiff1d(np.arange(len(run.requests)), [] if seen is None else seen)
    model = of_format(posterior.step_model(SERVED_MODEL), "bf16")
    simulated = request_times(simulate(run.requests, run.engine, model))
    late = {"ttft": model.request_s, "e2e": model.request_s, "tpot": 0.0}
    found = {}
    for metric in METRICS:
        predicted, measured = simulated[metric][rest] + late[metric], times[metric][rest]
        of_median, each = float(np.median(predicted) / np.median(measured) - 1), np.abs(predicted / measured - 1)
        found[metric] = {"median": of_median, "requests": float(np.median(each)), "each": each}
    return found


def summary(table: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Median over the predicted runs of the error of their medians, median error of all predicted requests, and the runs themselves."""
    overall = {}
    for m in METRICS:
        each = np.concatenate([run[m].pop("each") for run in table.values()])
        overall[m] = {"median": float(np.median([abs(run[m]["median"]) for run in table.values()])), "requests": float(np.median(each))}
    return {"overall": overall, "runs": table}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", type=Path)
    parser.add_argument("server", type=Path)
    arguments = parser.parse_args()
    steps = fit_steps(from_phases(phases(arguments.steps)), STEPS_MODEL, step_prior(NAMES[:-1], peak_bytes_per_s=PEAK_BYTES))
    prior = served_prior(steps)
    lines = [json.loads(line) for line in arguments.server.read_text().splitlines()]
    runs = [served(line) for line in lines]
    unseen = fit_steps(from_steps([]), SERVED_MODEL, prior)
    report: dict[str, Any] = {"alone": {line["name"]: alone(line) for line in lines}}
    report["steps alone"] = summary({r.name: errors(r, t, unseen) for r, t in runs})
    for seen, _ in runs:
        fitted = fit_steps(from_runs([seen]), SERVED_MODEL, prior)
        report[f"other runs, from {seen.name}"] = summary({r.name: errors(r, t, fitted) for r, t in runs if r is not seen})
    splits = {"later requests": lambda n: np.arange(n // SHARE), "other requests": lambda n: np.arange(0, n, SHARE)}
    for name, split in splits.items():
        rest = {}
        for run, times in runs:
            chosen = split(len(run.requests))
            part = replace(run, figures=figures_of(times, chosen))
            rest[run.name] = errors(run, times, fit_steps(from_runs([part]), SERVED_MODEL, prior), chosen)
        report[name] = summary(rest)
    print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
