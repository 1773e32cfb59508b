"""From the record of a load test to a run that the simulator can repeat: requests drawn from what is known of them, the engine as set up.

What the record does not say is taken from the engine's own defaults; what would decide a figure and is not known leaves that figure out,
named with its reason. Reused prefixes are a shared, cached front of every prompt with the measured hit rate's share of its tokens;
a draft yields the measured tokens a round and costs what its shape says; a pool that no log states is what the weights leave.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from models.calibration.served_run import PER_TOKEN, ServedRun
from models.describe.architecture import Architecture
from models.describe.configuration import DraftSource, KvFormat
from models.describe.engine import Engine
from models.describe.hardware import Device
from models.describe.traffic import ArrivalProcess, ClosedLoop, Lengths, TrafficClass
from models.drafts import draft_shape
from models.errors import NotCoveredError
from models.facts.kv import kv_bytes_per_token
from models.facts.weights import weight_bytes
from models.lower_simulation import POLICIES, own_policy
from models.simulation_types import Cache, EngineParameters
from models.traffic import generate
from planner.records import Arrival, RunRecord, ServingObservation, Statistics

REUSED = 0.02  # prefix hits from this share of the prompt on change what it costs
MICRO_BATCH = 512  # llama.cpp's default --ubatch-size
_MOST_REQUESTS = 512  # drawn of a run that had more
_BURST = 10 * _MOST_REQUESTS  # … of one that has no steady state, or reaches it late
_LOOPS = 8  # requests drawn for each that runs at once, at most
_QUANTILES = 200
TURNAROUND = "1 ms"  # from a client's answer to its next request at the engine: by then the next step has begun. An engineering
# estimate, made while looking at the loads that bench/measure_here.py recorded; what counts is that it is not 0
_DRAFTS = {s.value: s for s in DraftSource if s is not DraftSource.NONE} | {"ngram": DraftSource.LOOKUP, "nextn": DraftSource.MTP}
"""A word in the engines' names of their drafts, and what it is."""
_SEQUENCES = 4096  # where neither setup nor engine limits them: the pool does


class Rounds(NamedTuple):
    """Fields of ``EngineParameters`` that a draft sets."""

    draft_tokens: int = 0
    tokens_per_round: float = 1.0
    seconds_by_rows: tuple[float, ...] = ()  # the draft's own time, in every step that has rows


@dataclass
class Read:
    """A load test as the simulator repeats it, and what of it is not used."""

    run: ServedRun
    unused: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Served:
    """The model on its engine and device, as the runs of a group share them."""

    architecture: Architecture
    device: Device
    engine: Engine
    ranks: int


def repeatable(record: RunRecord) -> bool:
    """Whether the record says how its requests arrived."""
    load = record.workload
    if load.arrival is Arrival.OPEN:
        return load.rate is not None and load.concurrency is None
    return load.arrival in (Arrival.BURST, Arrival.OFFLINE) or (load.arrival is Arrival.CLOSED and load.concurrency is not None)


def served_run(
    seen: ServingObservation, record: RunRecord, served: Served, stored: str, kv_per_token: float, name: str
) -> Read:  # fmt: skip
    """The run behind ``seen``; ``kv_per_token`` bytes that a row reads for each token of context (``NotCoveredError`` if unknown)."""
    load, notes = record.workload, list[str]()
    if load.prompt_tokens is None or load.output_tokens is None or load.output_tokens < 2:
        raise NotCoveredError("prompt and output lengths (of two tokens or more) are not known", path=name)
    drafting = record.setup.draft not in (None, "none")
    rounds = _rounds(seen, record, served, name) if drafting else Rounds()
    shared, warm, known = _reuse(seen, record)
    figures = _figures(seen, drafting=drafting, whole=known)
    if not known:
        notes.append(f"{name}: TTFT not used, prompts share {load.shared_prefix_tokens:g} tokens; no hit rate or prefix_sharing is stated")
    tails = _tails_alone(seen)
    if not figures:
        raise NotCoveredError(f"it states no time that a simulation predicts{'; ' + tails if tails else ''}", path=name)
    notes += [f"{name}: {tails}"] if tails else []
    count = _count(record, seen)
    requests = generate({"all": TrafficClass(
        requests=count, prompt=_lengths(load.prompt_tokens, load.prompt_lengths, least=shared + 1),
        output=_lengths(load.output_tokens, load.output_lengths, least=1), arrivals=_arrivals(record, count),
        shared_prefix_tokens=shared, prefix_cached=warm,
    )}, seed=0)  # fmt: skip
    engine = _engine(record, served, stored, kv_per_token, rounds)
    longest = int((requests.prompt + requests.output).max())
    if 0 < engine.kv_blocks * engine.block_tokens < longest + shared:
        raise NotCoveredError("the KV pool holds no request of this load", path=name, value=longest, way_out="check device, tp and formats")
    return Read(ServedRun(requests, engine, figures, name, stored), notes)


