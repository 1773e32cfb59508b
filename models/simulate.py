"""Simulate one engine instance under traffic, iteration by iteration, in closed form between events.

``simulate`` lowers frozen parameters into the scheduler kernel's arrays and reads its answer back. Same arguments, same
answer. Nothing here loops over tokens or requests. Percentiles and goodput: ``models.simulation_summary``.
"""

from __future__ import annotations

from mmap import mmap
from typing import get_type_hints

import numpy as np

from models.errors import ContradictionError, SolverError
from models.kernels import scheduler_state as memory
from models.kernels.step import PHYSICAL, StepModel
from models.simulation_types import (
    Cache,
    Deadlines,
    EarlyStop,
    EngineParameters,
    Floats,
    Integers,
    PrefixTree,
    Records,
    RequestArrays,
    SimulationResult,
)

GAP_LOG = 1 << 19  # exact gap entries before they fold into the histogram (12 MiB)
SAMPLES = 512
TIMELINE_ROWS = 200_000
KINDS = get_type_hints(memory.Settings)  # int or float, by setting


def lower_step(model: StepModel) -> Records:
    """The kernel's copy of a step model: seconds for each unit of work, so that it only multiplies and adds."""
    peak, matmul, attention = (model.peak_flops * share for share in (1.0, model.matmul_efficiency, model.attention_efficiency))
    priced = {
        "floor_per_token_s": model.flops_per_token / peak, "floor_per_logit_row_s": model.flops_per_logit_row / peak,
        "floor_per_pair_s": model.flops_per_pair / peak, "floor_per_byte_s": 1.0 / model.peak_bytes_per_s,
        "compute_s": model.flops_per_token * model.half_rows / matmul, "compute_per_token_s": model.flops_per_token / matmul,
        "compute_per_logit_row_s": model.flops_per_logit_row / matmul, "compute_per_pair_s": model.flops_per_pair / attention,
        "memory_per_byte_s": 1.0 / (model.peak_bytes_per_s * model.bandwidth_efficiency),
    }  # fmt: skip
    record = np.zeros((), memory.STEP)
    for name in memory.STEP_FIELDS:
        record[name] = priced[name] if name in priced else getattr(model, name)
    return record


def _floored(model: StepModel) -> bool:
    """Whether the device's floor can bind: never where every part of a physical step stays at or above its own."""
    efficient = max(model.matmul_efficiency, model.attention_efficiency, model.bandwidth_efficiency) <= 1.0
    overlapped = min(model.overlap, model.host_overlap) >= 0.0 and max(model.overlap, model.host_overlap) <= 1.0
    added = (model.half_rows, model.host_s, model.host_per_sequence_s)
    later = (model.collective_s, model.collective_per_token_s, model.conversion_s_per_byte)
    return model.form != PHYSICAL or not (efficient and overlapped and min(*added, *later) >= 0.0)


def _power_of_two(value: int) -> int:
    """Its exponent, or -1 where it is none."""
    return value.bit_length() - 1 if value.bit_count() == 1 else -1


def graph_padding(sizes: tuple[int, ...]) -> Integers:
    """Table row count → captured size; beyond the largest captured size a step runs unpadded."""
    if not sizes:
        return np.zeros(0, np.int64)
    captured = np.array(sizes, np.int64)
    rows = np.arange(sizes[-1] + 1)
    table = captured[np.searchsorted(captured, rows)]
    table[0] = 0
    return table


def _settings(
    engine: EngineParameters,
    requests: RequestArrays,
    *,
    models: tuple[StepModel, StepModel],
    seed: int,
    stop: EarlyStop | None,
    timeline: bool,
) -> memory.Settings:
    random = engine.acceptance is not None
    on_demand = engine.kv_blocks > 0 and engine.reserve != 2
    values = {
        "policy": engine.policy, "max_num_seqs": engine.max_num_seqs, "token_budget": engine.token_budget, "chunk_cap": engine.chunk_cap,
        "paged": engine.kv_blocks > 0 or engine.cache != Cache.OFF,
        "block_tokens": engine.block_tokens, "block_shift": _power_of_two(engine.block_tokens), "total_blocks": engine.kv_blocks,
        "reserve": engine.reserve, "cache": engine.cache,
        "max_model_len": engine.max_model_len, "admission_limit": engine.admission_limit, "deadline_aware": engine.deadline_aware,
        "one_model": engine.micro_batch == 0 and models[0] == models[1], "floored": any(map(_floored, models)),
        "micro_batch": engine.micro_batch, "tiled_from": engine.tiled_from, "short_pair_cost": models[0].short_pair_cost,
        "rows": engine.draft_tokens + 1, "random": random,
        "per_round": random or (on_demand and engine.draft_tokens > 0), "constant_context": engine.constant_context,
        "tokens_per_round": expected_tokens(engine), "kv_bytes": engine.kv_bytes_per_token, "state_bytes": engine.state_bytes_per_sequence,
        "shared_read_once": engine.shared_read_once, "async_scheduling": engine.async_scheduling, "every_iteration": timeline,
        "seed": np.uint64(seed).astype(np.int64),  # the same 64 bits
        "check_after": stop.after if stop else 0, "check_good": stop.at_least_good if stop else 0,
        "late_wait": engine.late_wait, "preparation_s": engine.preparation_s,
        "window": engine.window, "window_bytes": engine.window_bytes_per_token, "copy_s": engine.copy_s, "copy_serial": engine.copy_serial,
        "cancel_count": 0 if requests.cancel is None else np.isfinite(requests.cancel).sum(),
        "followers": requests.follows is not None, "delivery_s": engine.delivery_s,
        "attention": engine.attention is not None, "measured_rows": len(engine.seconds_by_rows),
    }  # fmt: skip
    return memory.specialised(memory.Settings(**{name: KINDS[name](value) for name, value in values.items()}))


