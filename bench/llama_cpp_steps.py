"""Steps of llama.cpp on a small CPU: calibrate on half of the compositions, predict the other half, by kind of step and KV format.

    python bench/llama_cpp_steps.py steps.csv [--repeat 3]

f16 attention has two regimes (a tiled kernel from 64 new tokens a sequence on), quantised KV has one; each execution batch costs apart.
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.held_out import Case, Floats, Ints, head, line, model_of, score

TILED = 64  # new tokens of a sequence from which the tiled kernel runs (f16 KV)
HIDDEN, VOCABULARY, PAIR_FLOPS = 1024, 32000, 4 * 16 * 64 * 16  # shape of the measured model: 16 layers of 16 heads of 64
FLOPS, BYTES_PER_S = 1e11, 2e10  # a guess of two AVX-512 cores: the coefficients' unit
SPEC = {"batch": 1.0, "weights": 1.0, "tokens": 1.0, "logits": 1.0, "plain_pairs": 3.0, "tiled_pairs": 1.0, "kv": 1.0, "sequences": 1.0}


def _terms(row: dict[str, str]) -> dict[str, float]:
    parts = [tuple(int(x) for x in part.split(":")[1:]) for part in row["composition_seq_new_ctx"].split(";")]
    tiled = [new >= TILED and row["kv_type"] == "f16" for new, _ in parts]
    pairs = [new * context + new * (new + 1) / 2 for new, context in parts]
    head_weights = HIDDEN * VOCABULARY
    batches, new = float(row["ubatches"]), float(row["new_tokens"])
    inner = float(row["weight_params"]) - 2 * head_weights  # the embedding is looked up, the head counted apart
    return {
        "batch": batches * 1e-3,
        "weights": batches * inner * 34 / 32 / BYTES_PER_S,
        "tokens": 2 * inner * new / FLOPS,
        "logits": 2 * head_weights * float(row["outputs"]) / FLOPS,
        "plain_pairs": PAIR_FLOPS * sum(p for p, t in zip(pairs, tiled, strict=True) if not t) / FLOPS,
        "tiled_pairs": PAIR_FLOPS * sum(p for p, t in zip(pairs, tiled, strict=True) if t) / FLOPS,
        "kv": float(row["kv_read_bytes"]) / BYTES_PER_S,
        "sequences": float(row["n_seq"]) * 1e-4,
    }


def case_of(rows: list[dict[str, str]]) -> Case:
    features = np.log1p(np.array([[float(r["new_tokens"]), float(r["n_seq"]), float(r["max_ctx"]) / 128] for r in rows]))
    return Case(
        "step time", [_terms(r) for r in rows], SPEC, np.array([float(r["wall_s"]) for r in rows]), features,
        {"kv_type": [r["kv_type"] for r in rows]}, dict.fromkeys(SPEC, 2.0),
    )  # fmt: skip


def halves(rows: list[dict[str, str]]) -> tuple[list[str], Ints]:
    """Names of the distinct compositions (repeats of one never stand on both sides) and the composition of each row."""
    keys = [f"{r['kv_type']} {r['composition_seq_new_ctx']} {r['outputs']}" for r in rows]
    names, code = np.unique(keys, return_inverse=True)
    return list(names), code.astype(np.intp)


def by_kind(case: Case, rows: list[dict[str, str]], seeds: int) -> list[str]:
    names, code = halves(rows)
    model, measured = model_of(case, smooth_sd=0.08, noise_sd=0.05), np.log(case.measured)
    errors: dict[str, list[Floats]] = {}
    for seed in range(seeds):
        chosen = np.random.default_rng(seed).permutation(len(names))[: len(names) // 2]
        test = np.flatnonzero(~np.isin(code, chosen))
        answer = model.predict(model.fit(measured, np.flatnonzero(np.isin(code, chosen)), passes=8), test)
        wrong = np.abs(np.exp(answer.log_mean - measured[test]) - 1)
        for kind in sorted({r["exp"] for r in rows}):
            for kv in sorted({r["kv_type"] for r in rows}):
                at = np.array([rows[i]["exp"] == kind and rows[i]["kv_type"] == kv for i in test])
                if at.any():
                    errors.setdefault(f"  {kind}, KV {kv}", []).append(wrong[at])
    joined = {name: np.concatenate(found) for name, found in errors.items()}
    return [f"{n:44}{len(e):9d}{np.median(e):9.1%}{e.mean():9.1%}{e.max():9.1%}" for n, e in joined.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--repeat", type=int, default=3, help="random halves")
    arguments = parser.parse_args()
    with arguments.table.open(newline="", encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["clean"] == "1"]
    case = case_of(rows)
    names, code = halves(rows)

    def split(rng: np.random.Generator) -> Ints:
        return np.flatnonzero(np.isin(code, rng.permutation(len(names))[: len(names) // 2]))

    print(head())
    print(line(score(case, split, arguments.repeat, smooth_sd=0.08, noise_sd=0.05)))
    alone = score(case, split, arguments.repeat, smooth_sd=1e-6, noise_sd=0.05)
    print(line(replace(alone, name="step time, physical terms alone")))
    print("\n".join(by_kind(case, rows, arguments.repeat)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