def _figures(seen: ServingObservation, *, drafting: bool, whole: bool) -> dict[str, float]:
    """Figures that a fit reads: mean (else median) TTFT and TPOT (else gap, if a gap is one token); e2e or throughput for a missing one."""
    found = {}
    gaps = ("tpot", seen.tpot) if typical(seen.tpot) or drafting else ("itl", seen.itl)
    for metric, table in (("ttft", seen.ttft if whole else {}), gaps):
        if (statistic := typical(table)) is not None:
            found[f"{metric} {statistic}"] = table[statistic]
    if whole and len(found) < 2:
        if (statistic := typical(seen.e2e)) is not None:
            found[f"e2e {statistic}"] = seen.e2e[statistic]
        elif seen.output_tokens_per_s and not any(name.startswith(gaps[0]) for name in found):
            found[PER_TOKEN] = 1.0 / seen.output_tokens_per_s
    return found


def typical(table: Statistics) -> str | None:
    """The statistic of a request as they mostly are: mean, else median; high percentiles alone do not tell it."""
    return next((name for name in ("mean", "p50") if table.get(name)), None)


def _tails_alone(seen: ServingObservation) -> str:
    """What of a load states high percentiles only, which no fit reads."""
    names = [m for m, table in (("TTFT", seen.ttft), ("TPOT", seen.tpot), ("e2e", seen.e2e)) if table and typical(table) is None]
    return f"{', '.join(names)} not used: neither mean nor median is stated" if names else ""


def _reuse(seen: ServingObservation, record: RunRecord) -> tuple[int, bool, bool]:
    """(tokens of a shared front, whether it is cached before the run, whether that is known)."""
    load = record.workload
    assert load.prompt_tokens is not None
    rate, stated = seen.prefix_hit_rate, load.shared_prefix_tokens or 0.0
    if rate is not None:
        return (round(rate * load.prompt_tokens), True, True) if rate > REUSED else (0, False, True)
    if stated <= REUSED * load.prompt_tokens or record.setup.prefix_sharing is False:
        return 0, False, True
    return (round(stated), False, True) if record.setup.prefix_sharing else (0, False, False)