def expected_tokens(engine: EngineParameters) -> float:
    """E[N] = 1 + sum over j of the product of the first j acceptance probabilities (8.5.4), or as given."""
    if engine.acceptance is None:
        return engine.tokens_per_round
    return 1.0 + float(np.cumprod(np.array(engine.acceptance)).sum())


def _nodes(tree: PrefixTree, engine: EngineParameters) -> Records:
    """Segments in whole blocks: node i covers blocks floor(start / b) .. floor(end / b) of its path.

    One without a block of its own is nobody's parent here: what lies behind it hangs on the last block before it.
    """
    nodes = np.zeros(len(tree.parent), memory.NODE)
    start = np.zeros(len(tree.parent), np.int64)
    for place, parent in enumerate(tree.parent.tolist()):
        start[place] = start[parent] + tree.tokens[parent] if parent >= 0 else 0
    nodes["start"] = start // engine.block_tokens
    nodes["size"] = (start + tree.tokens) // engine.block_tokens - nodes["start"]
    nodes["value"] = tree.value
    for place, parent in enumerate(tree.parent.tolist()):
        nodes["parent"][place] = parent if parent < 0 or nodes["size"][parent] > 0 else nodes["parent"][parent]
    return nodes


def _state(engine: EngineParameters, sample_s: float) -> Records:
    state = np.zeros(1, memory.STATE)
    for name in ("run_head", "run_tail", "lru_head", "lru_tail"):
        state[name] = -1
    state["pristine"] = engine.kv_blocks or memory.NEVER
    state["free_slots"] = engine.max_num_seqs
    state["sample_s"], state["first_arrival"] = sample_s, np.inf
    return state


def _warm(state: Records, nodes: Records, links: Records, tree: PrefixTree, engine: EngineParameters) -> None:
    """Prefixes cached before the first arrival: leaves oldest, so that they go first."""
    order = [place for place in range(len(nodes) - 1, -1, -1) if tree.warm[place] and nodes["size"][place] > 0]
    if engine.kv_blocks and int(nodes["size"][order].sum()) > engine.kv_blocks:
        raise ContradictionError(
            "the cached prefixes exceed the KV pool",
            path="workload.prefix_cached",
            value=int(nodes["size"][order].sum()),
            way_out=f"the pool has {engine.kv_blocks} blocks",
        )
    for before, place in zip([-1, *order], order, strict=False):
        size = nodes["size"][place]
        nodes["cached"][place] = size
        links["blocks"][place], links["previous"][place], links["next"][place] = size, before, -1
        if before >= 0:
            links["next"][before] = place
        else:
            state["lru_head"] = place
        state["lru_tail"] = place
        state["evictable"] += size
        state["pristine"] -= size
        if nodes["parent"][place] >= 0:
            nodes["children"][nodes["parent"][place]] += 1


def _acceptance(engine: EngineParameters) -> Floats:
    chances: Floats = np.cumprod(np.array(engine.acceptance or (), np.float64), dtype=np.float64)
    return chances


def _followers(requests: RequestArrays) -> tuple[Integers, Integers]:
    if requests.follows is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    follower = np.full(len(requests), -1, np.int64)
    has = np.flatnonzero(requests.follows >= 0)
    follower[requests.follows[has]] = has
    return (requests.follows >= 0).astype(np.int64), follower


