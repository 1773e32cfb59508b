"""Seconds of a plan over rates, Optuna included: a scenario's search of simulated traffic, compiled kernels loaded beforehand.

python bench/traffic_plan.py [--scenario FILE] [--trials 200] [--requests 2000] [--workers N]

Prints JSON: wall and CPU seconds of the whole plan (search, P(SLO), explanation), and what it found.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from planner.plan import Options, plan
from planner.scenario_file import read_raw
from solvers.executors import cores

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Plan once small, so that kernels are compiled and libraries loaded, then once in full."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default=str(ROOT / "scenarios/chat-rate.yaml"))
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=None)
    given = parser.parse_args()
    raw = read_raw(given.scenario)
    begin = time.perf_counter()
    plan(raw, Options(trials=4, requests=100))
    start = time.perf_counter() - begin
    wall, cpu = time.perf_counter(), time.process_time()
    answer = plan(raw, Options(trials=given.trials, requests=given.requests, seed=given.seed, workers=given.workers))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    trials = answer.trials
    print(json.dumps({
        "wall_s": round(wall, 3), "cpu_s": round(cpu, 3), "warm_start_s": round(start, 3), "cores": cores(),
        "workers": given.workers or cores(), "trials": given.trials, "requests": given.requests, "status": answer.status,
        "objective": answer.configurations[0].objective if answer.configurations else None,
        "pruned": trials.pruned if trials else None, "gain_over_closed_form": trials.gain if trials else None,
    }, indent=2))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