def _count(record: RunRecord, seen: ServingObservation) -> int:
    """Requests to draw: as many as there were, but no more than show the load's steady state.

    Near saturation an open load runs so many side by side (Little's law, section 8.6.1) that a few hundred requests never reach it.
    """
    load = record.workload
    together = load.concurrency or math.ceil((load.rate or 0.0) * _seconds_inside(seen, load.output_tokens or 1.0))
    most = min(max(_MOST_REQUESTS, _LOOPS * together), max(_BURST, _LOOPS * (load.concurrency or 0)))
    if load.arrival in (Arrival.BURST, Arrival.OFFLINE):
        most = _BURST
    return max(1, min(load.requests or seen.completed or most // 2, most))


def _seconds_inside(seen: ServingObservation, output: float) -> float:
    """About how long a request stays: as measured, else its first token and the gaps of the others; 0 where nothing says it."""
    e2e, ttft, gap = (t.get(typical(t) or "", 0.0) for t in (seen.e2e, seen.ttft, seen.tpot or seen.itl))
    return e2e or ttft + (output - 1.0) * gap


def _arrivals(record: RunRecord, count: int) -> ArrivalProcess:
    load = record.workload
    if load.arrival is Arrival.OPEN:
        rate = f"{load.rate!r} /s"
        regular = {"poisson": rate} if load.burstiness in (None, 1.0) else {"gamma": rate, "burstiness": load.burstiness}
        return ArrivalProcess.parse(regular, "workload")
    if load.arrival is Arrival.CLOSED and load.concurrency is not None and load.concurrency < count:
        return ArrivalProcess(closed_loop=ClosedLoop(concurrency=load.concurrency, ramp=f"{load.ramp or 0.0!r} s", think=TURNAROUND))
    return ArrivalProcess(burst=True)


def _lengths(mean: float, stated: Statistics, *, least: int) -> Lengths:
    """Lengths with the stated mean: through the stated percentiles, else spread evenly about the mean by the stated deviation."""
    ranks = {0.0: "min", 1.0: "max"} | {float(n[1:]) / 100: n for n in stated if n.startswith("p")}
    known = sorted((rank, stated[n]) for rank, n in ranks.items() if n in stated)
    deviation = stated.get("std", 0.0)
    at = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    if len(known) >= 3:
        values = np.interp(at, np.array([rank for rank, _ in known]), np.array([value for _, value in known]))
    else:
        low = max(stated.get("min", 1.0), mean - deviation * 3**0.5)
        values = low + (2 * mean - 2 * low) * at  # even between low and its mirror image
    drawn = np.maximum(np.rint(values * mean / values.mean()), max(least, 1))
    return Lengths.parse({"empirical": tuple(int(v) for v in drawn)}, "workload")


def _engine(record: RunRecord, served: Served, stored: str, kv_per_token: float, rounds: Rounds) -> EngineParameters:
    setup, engine = record.setup, served.engine
    tier = engine.default_sizes(served.device.memory_bytes, served.device.name)
    slots = setup.max_num_seqs or tier.max_num_seqs or _SEQUENCES
    budget = max(setup.max_num_batched_tokens or tier.max_num_batched_tokens, slots * (rounds.draft_tokens + 1))
    block = setup.block_size or engine.block_tokens
    micro = setup.flags.get("n_ubatch", "")
    reused = bool(setup.prefix_sharing) or any((s.prefix_hit_rate or 0.0) > REUSED for s in record.serving)
    return EngineParameters(
        policy=POLICIES[own_policy(engine.name)], max_num_seqs=slots, token_budget=budget,
        block_tokens=block, kv_blocks=_pool_tokens(record, served, stored) // block, cache=Cache.LRU if reused else Cache.OFF,
        kv_bytes_per_token=kv_per_token,
        micro_batch=(int(micro) if micro.isdecimal() else MICRO_BATCH) if engine.separate_batches else 0,
        tiled_from=engine.tiled_from(served.device.architecture, KvFormat(stored)), **rounds._asdict(),
    )  # fmt: skip


def _pool_tokens(record: RunRecord, served: Served, stored: str) -> int:
    """Tokens of KV that the engine said it holds, else what its share of the memory leaves beside the weights; 0: as much as is asked."""
    said = [m.kv_pool_tokens for m in record.memory if m.kv_pool_tokens]
    if said:
        return said[0]
    share = record.setup.memory_utilization or served.engine.gpu_memory_utilization
    if share is None:
        return 0
    left = share * served.device.memory_bytes - weight_bytes(served.architecture, tp=served.ranks)
    return max(int(left // max(kv_bytes_per_token(served.architecture, stored, served.ranks), 1)), 1)


def _rounds(seen: ServingObservation, record: RunRecord, served: Served, name: str) -> Rounds:
    """Tokens a round as measured, and the draft's own time as its shape says; what is missing is an error that names it."""
    setup, positions = record.setup, seen.acceptance_by_position
    tokens = setup.draft_tokens or len(positions)
    if not tokens:
        raise NotCoveredError("the number of draft tokens is not known", path=name, way_out="import the file with --draft-tokens")
    if seen.acceptance_length is not None:
        emitted = seen.acceptance_length
    elif seen.acceptance_rate is not None:
        emitted = 1.0 + seen.acceptance_rate * tokens
    elif positions:
        emitted = 1.0 + sum(positions[:tokens])
    else:
        raise NotCoveredError("how many draft tokens were accepted is not stated", path=name, value=setup.draft)
    source = next((known for word, known in _DRAFTS.items() if word in (setup.draft or "").lower()), None)
    if source is None:
        raise NotCoveredError("a draft of this kind has no known cost", path=name, value=setup.draft)
    shape = draft_shape(served.architecture, source, None, served.ranks)
    forwards = 1 if shape.parallel else tokens
    added = forwards * shape.weight_bytes / served.device.memory_bandwidth_bytes_per_s + shape.query_s
    return Rounds(tokens, min(emitted, tokens + 1.0), (0.0, added))