def simulate(
    requests: RequestArrays,
    engine: EngineParameters,
    prefill: StepModel,
    decode: StepModel | None = None,
    *,
    seed: int = 0,
    deadlines: Deadlines | None = None,
    early_stop: EarlyStop | None = None,
    timeline: bool = False,
) -> SimulationResult:
    """Run the traffic through the engine. ``decode`` None (or equal to ``prefill``): one formula over each mixed step."""
    from models.kernels.scheduler import run_scheduler  # noqa: PLC0415  compiled code loads only where something is simulated

    count = len(requests)
    tree = requests.prefixes if requests.prefixes is not None and engine.cache != Cache.OFF else PrefixTree.empty(0)
    settings = _settings(engine, requests, models=(prefill, decode or prefill), seed=seed, stop=early_stop, timeline=timeline)
    span = float(requests.arrival.max(initial=0.0))
    state, nodes = _state(engine, max(span / SAMPLES * 2, 1e-3)), _nodes(tree, engine)
    links = np.zeros(len(nodes) + count if engine.cache != Cache.OFF else 1, memory.LINK)
    _warm(state, nodes, links, tree, engine)
    follows, follower = _followers(requests)
    cancel = np.zeros(0) if requests.cancel is None else requests.cancel
    gaps, histogram, samples, rows = _logs(requests, timeline=timeline)
    no_path = np.zeros(count + 1 if engine.cache != Cache.OFF else 1, np.int64)
    world = memory.World(
        state, settings, _models(prefill, decode),
        graph_padding(engine.graph_sizes), np.array(engine.seconds_by_rows, np.float64), *_attention(engine), _acceptance(engine),
        _limits(requests, engine, deadlines), requests.arrival, requests.prompt, requests.output,
        np.zeros(0, np.int64) if requests.klass is None else requests.klass,
        follows, follower, requests.arrival, cancel, np.argsort(cancel, kind="stable"),
        tree.path_start if len(tree.parent) else no_path, tree.paths, nodes, links, np.empty(count, memory.RESULT),
        *_slots(engine), np.zeros(count, np.int32), np.zeros(engine.max_num_seqs + 1, np.int64),
        np.zeros(count if len(follows) else 1, memory.PENDING_ARRIVAL), np.zeros(4 * engine.max_num_seqs + 64, memory.STACK),
        gaps, histogram, samples, rows,
    )  # fmt: skip
    run_scheduler(world)
    if state["stuck"][0]:
        raise SolverError("the simulated scheduler cannot place a request that should fit", path="simulate", value=int(state["done"][0]))
    return _result(requests, engine, deadlines, world)


def _models(prefill: StepModel, decode: StepModel | None) -> Records:
    records = np.full(2, lower_step(prefill))
    if decode is not None and decode is not prefill:
        records[1] = lower_step(decode)
    return records


def _attention(engine: EngineParameters) -> tuple[Floats, Floats]:
    """The grid of attention times and its knots, one padded row for each axis; both empty where there is none."""
    if engine.attention is None:
        return np.zeros((0, 0, 0, 0)), np.zeros((4, 0))
    knots = np.zeros((4, max(engine.attention.seconds.shape)))
    for row, axis in zip(knots, engine.attention.axes, strict=True):
        row[: len(axis)] = axis
    return np.ascontiguousarray(engine.attention.seconds), knots


def _limits(requests: RequestArrays, engine: EngineParameters, deadlines: Deadlines | None) -> Floats:
    """Deadlines that the kernel needs: none at all where nobody asks."""
    if deadlines is not None:
        return deadlines.table()
    return np.full((len(requests.class_names), 4), np.inf) if engine.deadline_aware else np.zeros((0, 4))


def _slots(engine: EngineParameters) -> tuple[Records, Integers, Integers, Integers, Integers, Integers]:
    size = engine.max_num_seqs
    return (
        np.zeros(size, memory.SLOT),
        np.arange(size)[::-1].copy(),
        np.zeros(size, np.int64),
        np.zeros(size if engine.preparation_s > 0 else 0, np.int64),
        np.zeros(2 * size, np.int64),
        np.zeros(engine.block_tokens, np.int64),
    )


def _logs(requests: RequestArrays, *, timeline: bool) -> tuple[memory.GapLog, Integers, Records, Records]:
    gaps = memory.GapLog.empty(min(GAP_LOG, int(requests.output.sum()) + 1))  # an entry holds at least one gap
    bins = memory.HISTOGRAM_OCTAVES << memory.HISTOGRAM_BITS
    histogram = np.frombuffer(mmap(-1, bins * 8), np.int64)  # pages that only long runs touch; allocated, a short run would spend on zeros
    return gaps, histogram, np.zeros(SAMPLES, memory.SAMPLE), np.empty(TIMELINE_ROWS if timeline else 0, memory.ROW)


def _result(requests: RequestArrays, engine: EngineParameters, deadlines: Deadlines | None, world: memory.World) -> SimulationResult:
    names = (
        "time", "iterations", "rounds", "busy_s", "first_arrival", "last_arrival",
        "peak_blocks", "evicted", "lookups_tokens", "hit_tokens", "preemptions", "recomputed", "prefilled",
        "gap_total", "gap_count", "gap_max", "good", "finished", "gaps_binned",
    )  # fmt: skip
    state, rows = world.state[0], len(world.timeline)
    cut = rows > 0 and state["rows_recorded"] == rows
    warnings = (f"the timeline shows the first {rows:,} rows only; every figure is of the whole run",) if cut else ()
    return SimulationResult(
        records=world.results, requests=requests, engine=engine, deadlines=deadlines, counters={name: float(state[name]) for name in names},
        gaps=world.gaps.first(state["gap_entries"]), histogram=world.histogram, samples=world.samples[: state["samples"]],
        rows=world.timeline[: state["rows_recorded"]], stopped_early=bool(state["stopped"]), warnings=warnings,
    )  # fmt: skip
