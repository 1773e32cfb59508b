"""Batches of a 70-billion-parameter model on H100s (static batches, 2023): calibrate on some conditions, predict prompt and token times.

    python bench/splitwise.py perf_model.csv [--calibrate-on 7] [--repeat 5]

A condition (parallelism, prompt, batch, output) is the median of its repetitions, so that repeats never stand on both sides. Where the end
to end time is far above its parts the batch was run in waves, and its prompt time is not the batch's: named and left out.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.held_out import Case, head, line, per_group, score
from models.calibration.served_load import LoadFacts, ServedLoad, load_facts, shape_of, step_terms
from models.catalog.devices import load_device
from models.catalog.serving_prior import step_coefficients
from models.readers.load import load_architecture

MODELS = {"llama2-70b": "meta-llama/Llama-2-70b-hf"}
DEVICES = {"h100-80gb": "h100-sxm-80", "a100-80gb": "a100-sxm-80"}
WAVES = 2.0  # end to end time over its parts from which a batch did not run as one
PROMPT_SPEC = {"launch": 5.0, "host": 1.0, "weights": 1.3, "prefill": 1.5, "links": 2.0, "row": 1.0}


def read(path: Path) -> tuple[list[tuple[LoadFacts, float, float, str]], list[str]]:
    """(facts, prompt seconds, token seconds, parallelism) of each condition, and what was left out."""
    repeats: dict[tuple[str, ...], list[tuple[float, float, float]]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as file:
        for r in csv.DictReader(file):
            key = tuple(r[k] for k in ("model", "hardware", "tensor_parallel", "prompt_size", "batch_size", "token_size"))
            repeats[key].append((float(r["prompt_time"]) / 1e3, float(r["token_time"]) / 1e3, float(r["e2e_time"]) / 1e3))
    found, left = [], []
    for key, times in repeats.items():
        model, hardware, *numbers = key
        if model not in MODELS or hardware not in DEVICES:
            left.append(f"{model} on {hardware}: not in the catalogue")
            continue
        tp, prompt, batch, output = map(int, numbers)
        arch = load_architecture(MODELS[model])
        served = ServedLoad(
            arch=arch, device=load_device(DEVICES[hardware]), compute_precision="bf16", dense_bits=16.0, expert_bits=16.0,
            kv_format="bf16", devices=tp, attention_ranks=tp, expert_parallel=False, concurrency=batch, prompt=prompt, output=output,
        )  # fmt: skip
        facts = load_facts(served, shape_of(arch))
        prompt_s, token_s, whole_s = (float(np.median([t[i] for t in times])) for i in (0, 1, 2))
        if whole_s > WAVES * (prompt_s + (output - 1) * token_s):
            left.append(
                f"{model} TP{tp}, {batch} x {prompt}: {whole_s:.1f} s end to end, {prompt_s:.2f} s + {output} x {token_s:.3f} s in parts"
            )
            continue
        found.append((facts, prompt_s, token_s, f"{model} {hardware} TP{tp}"))
    return found, left


def cases(rows: list[tuple[LoadFacts, float, float, str]]) -> tuple[Case, Case]:
    facts = [r[0] for r in rows]
    features = np.array([f.features[:4] for f in facts])
    tokens = np.array([[f.features[0] + f.features[1], f.features[3]] for f in facts])  # a batch of prompts is one long row of tokens
    labels = {"parallelism": [r[3] for r in rows]}
    spec = {n: c for n, c in step_coefficients().items() if not n.startswith("prefill")}  # nothing starts while a static batch runs
    token = Case("token time", [step_terms(f) for f in facts], spec, np.array([r[2] for r in rows]), features, labels, {"launch": 2.0})
    terms = [
        {"launch": f.layers * 1e-5, "host": 5e-3, "weights": f.weights_s, "prefill": f.prefill_s * f.concurrency,
         "links": f.prefill_links_s * f.concurrency, "row": f.concurrency * 1e-3}
        for f in facts
    ]  # fmt: skip
    return Case("prompt time", terms, PROMPT_SPEC, np.array([r[1] for r in rows]), tokens, labels, {"links": 2.0}), token


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--calibrate-on", type=int, default=7, metavar="K", help="conditions of each parallelism")
    parser.add_argument("--repeat", type=int, default=5, help="random choices of those conditions")
    arguments = parser.parse_args()
    rows, left = read(arguments.table)
    print(head())
    for case in cases(rows):
        print(line(score(case, per_group(case.labels["parallelism"], arguments.calibrate_on), arguments.repeat)))
    for reason in left:
        print(f"left out: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
