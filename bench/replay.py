"""Replay a measured serving run through the simulator and say how far off it is.

    python bench/replay.py RUN_DIR [--profile DIR] [--calibrate-on N] [--json]

RUN_DIR holds (somewhere below) ``requests.jsonl`` with per-request lengths and timestamps, and, where they exist, ``meta.json``
(engine settings) and ``config.json`` (memory and links). DIR holds (somewhere below) per-operator profiles of the same device and model,
see ``models/readers/operator_profile.py``. The step model comes from the profiles alone; ``--calibrate-on N`` then fits its scales on the
first N requests and judges the others. Options say what the run does not record. Units: seconds and tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from models import facts
from models.calibration.operator_fit import Served, fit_scales
from models.calibration.operators import AS_PROFILED, Link, OperatorSteps, Scales, operator_steps
from models.catalog.calibrations_catalog import SPECIFICATION, load_calibration
from models.catalog.devices import load_device
from models.describe.architecture import Architecture
from models.describe.calibration import Physical
from models.describe.hardware import Device
from models.errors import EXIT_BAD_INPUT, FileFormatError, GoodputError, InputError, UnknownNameError
from models.readers.files import read_json_object
from models.readers.load import load_architecture
from models.readers.operator_profile import choose_profile, profile_folders, read_operator_profile
from models.readers.traces import Trace, read_requests_jsonl
from models.simulate import simulate
from models.simulation_types import Cache, EngineParameters, Policy, PrefixTree, RequestArrays, Reserve, Status

GIB = 1 << 30
ENGINE_SEQUENCES, ENGINE_BUDGET = 256, 2048  # vLLM's defaults, where the run does not say
ASYNCHRONOUS_SINCE = (0, 14)  # vLLM schedules a step while the one before runs


@dataclass(frozen=True)
class Run:
    """A measured run: its requests and what is recorded of the engine (``meta.json``) and the machine (``config.json``)."""

    folder: Path
    trace: Trace
    meta: dict[str, Any]
    machine: dict[str, Any]

    def said(self, *path: str) -> Any:
        """What ``meta.json`` says at this place, or None."""
        found: Any = self.meta
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    @property
    def instance(self) -> dict[str, Any]:
        """The engine's instance in the machine's description."""
        try:
            found = self.machine["nodes"][0]["instances"][0]
        except (KeyError, IndexError, TypeError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def ranks(self) -> int:
        """Tensor-parallel degree."""
        return int(self.said("engine_kwargs", "tensor_parallel_size") or self.instance.get("tp_size") or 1)

    @property
    def model(self) -> str:
        return str(self.meta.get("model") or self.said("engine_kwargs", "model") or self.instance.get("model_name") or "")

    @property
    def served(self) -> Served:
        assert self.trace.first is not None
        assert self.trace.last is not None
        return Served(self.trace.arrival, self.trace.output, self.trace.first, self.trace.last)


def find(root: Path, name: str) -> Path | None:
    """The shallowest file of that name below ``root``."""
    found = sorted(root.rglob(name), key=lambda path: (len(path.parts), str(path)))
    return found[0] if found else None


def load_run(folder: Path) -> Run:
    requests = folder if folder.is_file() else find(folder, "requests.jsonl") or find(folder, "*.jsonl")
    if requests is None:
        raise FileFormatError("no requests.jsonl at or below this folder", path=str(folder), way_out="name the folder of a run")
    trace = read_requests_jsonl(requests)
    if trace.first is None:
        raise FileFormatError("no token timestamps to compare with", path=str(requests), way_out="name a measured run")
    around = folder if folder.is_dir() else folder.parent
    meta, machine = find(requests.parent, "meta.json") or find(around, "meta.json"), find(around, "config.json")
    return Run(around, trace, read_json_object(meta) if meta else {}, read_json_object(machine) if machine else {})


def architecture_of(run: Run, given: str | None) -> Architecture:
    name = given or run.model
    if not name:
        raise InputError("the run does not say which model it served", path=str(run.folder), way_out="give --model")
    try:
        return load_architecture(name)
    except UnknownNameError as problem:
        raise InputError(
            "the run's model is not known", path="--model", value=name, way_out=f"{problem.way_out}; or a config.json"
        ) from None


def device_of(*names: Any) -> Device | None:
    """The first of these that the catalogue knows."""
    for name in names:
        try:
            return load_device(str(name))
        except UnknownNameError:
            continue
    return None


def link_of(run: Run, device: Device | None, options: argparse.Namespace) -> Link | None:
    """What ranks exchange data over: as told, as the run's machine records it (GB/s, ns), or from the catalogue."""
    if run.ranks == 1:
        return None
    base = load_calibration(SPECIFICATION).decode
    assert isinstance(base, Physical)
    known = None if device is None else device.gpu_link_bytes_per_s or device.host_link_bytes_per_s
    recorded, latency = run.machine.get("link_bw"), run.machine.get("link_latency")
    rate = options.link_gb_per_s or (float(recorded) if recorded else known and known * base.link_efficiency / 1e9)
    if not rate:
        raise InputError("no link between the ranks is known", path="--link-gb-per-s", way_out="give the bandwidth of one direction")
    message = float(latency) * 1e-9 if recorded and latency is not None else base.all_reduce_latency_s / (2 * (run.ranks - 1))
    return Link(rate * 1e9, options.link_latency_us * 1e-6 if options.link_latency_us is not None else message)


