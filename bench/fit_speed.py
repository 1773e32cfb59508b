"""Seconds of a fit of 1,000 runs: the physical step model and the hierarchical model, on synthetic runs.

python bench/fit_speed.py [--runs 1000]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.held_out import Case, model_of
from models.calibration.evidence import StepObservation, from_steps
from models.calibration.step_fit import fit_steps
from models.catalog.step_prior import step_prior
from models.kernels.step import PHYSICAL, StepModel, step_seconds

MODEL = StepModel(PHYSICAL, 5e14, 1.8e12, 1.4e10, 1.2e9, 6e5, 1.6e10, 0.0, 0.0)


def step_fit(count: int, rng: np.random.Generator) -> float:
    truth = MODEL._replace(matmul_efficiency=0.6, bandwidth_efficiency=0.8, attention_efficiency=0.4, host_s=2e-3)
    rows, context = np.exp(rng.uniform(0, 8, count)).round(), np.exp(rng.uniform(4, 9, count)).round()
    seconds = np.asarray(step_seconds(truth, rows, rows, rows * context, rows * context * 1.5e5, rows)) * np.exp(rng.normal(0, 0.03, count))
    steps = [StepObservation(n, n, n * c, n * c * 1.5e5, n, t) for n, c, t in zip(rows, context, seconds, strict=True)]
    begin = time.perf_counter()
    fit_steps(from_steps(steps), MODEL, step_prior())
    return time.perf_counter() - begin


def hierarchical(count: int, rng: np.random.Generator) -> float:
    terms = [{f"t{j}": float(v) for j, v in enumerate(np.exp(rng.uniform(-3, 3, 12)))} for _ in range(count)]
    labels = {f"label{k}": [str(v) for v in rng.integers(0, 5 * (k + 1), count)] for k in range(6)}
    case = Case("speed", terms, {f"t{j}": 1.0 for j in range(12)}, np.ones(count), rng.normal(size=(count, 7)), labels, {})
    begin = time.perf_counter()
    model = model_of(case)
    measured = np.log([sum(t.values()) for t in terms]) + rng.normal(0, 0.05, count)
    model.predict(model.fit(measured, np.arange(count)), np.arange(count))
    return time.perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    count = parser.parse_args().runs
    print(f"step model, {count} runs: {step_fit(count, np.random.default_rng(0)):.2f} s")
    print(f"hierarchical, {count} runs: {hierarchical(count, np.random.default_rng(1)):.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
