"""Speculation against published measurements: acceptance length by draft length, and speed-up by draft, length and benchmark.

    python bench/speculation_sets.py --lengths golden_al_flat.csv --speedups spec_bundle.csv [--calibrate-on 5] [--repeat 5]

Lengths: each (model, mode) shows one or two draft lengths, all others are predicted. Speed-up of a draft: acceptance length over the cost
of a round in plain steps; the cost is fitted on a few rows of each draft, the acceptance length is measured, or predicted from the
shortest chain of its benchmark.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.held_out import Case, Floats, head, line, model_of, per_group, score
from models.calibration.acceptance import fit_acceptance
from models.catalog.step_prior import acceptance_prior

SPEC = {"step": 1.0, "draft": 1.0, "rows": 1.0, "tree": 1.0}  # in plain decode steps; units below
DRAFT, ROW, TREE = 0.1, 0.02, 0.01  # one draft pass, one more verified row, one more branch of one level


def show(name: str, errors: Floats) -> str:
    return f"{name:44}{len(errors):9d}{np.median(errors):9.1%}{errors.mean():9.1%}{errors.max():9.1%}"


def lengths(path: Path) -> list[str]:
    series: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            series[row["file"], row["mode"]][int(row["num_speculative_tokens"])] = float(row["mean_acceptance_length_incl_bonus"])
    out = []
    for shown in ((3,), (1, 4), (2, 6)):
        wrong = []
        for measured in series.values():
            given = {m: measured[m] for m in shown if m in measured}
            fit = fit_acceptance(given, acceptance_prior())
            wrong += [abs(fit.tokens(m) / mean - 1) for m, mean in measured.items() if m not in given]
        out.append(show(f"acceptance length, shown {shown}", np.array(wrong)))
    return out


def _speedups(path: Path) -> list[dict[str, float | str]]:
    """Rows with a draft, beside the row without of the same target, benchmark and settings."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    key = ("target", "benchmark", "batch_size", "steps", "topk", "num_draft_tokens")
    plain = {tuple(r[k] for k in key): float(r["output_throughput_tok_s"]) for r in rows if float(r["accept_length"]) == 1.0}
    found: list[dict[str, float | str]] = []
    for r in rows:
        base = plain.get(tuple(r[k] for k in key))
        if base and float(r["accept_length"]) > 1.0:
            numbers = {k: float(r[k]) for k in ("batch_size", "steps", "topk", "num_draft_tokens", "accept_length")}
            found.append(
                {"draft": r["draft"], "benchmark": r["benchmark"], "speedup": float(r["output_throughput_tok_s"]) / base, **numbers}
            )
    return found


def _round_cost(rows: list[dict[str, float | str]]) -> Case:
    terms = [
        {"step": 1.0, "draft": DRAFT * r["steps"], "rows": ROW * r["num_draft_tokens"], "tree": TREE * (r["topk"] - 1) * r["steps"]}
        for r in rows
    ]
    features = np.array([[np.log(r["steps"]), np.log(r["topk"])] for r in rows])
    cost = np.array([r["accept_length"] / r["speedup"] for r in rows])
    labels = {"draft": [str(r["draft"]) for r in rows], "benchmark": [str(r["benchmark"]) for r in rows]}
    return Case("speed-up, acceptance length measured", terms, SPEC, cost, features, labels, {"draft": 2.0, "rows": 2.0, "tree": 2.0})


def predicted_length(rows: list[dict[str, float | str]], keep: int, repeat: int) -> str:
    """Chains only: acceptance from the 3-token chain of the same draft and benchmark, cost from ``keep`` rows of each draft."""
    case = _round_cost(rows)
    model, measured = model_of(case), np.log(case.measured)
    short = {(r["draft"], r["benchmark"]): r["accept_length"] for r in rows if r["topk"] == 1 and r["steps"] == 3}
    wrong = []
    for seed in range(repeat):
        train = per_group([str(r["draft"]) for r in rows], keep)(np.random.default_rng(seed))
        cost = np.exp(model.predict(model.fit(measured, train, passes=6), np.arange(len(rows))).log_mean)
        for i in np.setdiff1d(np.arange(len(rows)), train):
            r = rows[i]
            known = short.get((r["draft"], r["benchmark"]))
            if known and r["topk"] == 1 and r["steps"] > 3:
                wrong.append(abs(fit_acceptance({3: known}, acceptance_prior()).tokens(int(r["steps"])) / cost[i] / r["speedup"] - 1))
    return show("speed-up, acceptance length predicted", np.array(wrong))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=Path, required=True)
    parser.add_argument("--speedups", type=Path, required=True)
    parser.add_argument("--calibrate-on", type=int, default=5, metavar="K", help="rows of each draft")
    parser.add_argument("--repeat", type=int, default=5, help="random choices of those rows")
    arguments = parser.parse_args()
    rows = _speedups(arguments.speedups)
    print(head())
    print("\n".join(lengths(arguments.lengths)))
    split = per_group([str(r["draft"]) for r in rows], arguments.calibrate_on)
    print(line(score(_round_cost(rows), split, arguments.repeat)))
    print(predicted_length(rows, arguments.calibrate_on, arguments.repeat))
    return 0


if __name__ == "__main__":
    sys.exit(main())