def engine_of(run: Run, architecture: Architecture, options: argparse.Namespace, notes: list[str]) -> EngineParameters:
    """vLLM's scheduler as the run configured it."""
    scheduler = run.said("resolved_config", "scheduler_config") or {}
    chosen = {
        name: given or run.said("engine_kwargs", name) or scheduler.get(name)
        for name, given in (("max_num_seqs", options.max_num_seqs), ("max_num_batched_tokens", options.max_num_batched_tokens))
    }
    for name, default in (("max_num_seqs", ENGINE_SEQUENCES), ("max_num_batched_tokens", ENGINE_BUDGET)):
        if not chosen[name]:
            chosen[name] = default
            notes.append(f"the run does not record {name}: {default} taken, give --{name.replace('_', '-')}")
    block = int(run.said("kv_cache", "block_size") or 16)
    blocks = pool_blocks(run, architecture, block, options, notes)
    caching = run.said("kv_cache", "enable_prefix_caching")
    version = tuple(int(part) for part in str(run.meta.get("vllm_version", "0")).split(".")[:2] if part.isdigit())
    ahead = scheduler.get("async_scheduling")
    return EngineParameters(
        Policy.CHUNKED, max_num_seqs=int(chosen["max_num_seqs"]), token_budget=int(chosen["max_num_batched_tokens"]),
        chunk_cap=int(scheduler.get("long_prefill_token_threshold") or 0), block_tokens=block, kv_blocks=blocks,
        reserve=Reserve.PROMPT if scheduler.get("scheduler_reserve_full_isl") else Reserve.CHUNK,
        cache=Cache.LRU if blocks and (caching is None or caching) else Cache.OFF,
        async_scheduling=bool(ahead) if ahead is not None else version >= ASYNCHRONOUS_SINCE,
    )  # fmt: skip


