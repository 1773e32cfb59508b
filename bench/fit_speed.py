"""CPU seconds of a fit of 1,000 runs: the physical step model, load tests through the simulator, the hierarchical model; synthetic runs.

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
from models.calibration.served_run import ServedRun, from_runs, request_times
from models.calibration.step_fit import fit_steps
from models.catalog.step_prior import step_prior
from models.kernels.step import PHYSICAL, StepModel, step_seconds
from models.simulate import simulate
from models.simulation_types import EngineParameters, RequestArrays

MODEL = StepModel(PHYSICAL, 5e14, 1.8e12, 1.4e10, 1.2e9, 6e5, 1.6e10, 0.0, 0.0)


def step_fit(count: int, rng: np.random.Generator) -> float:
    truth = MODEL._replace(matmul_efficiency=0.6, bandwidth_efficiency=0.8, attention_efficiency=0.4, host_s=2e-3)
    rows, context = np.exp(rng.uniform(0, 8, count)).round(), np.exp(rng.uniform(4, 9, count)).round()
    seconds = np.asarray(step_seconds(truth, rows, rows, rows * context, rows * context * 1.5e5, rows)) * np.exp(rng.normal(0, 0.03, count))
    steps = [StepObservation(n, n, n * c, n * c * 1.5e5, n, t) for n, c, t in zip(rows, context, seconds, strict=True)]
    begin = time.process_time()
    fit_steps(from_steps(steps), MODEL, step_prior())
    return time.process_time() - begin


def served_fit(count: int, rng: np.random.Generator) -> float:
    """Half closed loops, half rates, 128 requests each; TTFT and TPOT with 5 % noise."""
    truth = MODEL._replace(matmul_efficiency=0.6, bandwidth_efficiency=0.8, attention_efficiency=0.4, host_s=2e-3)
    engine = EngineParameters(max_num_seqs=64, token_budget=8192, kv_bytes_per_token=1.5e5)
    runs = []
    for i in range(count):
        size, prompt, output = 128, rng.integers(100, 2000, 128), rng.integers(16, 256, 128)
        clients = int(2 ** rng.uniform(0, 5))
        follows = np.arange(size) - clients if i % 2 else None
        arrival = np.zeros(size) if i % 2 else np.cumsum(rng.exponential(1 / rng.uniform(0.5, 6), size))
        requests = RequestArrays(arrival, prompt, output, follows=None if follows is None else np.maximum(follows, -1))
        times = request_times(simulate(requests, engine, truth))
        figures = {f"{m} mean": float(times[m].mean() * np.exp(rng.normal(0, 0.05))) for m in ("ttft", "tpot")}
        runs.append(ServedRun(requests, engine, figures, f"run {i}"))
    begin = time.process_time()
    fit_steps(from_runs(runs), MODEL, step_prior())
    return time.process_time() - begin


def hierarchical(count: int, rng: np.random.Generator) -> float:
    terms = [{f"t{j}": float(v) for j, v in enumerate(np.exp(rng.uniform(-3, 3, 12)))} for _ in range(count)]
    labels = {f"label{k}": [str(v) for v in rng.integers(0, 5 * (k + 1), count)] for k in range(6)}
    case = Case("speed", terms, {f"t{j}": 1.0 for j in range(12)}, np.ones(count), rng.normal(size=(count, 7)), labels, {})
    begin = time.process_time()
    model = model_of(case)
    measured = np.log([sum(t.values()) for t in terms]) + rng.normal(0, 0.05, count)
    model.predict(model.fit(measured, np.arange(count)), np.arange(count))
    return time.process_time() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    count = parser.parse_args().runs
    print(f"step model, {count} runs: {step_fit(count, np.random.default_rng(0)):.2f} s")
    print(f"load tests, {count} runs: {served_fit(count, np.random.default_rng(2)):.2f} s")
    print(f"hierarchical, {count} runs: {hierarchical(count, np.random.default_rng(1)):.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
