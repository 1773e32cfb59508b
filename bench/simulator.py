"""Speed of the scheduler simulator: requests simulated for each CPU second, with every percentile and gap statistic.

    python bench/simulator.py [--repeat N] [--requests N]

Prints JSON. ``requests_per_cpu_s`` is the first case: Llama-3.1-8B on one H100 SXM 80 GB, 2048 tokens in, 256 out, continuous
batching with chunks of 512, Poisson arrivals at 95 % of the knee. CPU seconds of simulation and summary together, best of N turns,
without compilation; the first call after an empty cache (``compile_cpu_s``) and a start from the cache apart, each in its own process.
``reference_requests_per_cpu_s`` is what a naive compiled loop over every decoded token does on this machine at this moment, before
and after the cases: figures of different machines, or of a busy and a quiet one, compare as multiples of it.
Facts: H100 SXM 80 GB, 3,350 GB/s, 989 TFLOP/s dense BF16 (NVIDIA H100 data sheet, 2023); Llama-3.1-8B config.json (Meta, 2024).
The efficiencies are round numbers for a load of the right size, not a calibration.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from models.kernels.step import PHYSICAL, StepModel  # noqa: E402
from models.knee import Engine, knee  # noqa: E402
from models.simulate import simulate  # noqa: E402
from models.simulation_summary import summarise  # noqa: E402
from models.simulation_types import Cache, Deadlines, EngineParameters, Policy, PrefixTree, RequestArrays, SimulationInputs  # noqa: E402

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, FFN, VOCABULARY = 32, 4096, 32, 8, 128, 14336, 128256
LINEARS = LAYERS * (HIDDEN * (HEADS + 2 * KV_HEADS) * HEAD + HEADS * HEAD * HIDDEN + 3 * HIDDEN * FFN)
KV_BYTES = 2 * LAYERS * KV_HEADS * HEAD * 2
MODEL = StepModel(
    PHYSICAL, 989e12, 3.35e12, 2 * LINEARS, 2 * HIDDEN * VOCABULARY, 4 * HEADS * HEAD * LAYERS, 2 * (LINEARS + HIDDEN * VOCABULARY), 0, 0,
    matmul_efficiency=0.6, attention_efficiency=0.3, bandwidth_efficiency=0.8, host_s=2e-3,
)  # fmt: skip
PLAIN = EngineParameters(Policy.CHUNKED, max_num_seqs=256, token_budget=512, kv_bytes_per_token=KV_BYTES)
LIMITS = Deadlines((2.0,), (float("inf"),), (0.1,), (float("inf"),))


def poisson(rate: float, count: int, prompt: int, output: int, seed: int = 0, groups: int = 0) -> RequestArrays:
    random = np.random.default_rng(seed)
    arrival = np.cumsum(random.exponential(1 / rate, count))
    tree = None
    if groups:
        one = random.integers(0, groups, count)
        tree = PrefixTree(np.full(groups, -1), np.full(groups, 1024), np.arange(count + 1), one, np.zeros(groups, bool), np.zeros(groups))
    return RequestArrays(arrival, np.full(count, prompt), np.full(count, output), prefixes=tree)


def knee_rate(engine: EngineParameters, prompt: int, output: int, groups: int = 0) -> float:
    found = knee(
        Engine(SimulationInputs(engine, MODEL, MODEL, 1, 0), LIMITS), lambda rate, seed: poisson(rate, 3000, prompt, output, seed, groups),
        low=0.5, high=200.0, seeds=(0, 1, 2),
    )  # fmt: skip
    return found.rate


@dataclass
class Case:
    """Traffic at ``rate`` on an engine, and the fewest CPU seconds seen: with the summary, and without."""

    requests: RequestArrays
    engine: EngineParameters
    rate: float
    best: float = float("inf")
    best_simulation: float = float("inf")

    def measure(self) -> None:
        begin = time.process_time()
        result = simulate(self.requests, self.engine, MODEL, deadlines=LIMITS)
        middle = time.process_time()
        self.summary = summarise(result)
        self.best = min(self.best, time.process_time() - begin)
        self.best_simulation = min(self.best_simulation, middle - begin)

    def figures(self) -> dict[str, float]:
        count, summary = len(self.requests), self.summary
        return {
            "requests_per_cpu_s": count / self.best, "without_summary": count / self.best_simulation,
            "iterations_per_request": summary.iterations / count, "itl_p99_s": summary.itl.p99, "ttft_p99_s": summary.overall.ttft.p99,
            "share_good": summary.overall.good / count, "preemptions": summary.preemptions, "hit_rate": summary.hit_rate,
            "rate_per_s": self.rate,
        }  # fmt: skip


def near_knee(engine: EngineParameters, count: int, groups: int = 0) -> Case:
    """2048 tokens in, 256 out, at 95 % of the knee."""
    rate = 0.95 * knee_rate(engine, 2048, 256, groups)
    return Case(poisson(rate, count, 2048, 256, groups=groups), engine, rate)


def cases(count: int, repeat: int) -> dict[str, dict[str, float]]:
    """Every case, ``repeat`` times in turns: whoever else keeps the processor busy for a while then slows all of them."""
    paged = replace(PLAIN, kv_blocks=64 * 2304 // 16 // 2, cache=Cache.LRU)
    drafted = replace(PLAIN, max_num_seqs=128, token_budget=1024, draft_tokens=4, tokens_per_round=2.5, acceptance=(0.75,) * 4)
    all_cases = {
        "chunked": near_knee(PLAIN, count), "blocks_preemption_prefix_cache": near_knee(paged, count, 64),
        "random_speculation": near_knee(drafted, count), "low_load_1024_out": Case(poisson(0.5, count, 2048, 1024), PLAIN, 0.5),
    }  # fmt: skip
    for _ in range(repeat):
        for case in all_cases.values():
            case.measure()
    return {name: case.figures() for name, case in all_cases.items()}


def start(cache: str) -> tuple[float, float]:
    """(CPU, wall) seconds from an interpreter that has numpy to the first simulated result, in a process of its own."""
    code = (
        "import time, numpy; wall, cpu = time.perf_counter(), time.process_time()\n"
        "from bench.simulator import poisson, PLAIN, MODEL, simulate, summarise\n"
        "summarise(simulate(poisson(10.0, 100, 2048, 256), PLAIN, MODEL))\n"
        "print(time.process_time() - cpu, time.perf_counter() - wall)"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": cache, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    cpu, wall = done.stdout.split()
    return float(cpu), float(wall)


def reference() -> float:
    """Requests of 256 tokens for each CPU second, when every token is one turn of a loop: price, clock, context, longest gap."""
    from numba import njit

    @njit(error_model="numpy")
    def naive(requests: int, tokens: int) -> float:
        clock, longest, context = 0.0, 0.0, 2048.0
        for _ in range(requests):
            for _ in range(tokens):
                gap = max(5e-3 + 1e-9 * context, 1e-8 * context / (1.0 + 1e-12 * clock))
                clock += gap
                longest = max(longest, gap)
                context = context + 1.0 if context < 4096.0 else 2048.0
        return clock + longest

    naive(1, 1)
    best = float("inf")
    for _ in range(5):
        begin = time.process_time()
        naive(20_000, 256)
        best = min(best, time.process_time() - begin)
    return 20_000 / best


def million() -> dict[str, float]:
    """Peak resident memory of a process that simulates a million requests."""
    code = (
        "import resource\nfrom bench.simulator import poisson, PLAIN, MODEL, simulate, summarise\n"
        "s = summarise(simulate(poisson(10.0, 1_000_000, 2048, 256), PLAIN, MODEL))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, s.itl_resolution, s.overall.finished)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=ROOT, capture_output=True, text=True, check=True
    )
    peak, resolution, finished = done.stdout.split()
    return {"peak_MiB": float(peak), "itl_resolution": float(resolution), "finished": float(finished)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=25)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--quick", action="store_true", help="skip compilation and the million requests")
    options = parser.parse_args()
    simulate(poisson(10.0, 100, 2048, 256), PLAIN, MODEL, deadlines=LIMITS)
    before = reference()
    answers = cases(options.requests, options.repeat)
    report: dict[str, object] = {
        "requests_per_cpu_s": answers["chunked"]["requests_per_cpu_s"],
        "reference_requests_per_cpu_s": [before, reference()],
        "cases": answers,
    }
    if not options.quick:
        with tempfile.TemporaryDirectory() as cache:
            report["compile_cpu_s"], report["compile_wall_s"] = start(cache)
            report["cached_start_cpu_s"], report["cached_start_wall_s"] = start(cache)
        report["million_requests"] = million()
    report["this_process_peak_MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