def pool_blocks(run: Run, architecture: Architecture, block: int, options: argparse.Namespace, notes: list[str]) -> int:
    """Blocks of the KV pool: as told, as logged (less the engine's null block), or what the machine's memory leaves; 0: no limit."""
    if options.kv_tokens:
        return int(options.kv_tokens // block)
    logged = run.said("kv_cache", "num_gpu_blocks") or int(run.said("kv_cache", "num_kv_tokens") or 0) // block
    if logged:
        return int(logged) - 1
    memory = run.instance.get("npu_mem") or {}
    if not (memory.get("mem_size") and memory.get("mem_util")):
        notes.append("the run records no KV pool: none limits the replay, give --kv-tokens")
        return 0
    room = float(memory["mem_size"]) * GIB * float(memory["mem_util"]) - facts.weight_bytes(architecture, tp=run.ranks)
    tokens = int(room / facts.kv_bytes_per_token(architecture, "bf16", run.ranks))
    notes.append(f"the run records no KV pool: {tokens} tokens taken from the machine's memory, give --kv-tokens")
    return max(tokens // block, 1)


def profile_of(run: Run, given: Path | None) -> Path:
    """The folder of the profile: below the given one, or below a ``profile*`` folder around the run."""
    names = (*run.folder.resolve().parts, *Path(run.model).parts, str(run.instance.get("hardware", "")))
    roots = [given] if given else [root for parent in run.folder.resolve().parents[:6] for root in sorted(parent.glob("profile*"))]
    for root in roots:
        if profile_folders(root) or given:
            return choose_profile(root, run.ranks, names)
    raise InputError("no profile near the run", path=str(run.folder), way_out="give --profile DIR")


def own_prefixes(trace: Trace) -> PrefixTree:
    """Each request's own content: a preempted request may find its blocks again."""
    count = len(trace)
    place = np.arange(count)
    return PrefixTree(np.full(count, -1), trace.prompt + trace.output, np.arange(count + 1), place, np.zeros(count, bool), np.zeros(count))


@dataclass(frozen=True)
class Replay:
    """A run, its engine and the costs of its steps: ``times`` simulates it."""

    trace: Trace
    engine: EngineParameters
    steps: OperatorSteps

    def times(self, scales: Scales = AS_PROFILED) -> tuple[np.ndarray, np.ndarray]:
        """First and last token of every request."""
        engine, model = self.steps.lowered(self.engine, scales)
        requests = RequestArrays(self.trace.arrival, self.trace.prompt, self.trace.output)
        if engine.cache != Cache.OFF:
            requests = replace(requests, prefixes=own_prefixes(self.trace))
        records = simulate(requests, engine, model).records
        refused = int((records["status"] != Status.FINISHED).sum())
        if refused:
            raise InputError(
                "requests that the run served do not fit into the replayed KV pool", path="--kv-tokens", value=refused, way_out="enlarge it"
            )
        return records["first"], records["last"]


def report(served: Served, times: tuple[np.ndarray, np.ndarray], chosen: np.ndarray) -> dict[str, Any]:
    """Medians, 99th percentiles and makespan, measured and simulated, with the relative error."""
    real, ours = served.measured(chosen), served.quantities(*times, chosen)
    lines: dict[str, Any] = {"requests": len(chosen)}
    for name in real:
        for label, percent in (("median", 50), ("p99", 99)):
            if len(real[name]):
                pair = [float(np.percentile(values, percent, method="inverted_cdf")) for values in (real[name], ours[name])]
                lines[f"{name}_{label}"] = compared(*pair)
    start = served.arrival[chosen].min()
    lines["makespan"] = compared(*(float(last[chosen].max() - start) for last in (served.last, times[1])))
    return lines


def compared(measured: float, simulated: float) -> dict[str, float]:
    return {"measured_s": measured, "simulated_s": simulated, "error": simulated / measured - 1}


def answer_of(options: argparse.Namespace) -> dict[str, Any]:
    run = load_run(options.run)
    notes = list(run.trace.warnings)
    architecture = architecture_of(run, options.model)
    profile = read_operator_profile(profile_of(run, options.profile), run.ranks)
    device = device_of(options.device, profile.facts.get("gpu"), run.said("hardware", "device_name"), run.instance.get("hardware"))
    if device is None:
        notes.append("the device is not in the catalogue: no floor holds the steps, give --device")
    engine, link = engine_of(run, architecture, options, notes), link_of(run, device, options)
    parallel = bool(run.said("engine_kwargs", "enable_expert_parallel"))
    steps = operator_steps(
        profile, architecture, budget=engine.token_budget, device=device, link=link, expert_parallel=parallel
    ).for_contexts(run.trace.prompt + run.trace.output / 2, engine.max_num_seqs, profile.skew)  # fmt: skip
    replay, served = Replay(run.trace, engine, steps), run.served
    answer: dict[str, Any] = {"run": str(options.run), "profile": str(profile.folder), "link": asdict(link) if link else None}
    answer["from_profiles_alone"] = report(served, replay.times(), np.arange(len(run.trace)))
    if options.calibrate_on:
        if options.calibrate_on >= len(run.trace):
            raise InputError(
                "no request remains to judge", path="--calibrate-on", value=options.calibrate_on, way_out=f"below {len(run.trace)}"
            )
        scales = fit_scales(served, replay.times, options.calibrate_on, linked=link is not None)
        answer["scales"] = asdict(scales)
        rest = np.arange(options.calibrate_on, len(run.trace))
        answer["after_calibration_on_the_others"] = report(served, replay.times(scales), rest)
    return answer | {"notes": notes}


def show(answer: dict[str, Any]) -> None:
    for part, lines in answer.items():
        if isinstance(lines, dict) and "requests" in lines:
            print(part, f"({lines['requests']} requests)")
            for name, line in lines.items():
                if isinstance(line, dict):
                    seen = f"measured {line['measured_s']:9.4f} s  simulated {line['simulated_s']:9.4f} s"
                    print(f"  {name:12} {seen}  {line['error']:+7.1%}")
        elif part == "scales":
            print("scales", "  ".join(f"{name} {value:.4g}" for name, value in lines.items()))
    for note in answer["notes"]:
        print("note:", note, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--profile", type=Path, help="folder at or above the profile's tables")
    parser.add_argument("--calibrate-on", type=int, default=0, metavar="N", help="fit the scales on the first N requests")
    parser.add_argument("--model", help="catalogue name or config.json, where the run names another")
    parser.add_argument("--device", help="catalogue name, where neither run nor profile says it")
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--max-num-batched-tokens", type=int)
    parser.add_argument("--kv-tokens", type=int, help="size of the KV pool")
    parser.add_argument("--link-gb-per-s", type=float, help="between two ranks, one direction")
    parser.add_argument("--link-latency-us", type=float, help="of one message between two ranks")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        answer = answer_of(options)
    except GoodputError as problem:
        print(f"error: {problem}", file=sys.stderr)
        raise SystemExit(EXIT_BAD_INPUT) from None
    print(json.dumps(answer, indent=1)) if options.json else show(answer)


if __name__ == "__main__":
    main()
