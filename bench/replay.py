"""Replay a measured serving run through the simulator and say how far off it is.

    python bench/replay.py RUN_DIR [--profile DIR] [--calibrate-on N] [--json]

RUN_DIR holds (somewhere below) ``requests.jsonl`` with per-request lengths and timestamps, and, where they exist, ``meta.json``
(engine settings) and ``config.json`` (device memory). DIR holds (somewhere below) per-operator profiles: ``dense.csv``
(layer, tokens, time_us), ``attention.csv`` (prefill_chunk, kv_prefill, n_decode, kv_decode, time_us), ``per_sequence.csv``
(layer, sequences, time_us). The step model comes from the profiles alone; ``--calibrate-on N`` then fits three scales
(prefill, decode, a constant a step) on the first N requests and judges the others.

Units: seconds and tokens. A step of n rows costs D(n) (dense operators, every layer, interpolated) plus S (head and sampler)
plus, each with its own coefficients, the attention of its prefill chunks (by causal pairs) and of its decoders (by context).
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.optimize import least_squares, nnls

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from models.catalog.models_catalog import model_entry, model_names
from models.kernels.step import LINEAR, StepModel
from models.readers.traces import read_requests_jsonl
from models.simulate import simulate
from models.simulation_types import Cache, EngineParameters, Policy, PrefixTree, RequestArrays, Reserve

PER_LAYER = {"layernorm": 2}  # before the attention and before the feed-forward
ONCE = {"embedding", "final_layernorm"}
NO_FLOOR = 1e30


@dataclass(frozen=True)
class Run:
    """A measured run: traffic, what was observed (s), engine settings."""

    arrival: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    first: np.ndarray
    last: np.ndarray
    settings: dict[str, Any]


@dataclass(frozen=True)
class Costs:
    """Step costs in seconds: ``dense`` by rows; the rest linear."""

    dense: np.ndarray
    step: float
    sequence: float
    prefill: tuple[float, float, float]  # a chunk, a token, a pair
    decode: tuple[float, float, float]  # a step, a sequence, a token of context
    mixed: tuple[float, float, float]  # the same beside a prefill chunk: the attention kernel changes regime


def find(root: Path, name: str) -> Path | None:
    """The shallowest file of that name below ``root``."""
    found = sorted(root.rglob(name), key=lambda path: (len(path.parts), str(path)))
    return found[0] if found else None


def load_run(folder: Path) -> Run:
    requests = find(folder, "requests.jsonl")
    if requests is None:
        raise SystemExit(f"{folder}: no requests.jsonl below this folder")
    trace = read_requests_jsonl(requests)
    meta = find(requests.parent, "meta.json") or find(folder, "meta.json")
    settings = json.loads(meta.read_text()) if meta else {}
    config = find(folder, "config.json")
    if config:
        settings["cluster"] = json.loads(config.read_text())
    if trace.first is None or trace.last is None:
        raise SystemExit(f"{requests}: no token timestamps to compare with")
    return Run(trace.arrival, trace.prompt, trace.output, trace.first, trace.last, settings)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def of_degree(folder: Path, degree: int) -> Path:
    """The profile of this tensor-parallel degree, where the folder holds several."""
    found = sorted(path for path in folder.rglob(f"tp{degree}") if path.is_dir())
    return found[0] if found else folder


def skew_share(folder: Path, degree: int) -> float:
    """How far uneven contexts push a decode's attention from the mean context towards the longest one, where measured."""
    meta = find(folder, "meta.yaml") or find(folder.parent, "meta.yaml")
    fit = (yaml.safe_load(meta.read_text()) or {}).get("skew_fit", {}) if meta else {}
    by_degree = fit.get("per_tp", {}) if fit.get("enabled") else {}
    return float(by_degree.get(degree, {}).get("alpha_default", 0.0))


def skew_factor(run: Run, share: float) -> float:
    """Attention of decoders with these lengths over that of as many equal ones: 1 + share (longest / mean - 1)."""
    context = run.prompt + run.output / 2
    longest = float(np.sort(context)[int(np.ceil(0.99 * len(context))) - 1])
    return 1.0 + share * (longest / float(context.mean()) - 1.0)


