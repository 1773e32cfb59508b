"""Speed of planning: cold commands, the vectorised evaluator, CP-SAT over random scenarios, a warm what-if.

usage: python bench/plan.py [--runs 7] [--scenarios 255] [--part NAME ...]      prints JSON

CPU seconds of a command are those of the finished child process, start-up included. A random scenario keeps its lists of formats,
drafts and offload and opens every integer batch, admission limit and budget, so that CP-SAT proves it at full resolution; scenarios that
are refused are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
COMMAND = "from api.cli import main; main()"
ENOUGH_CELLS = 4_000_000


def main() -> None:
    parts: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "cold_candidates": lambda given: cold("scenarios/chapter8.yaml", given.runs, 0.7),
        "cold_search_with_proof": lambda given: cold("scenarios/chapter8-search.yaml", given.runs, 2.5),
        "evaluator": lambda given: evaluator(given.runs),
        "cpsat": lambda given: cpsat_scenarios(given.scenarios),
        "cpsat_open": lambda given: cpsat_scenarios(max(given.scenarios // 8, 8), everything=True),
        "warm_what_if": lambda given: warm_what_if(max(given.runs, 20)),
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--scenarios", type=int, default=255)
    parser.add_argument("--part", action="append", choices=list(parts))
    given = parser.parse_args()
    found = {"machine": machine()} | {name: parts[name](given) for name in given.part or parts}
    print(json.dumps(found, indent=2))


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cores": usable, "system": platform.system(), "architecture": platform.machine(), "python": platform.python_version()}


def spread(values: list[float], digits: int = 4) -> dict[str, float]:
    return {name: round(of(values), digits) for name, of in (("median", statistics.median), ("min", min), ("max", max))}


def cold(scenario: str, runs: int, limit: float) -> dict[str, Any]:
    """Whole processes; one unmeasured run first fills the file cache and compiles modules."""
    command = [sys.executable, "-c", COMMAND, "plan", str(ROOT / scenario)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    cpu, wall = [], []
    for _ in range(runs):
        before, started = _children_cpu(), time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        cpu.append(_children_cpu() - before)
        wall.append(time.perf_counter() - started)
    return {"cpu_s": spread(cpu), "wall_s": spread(wall), "limit_cpu_s": limit, "runs": runs}


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def evaluator(runs: int) -> dict[str, Any]:
    """Configurations a CPU-second of the exhaustive search over a grid that it enumerates cell by cell."""
    from solvers import exhaustive

    grid = _enumerable_grid()
    rates = []
    for _ in range(runs):
        started = time.process_time()
        found = exhaustive.solve(grid)
        rates.append(found.evaluated / (time.process_time() - started))
    return {"configurations_per_cpu_s": spread(rates, 0), "configurations": grid.size, "limit_at_least": 5_000_000, "runs": runs}


def _enumerable_grid() -> Any:
    """The chapter's traffic with formats, drafts, batches, admission and every budget in steps of 16 open."""
    from planner.resolve import resolve
    from planner.scenario_file import parse_scenario, read_raw
    from solvers.grid import Grid
    from solvers.space import build_space

    raw = read_raw(ROOT / "scenarios" / "chapter8-search.yaml")
    raw["search"] = {
        "max_num_seqs": {"min": 1, "max": 16}, "admission_limit": [None, *range(1, 17)],
        "max_num_batched_tokens": {"min": 16, "max": 16384, "step": 16}, "offload_layers": [0],
        "kv_format": ["bf16", "fp8_e4m3", "q8_0", "nvfp4"], "prefix_sharing": [False, True], "draft": ["none", "lookup", "dflash"],
        "draft_tokens": list(range(2, 18)),
    }  # fmt: skip
    case = resolve(parse_scenario(raw))
    grid = Grid.of(case, build_space(case))
    if grid.size < ENOUGH_CELLS:
        raise SystemExit(f"the grid has only {grid.size} cells")
    return grid


def cpsat_scenarios(count: int, *, everything: bool = False) -> dict[str, Any]:
    """Wall seconds of the whole proof (bounds, incumbent, CP-SAT) and of CP-SAT alone; ``everything`` leaves every variable open."""
    from solvers import cpsat, full_resolution, incumbent

    whole, alone, spaces = [], [], []
    statuses: dict[str, int] = {}
    for grid, size in _random_grids(count, everything=everything):
        started = time.perf_counter()
        bounded = full_resolution.bounded_cells(grid)
        start = incumbent.find(grid, bounded)
        before = time.perf_counter()
        found = cpsat.solve(grid, cutoff=start, time_limit_s=60.0, bounded=bounded)
        ended = time.perf_counter()
        alone.append(ended - before)
        whole.append(ended - started)
        spaces.append(float(size))
        statuses[str(found.status)] = statuses.get(str(found.status), 0) + 1
    return {
        "scenarios": count, "cpsat_wall_s": _quantiles(alone), "proof_wall_s": _quantiles(whole),
        "limit_median_s": 0.5, "limit_p99_s": 5.0, "statuses": statuses, "median_space": statistics.median(spaces),
    }  # fmt: skip


def _random_grids(count: int, *, everything: bool) -> Iterator[tuple[Any, int]]:
    from models.errors import InputError
    from planner.resolve import resolve
    from planner.scenario_file import parse_scenario
    from solvers import cpsat
    from solvers.grid import Grid
    from solvers.space import build_space
    from tests.laws.scenarios import random_scenario

    made = seed = 0
    while made < count:
        raw = random_scenario(Random(seed), proven_only=True)
        if everything:
            del raw["search"]
        else:
            raw["search"] |= dict.fromkeys(("max_num_seqs", "max_num_batched_tokens", "admission_limit"))
        seed += 1
        try:
            case = resolve(parse_scenario(raw))
            space = build_space(case)
            grid = Grid.of(case, space)
        except InputError:
            continue
        if space.size and cpsat.applicable(grid) is None:
            made += 1
            yield grid, space.size


def _quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    ranks = {"median": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(ordered[max(-(-int(share * 1000) * len(ordered) // 1000) - 1, 0)], 4) for name, share in ranks.items()}


def warm_what_if(runs: int) -> dict[str, Any]:
    """One changed value, planned again in a process that has planned before; the first answer is known."""
    from planner.plan import Options, plan
    from planner.scenario_file import read_raw
    from planner.what_if import what_if

    raw = read_raw(ROOT / "scenarios" / "chapter8.yaml")
    options = Options(explain=False, launch=False)
    first = plan(raw, options)
    wall = []
    for i in range(runs):
        started = time.perf_counter()
        what_if(raw, [("workload.long.output_tokens", 64 + i)], options, first)
        wall.append((time.perf_counter() - started) * 1e3)
    return {"wall_ms": spread(wall, 2), "limit_ms": 20.0, "runs": runs}


if __name__ == "__main__":
    main()
