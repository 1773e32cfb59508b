"""Qwen3-8B on one H100 (vLLM, closed loop): calibrate on 10 rows of each precision, predict output throughput and median ITL.

python bench/qwen3_h100.py perf_points.csv [--calibrate-on 10] [--repeat 5]
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.held_out import Case, Score, head, line, per_group, score
from models.calibration.evidence import ServingObservation, from_serving
from models.calibration.posterior import interval
from models.calibration.served_load import LoadFacts, ServedLoad, load_facts, shape_of, step_terms
from models.calibration.step_fit import fit_steps
from models.calibration.template import step_template
from models.catalog.devices import load_device
from models.catalog.serving_prior import step_coefficients
from models.catalog.step_prior import step_prior
from models.facts.kv import kv_bytes_per_token
from models.readers.load import load_architecture

POOL_TOKENS = {"bf16": 377_024, "fp8": 430_272}  # KV capacity that the engine printed (conditions of the measurement)
SEQUENCES = 1024  # the engine's default for this device


def _facts(rows: list[dict[str, str]]) -> list[LoadFacts]:
    arch, device = load_architecture("Qwen/Qwen3-8B"), load_device("h100-sxm-80")
    shape, found = shape_of(arch), []
    for r in rows:
        bits = 16.0 if r["precision"] == "bf16" else 8.0
        prompt, output, asked = int(r["input_len"]), int(r["output_len"]), float(r["concurrency"])
        running = min(asked, SEQUENCES, POOL_TOKENS[r["precision"]] / (prompt + output * 0.75))
        served = ServedLoad(
            arch=arch, device=device, compute_precision=r["precision"], dense_bits=bits, expert_bits=bits, kv_format="bf16", devices=1,
            attention_ranks=1, expert_parallel=False, concurrency=running, prompt=prompt, output=output,
        )  # fmt: skip
        found.append(load_facts(served, shape))
    return found


def read(path: Path, precision: str) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [r for r in csv.DictReader(file) if r["precision"] == precision]


def cases(rows: list[dict[str, str]], precision: str) -> list[Case]:
    """Median inter-token latency, and seconds that a running request takes for each of its output tokens (its inverse is throughput)."""
    facts, spec = _facts(rows), step_coefficients()
    labels = [precision] * len(rows)
    waits = [np.log(max(float(r["concurrency"]) / f.concurrency, 1.0)) for r, f in zip(rows, facts, strict=True)]
    features = np.array([[*f.features[:3], w] for f, w in zip(facts, waits, strict=True)])
    common = {"terms": [step_terms(f) for f in facts], "features": features, "labels": {"precision": labels}}
    itl = np.array([float(r["itl_median_ms"]) / 1e3 for r in rows])
    share = np.array([f.concurrency / float(r["output_tok_per_s"]) for r, f in zip(rows, facts, strict=True)])
    idle = {n: 3.0 for n in spec if n.startswith("prefill")}  # a median step may carry a prefill or not
    return [
        Case(f"median inter-token latency, {precision}", spec=spec, measured=itl, wide=idle, **common),
        Case(f"output throughput, {precision}", spec=spec, measured=share, wide={}, **common),
    ]


def physical(path: Path, keep: int, repeat: int) -> list[str]:
    """Throughput again, by the physical step model and its closed-loop approximation alone, from ``keep`` runs and from none."""
    device, out = load_device("h100-sxm-80"), []
    for precision, model in (("bf16", "Qwen/Qwen3-8B"), ("fp8", "Qwen/Qwen3-8B-FP8")):
        arch = load_architecture(model)
        template, prior = step_template(arch, device, precision=precision), step_prior()
        evidence = from_serving([_run(r, kv_bytes_per_token(arch)) for r in read(path, precision)])
        for k in (keep, 0):
            wrong, inside = [], []
            for seed in range(repeat if k else 1):
                order = np.random.default_rng(seed).permutation(len(evidence))
                test = evidence.choose(order[k:])
                found = interval(fit_steps(evidence.choose(order[:k]), template, prior), test, template)
                measured = np.exp(test.measured)
                wrong.append(np.abs(measured / found.median - 1))  # of throughput, the inverse
                inside.append((measured >= found.low) & (measured <= found.high))
            e, covered = np.concatenate(wrong), np.concatenate(inside)
            name = f"throughput, step model alone, {precision}, {k} runs"
            out.append(line(Score(name, float(np.median(e)), float(e.mean()), float(e.max()), float(covered.mean()), len(e))))
    return out


def _run(row: dict[str, str], kv: int) -> ServingObservation:
    prompt, output = int(row["input_len"]), int(row["output_len"])
    return ServingObservation(
        float(row["concurrency"]), prompt, output, kv, slots=min(SEQUENCES, POOL_TOKENS[row["precision"]] / (prompt + output * 0.75)),
        output_tokens_per_s=float(row["output_tok_per_s"]), source=f"{prompt}/{output} x{row['concurrency']}",
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--calibrate-on", type=int, default=10, metavar="K", help="rows of each precision")
    parser.add_argument("--repeat", type=int, default=5, help="random choices of those rows")
    arguments = parser.parse_args()
    print(head())
    for precision in POOL_TOKENS:
        for case in cases(read(arguments.table, precision), precision):
            print(line(score(case, per_group(case.labels["precision"], arguments.calibrate_on), arguments.repeat)))
    print("\n".join(physical(arguments.table, arguments.calibrate_on, arguments.repeat)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