def load_costs(folder: Path, layers: int, budget: int, run: Run) -> Costs:
    degree = int(run.settings.get("engine_kwargs", {}).get("tensor_parallel_size") or 1)
    folder = of_degree(folder, degree)
    dense, attention, heads = (find(folder, name) for name in ("dense.csv", "attention.csv", "per_sequence.csv"))
    if dense is None or attention is None or heads is None:
        raise SystemExit(f"{folder}: needs dense.csv, attention.csv and per_sequence.csv below this folder")
    step, sequence = fit_heads(rows_of(heads))
    parts, skew = fit_attention(rows_of(attention)), skew_factor(run, skew_share(folder, degree))
    return Costs(
        dense_table(rows_of(dense), layers, budget) + expert_table(find(folder, "moe.csv"), layers, budget), step, sequence,
        tuple(layers * value for value in parts[0]),
        *(tuple(layers * value * (skew if place == 2 else 1.0) for place, value in enumerate(part)) for part in parts[1:]),
    )  # fmt: skip


def dense_table(rows: list[dict[str, str]], layers: int, budget: int) -> np.ndarray:
    """Seconds of all dense operators for 0..budget rows, interpolated between the profiled token counts."""
    by_layer: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        by_layer.setdefault(row["layer"], []).append((float(row["tokens"]), float(row["time_us"]) * 1e-6))
    counts, total = np.arange(budget + 1), np.zeros(budget + 1)
    for name, points in by_layer.items():
        x, y = np.array(sorted(points)).T
        times = np.interp(counts, x, y)
        beyond = counts > x[-1]
        times[beyond] = y[-1] * counts[beyond] / x[-1]
        total += times * (1 if name in ONCE else layers * PER_LAYER.get(name, 1))
    total[0] = 0.0
    return total


def expert_table(path: Path | None, layers: int, budget: int) -> np.ndarray:
    """Seconds of the experts for 0..budget rows, averaged over whatever else was varied."""
    if path is None:
        return np.zeros(budget + 1)
    by_count: dict[float, list[float]] = {}
    for row in rows_of(path):
        by_count.setdefault(float(row["tokens"]), []).append(float(row["time_us"]) * 1e-6)
    x = np.array(sorted(by_count))
    table = layers * np.interp(np.arange(budget + 1), x, [float(np.mean(by_count[count])) for count in x])
    table[0] = 0.0
    return table


def fit_heads(rows: list[dict[str, str]]) -> tuple[float, float]:
    """Head and sampler: seconds a step and seconds a sequence."""
    by_count: dict[float, float] = {}
    for row in rows:
        by_count[float(row["sequences"])] = by_count.get(float(row["sequences"]), 0.0) + float(row["time_us"]) * 1e-6
    x, y = np.array(sorted(by_count.items())).T
    slope = max(float(np.polyfit(x, y, 1)[0]), 0.0)
    return float(np.median(y - slope * x)), slope


def relative_fit(features: np.ndarray, target: np.ndarray) -> tuple[float, float, float]:
    """Non-negative least squares of the relative error."""
    weighted = features / target[:, None]
    scale = np.maximum(weighted.max(axis=0), 1e-30)
    solution, _ = nnls(weighted / scale, np.ones(len(target)))
    a, b, c = (float(value) for value in solution / scale)
    return a, b, c


def fit_attention(rows: list[dict[str, str]]) -> list[tuple[float, float, float]]:
    """(per chunk, token, pair), (per step, decoder, context token) of decode steps, and the latter beside a prefill chunk."""
    table = np.array([[float(row[name]) for name in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")] for row in rows])
    chunk, cached, count, context, microseconds = table.T
    seconds, one = microseconds * 1e-6, np.ones(len(table))
    prefills = np.stack([one, chunk, chunk * cached + chunk * (chunk + 1) / 2], axis=1)
    decodes = np.stack([one, count, count * context], axis=1)
    alone, rest = count == 0, chunk == 0
    prefill = relative_fit(prefills[alone], seconds[alone])
    decode = relative_fit(decodes[rest], seconds[rest])
    both = ~alone & ~rest
    if not both.any():
        return [prefill, decode, decode]
    left = np.maximum(seconds[both] - prefills[both] @ np.array(prefill), 0.0)
    weight = seconds[both]
    solution, _ = nnls(decodes[both] / weight[:, None], left / weight)
    return [prefill, decode, (float(solution[0]), float(solution[1]), float(solution[2]))]


def step_models(costs: Costs, scales: np.ndarray) -> tuple[StepModel, StepModel, StepModel, tuple[float, ...]]:
    """Kernel's models after calibration: ``scales`` = prefill factor, decode factor, extra seconds a step."""
    prefill, decode, extra = scales
    work = (LINEAR, NO_FLOOR, NO_FLOOR, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    chunk, token, pair = (prefill * value for value in costs.prefill)
    alone, beside = (
        StepModel(*work, fixed_s=decode * step, per_pair_s=decode * context, per_sequence_s=decode * sequence + costs.sequence)
        for step, sequence, context in (costs.decode, costs.mixed)
    )
    small = np.arange(len(costs.dense)) <= 256  # rows of pure decode steps; larger ones are prefill
    dense = np.where(small, decode, prefill) * costs.dense + costs.step + extra
    return (
        StepModel(*work, fixed_s=chunk, per_token_s=token, per_pair_s=pair, per_sequence_s=costs.sequence),
        alone,
        beside,
        tuple(np.maximum.accumulate(dense).tolist()),
    )


def engine_of(settings: dict[str, Any], rows: tuple[float, ...]) -> EngineParameters:
    """vLLM's scheduler as the run configured it."""
    kwargs = settings.get("engine_kwargs", {})
    scheduler = settings.get("resolved_config", {}).get("scheduler_config", {})
    cache = settings.get("kv_cache", {})
    tokens, block = int(cache.get("num_kv_tokens") or 0), int(cache.get("block_size") or 16)
    blocks = int(cache.get("num_gpu_blocks") or tokens // block)
    return EngineParameters(
        Policy.CHUNKED,
        max_num_seqs=int(kwargs.get("max_num_seqs") or scheduler.get("max_num_seqs") or 256),
        token_budget=int(kwargs.get("max_num_batched_tokens") or scheduler.get("max_num_batched_tokens") or 2048),
        chunk_cap=int(scheduler.get("long_prefill_token_threshold") or 0), block_tokens=block,
        kv_blocks=max(blocks - 1, 0),  # the engine keeps one null block
        reserve=Reserve.PROMPT if scheduler.get("scheduler_reserve_full_isl") else Reserve.CHUNK,
        cache=Cache.LRU if cache.get("enable_prefix_caching") and blocks else Cache.OFF,
        seconds_by_rows=rows,
    )  # fmt: skip


def own_prefixes(run: Run) -> PrefixTree:
    """Each request's own content: a preempted request may find its blocks again."""
    count = len(run.prompt)
    place = np.arange(count)
    return PrefixTree(np.full(count, -1), run.prompt + run.output, np.arange(count + 1), place, np.zeros(count, bool), np.zeros(count))


def replay(run: Run, costs: Costs, scales: np.ndarray) -> np.ndarray:
    """Simulated (requests, 3): first token, last token and arrival times."""
    prefill, decode, mixed, rows = step_models(costs, scales)
    engine = engine_of(run.settings, rows)
    order = np.argsort(run.arrival, kind="stable")
    requests = RequestArrays(run.arrival[order], run.prompt[order], run.output[order])
    if engine.cache != Cache.OFF:
        requests = replace(requests, prefixes=own_prefixes(replace_order(run, order)))
    records = simulate(requests, engine, prefill, decode, decode_mixed=mixed).records
    answer = np.empty((len(order), 2))
    answer[order] = np.stack([records["first"], records["last"]], axis=1)
    return answer


def replace_order(run: Run, order: np.ndarray) -> Run:
    return replace(run, prompt=run.prompt[order], output=run.output[order])


def metrics(arrival: np.ndarray, output: np.ndarray, first: np.ndarray, last: np.ndarray) -> dict[str, np.ndarray]:
    several = output > 1
    return {"ttft": first - arrival, "tpot": ((last - first) / np.maximum(output - 1, 1))[several], "e2e": last - arrival}


def calibrate(run: Run, costs: Costs, count: int) -> np.ndarray:
    """Most probable scales given the first ``count`` requests: relative errors of first token, mean gap and whole answer.

    The errors of one metric move together (one queue), so each metric counts as one observation of 2 %. The profiles are the
    prior: each scale is 1 within 5 %, the constant of a step 0 within 1 ms. Without it, decode and constant are not told apart.
    """
    chosen = np.argsort(run.arrival, kind="stable")[:count]
    real = metrics(run.arrival[chosen], run.output[chosen], run.first[chosen], run.last[chosen])

    def residuals(scales: np.ndarray) -> np.ndarray:
        first, last = replay(run, costs, scales)[chosen].T
        ours = metrics(run.arrival[chosen], run.output[chosen], first, last)
        floor = {name: 0.05 * float(np.median(values)) for name, values in real.items()}
        errors = [(ours[name] - real[name]) / (real[name] + floor[name]) / (0.02 * np.sqrt(len(real[name]))) for name in real]
        return np.concatenate([*errors, (scales[:2] - 1.0) / 0.05, scales[2:] / 1e-3])

    start = np.array([1.0, 1.0, 0.0])
    fit = least_squares(residuals, start, bounds=([0.3, 0.3, 0.0], [3.0, 3.0, 0.05]), x_scale=[0.1, 0.1, 1e-3], diff_step=1e-3)
    return np.asarray(fit.x)


def report(run: Run, simulated: np.ndarray, chosen: np.ndarray) -> dict[str, Any]:
    """Medians and makespan, measured and simulated, with the relative error."""
    real = metrics(run.arrival[chosen], run.output[chosen], run.first[chosen], run.last[chosen])
    ours = metrics(run.arrival[chosen], run.output[chosen], *simulated[chosen].T)
    lines: dict[str, Any] = {"requests": len(chosen)}
    for name in real:
        for label, percent in (("median", 50), ("p99", 99)):
            ranks = [np.sort(values)[max(int(np.ceil(percent * len(values) / 100)) - 1, 0)] for values in (real[name], ours[name])]
            lines[f"{name}_{label}"] = {
                "measured_s": float(ranks[0]),
                "simulated_s": float(ranks[1]),
                "error": float(ranks[1] / ranks[0] - 1),
            }
    spans = [float(last.max() - run.arrival[chosen].min()) for last in (run.last[chosen], simulated[chosen, 1])]
    lines["makespan"] = {"measured_s": spans[0], "simulated_s": spans[1], "error": spans[1] / spans[0] - 1}
    return lines


def nearest_profile(folder: Path) -> Path | None:
    """A profile folder that names the run's device and model, searched in the folders around the run."""
    names = {part.lower() for part in folder.resolve().parts}
    for parent in folder.resolve().parents[:6]:
        for path in sorted(parent.glob("profiler/**/attention.csv")) or sorted(parent.glob("profile*/**/attention.csv")):
            parts = [part.lower() for part in path.relative_to(parent).parts[:-1]]
            if sum(part in names for part in parts) >= 2:
                return path.parent
    return None


def layer_count(settings: dict[str, Any], given: int | None) -> int:
    """Layers of the served model, from the catalogue (its own name, or the base of an instruct or dated variant)."""
    if given:
        return given
    model = str(settings.get("model") or settings.get("engine_kwargs", {}).get("model") or "")
    short = model.lower().rstrip("/").split("/")[-1]
    known = {name.split("/")[-1].lower(): name for name in model_names()}
    close = [name for name in known if name.startswith(short) or short.startswith(name)]
    if not short or not close:
        raise SystemExit(f"unknown model '{model}': give --layers")
    return int(model_entry(known[min(close, key=lambda name: abs(len(name) - len(short)))])["config"]["num_hidden_layers"])


def complete_settings(settings: dict[str, Any], options: argparse.Namespace) -> None:
    """What the run does not record and the command line says."""
    engine = settings.setdefault("engine_kwargs", {})
    if options.max_num_seqs is None and "max_num_seqs" not in engine:
        print("warning: the run does not record max_num_seqs; 256 assumed, give --max-num-seqs", file=sys.stderr)
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        if getattr(options, name) is not None:
            engine[name] = getattr(options, name)
    if options.kv_tokens is not None:
        settings.setdefault("kv_cache", {}).update(num_kv_tokens=options.kv_tokens, num_gpu_blocks=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--calibrate-on", type=int, default=0)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--max-num-seqs", type=int, help="where the run does not record it")
    parser.add_argument("--max-num-batched-tokens", type=int, help="where the run does not record it")
    parser.add_argument("--kv-tokens", type=int, help="size of the KV pool, where the run does not record it")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    run = load_run(options.run)
    complete_settings(run.settings, options)
    profile = options.profile or nearest_profile(options.run)
    if profile is None:
        raise SystemExit("no profile found near the run: give --profile DIR")
    budget = engine_of(run.settings, ()).token_budget
    costs = load_costs(profile, layer_count(run.settings, options.layers), budget, run)
    everybody, plain = np.arange(len(run.arrival)), np.array([1.0, 1.0, 0.0])
    answer: dict[str, Any] = {
        "run": str(options.run),
        "profile": str(profile),
        "from_profiles_alone": report(run, replay(run, costs, plain), everybody),
    }
    if options.calibrate_on:
        scales = calibrate(run, costs, options.calibrate_on)
        rest = np.argsort(run.arrival, kind="stable")[options.calibrate_on :]
        answer["scales"] = dict(zip(("prefill", "decode", "step_s"), scales.tolist(), strict=True))
        answer["after_calibration_on_the_others"] = report(run, replay(run, costs, scales), rest)
    if options.json:
        print(json.dumps(answer, indent=1))
        return
    for part, lines in answer.items():
        if isinstance(lines, dict) and "requests" in lines:
            print(part, f"({lines['requests']} requests)")
            for name, line in lines.items():
                if isinstance(line, dict):
                    print(
                        f"  {name:12} measured {line['measured_s']:9.4f} s  simulated {line['simulated_s']:9.4f} s  {line['error']:+7.1%}"
                    )


if __name__ == "__main__":
    main()
