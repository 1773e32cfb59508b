"""Traffic through one engine instance as its clients see it: branches made and joined, those turned away answered elsewhere.

``models.simulate`` runs one scheduler over rows of requests; here stands what happens around it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from models.branches import branched, merged
from models.describe.scheduler import TurnedAway
from models.kernels.scheduler_state import GapLog
from models.kernels.step import causal_pairs, step_seconds
from models.simulate import simulate
from models.simulation_types import (
    Cache,
    Deadlines,
    EarlyStop,
    Floats,
    Integers,
    PrefixTree,
    RequestArrays,
    SimulationInputs,
    SimulationResult,
    Status,
)

SUMMED = ("gap_total", "gap_count", "gaps_binned", "good", "finished")


def serve(
    requests: RequestArrays, inputs: SimulationInputs, *, seed: int = 0, deadlines: Deadlines | None = None,
    early_stop: EarlyStop | None = None, timeline: bool = False,
) -> SimulationResult:  # fmt: skip
    """Run the traffic through the instance (and the second one, where there is one); one record for each of ``requests``."""
    rows = branched(requests)
    if early_stop is not None and len(rows) > len(requests):
        each = len(rows) / len(requests)
        early_stop = EarlyStop(round(early_stop.after * each), round(early_stop.at_least_good * each))
    if inputs.engine.cache == Cache.VALUE and rows.prefixes is not None:
        rows = replace(rows, prefixes=replace(rows.prefixes, value=saved_by_block(rows.prefixes, inputs)))
    result = simulate(
        rows, inputs.engine, inputs.prefill, inputs.decode, seed=seed, deadlines=deadlines, early_stop=early_stop, timeline=timeline
    )
    if not result.stopped_early:
        result = _turned_away(result, rows, inputs, seed)
    return merged(result, requests)


def saved_by_block(tree: PrefixTree, inputs: SimulationInputs) -> Floats:
    """Worth of one block of each segment (s): V = p (T_r - T_f) - T_m, section 8.3.4.

    A block kept on the device costs nothing to fetch or keep. T_r is one step over the segment's tokens; of u uses of a segment in
    this traffic, u - 1 follow another, so p = 1 - 1 / u.
    """
    if not len(tree.parent):
        return np.zeros(0)
    start = np.zeros(len(tree.parent))
    for place, parent in enumerate(tree.parent.tolist()):
        start[place] = start[parent] + tree.tokens[parent] if parent >= 0 else 0
    uses = np.bincount(tree.paths, minlength=len(start))
    tokens = tree.tokens.astype(np.float64)
    read = inputs.engine.kv_bytes_per_token * start + inputs.engine.state_bytes_per_sequence
    read += inputs.engine.window_bytes_per_token * np.minimum(start, inputs.engine.window)
    again: Floats = np.asarray(step_seconds(inputs.prefill, tokens, 0.0, causal_pairs(tokens, start), read, 1.0))
    return (1 - 1 / np.maximum(uses, 1)) * again / np.maximum(tokens / inputs.engine.block_tokens, 1e-9)


def _turned_away(result: SimulationResult, rows: RequestArrays, inputs: SimulationInputs, seed: int) -> SimulationResult:
    """Whom the admission limit or a deadline turned away: refused, gone to another instance, or run on the second one."""
    if inputs.turned_away not in (TurnedAway.HAND_OVER, TurnedAway.FASTER):
        return result
    moved = np.flatnonzero(result.status(Status.LATE) | result.status(Status.OVER_LIMIT))
    if inputs.elsewhere is None or not len(moved):
        result.records["status"][moved] = Status.HANDED_OVER
        return result
    moved = moved[np.argsort(result.records["last"][moved], kind="stable")]
    sent = _sent(rows, moved, result.records["last"][moved])
    other = inputs.elsewhere
    engine, drawn = replace(other.engine, deadline_aware=False), len(result.rows) > 0
    second = simulate(sent, engine, other.prefill, other.decode, seed=seed, timeline=drawn)
    return _joined(result, second, moved)


def _sent(rows: RequestArrays, moved: Integers, when: Floats) -> RequestArrays:
    """The requests that move, arriving when they were turned away."""
    tree = rows.prefixes
    if tree is not None:
        paths = [tree.paths[tree.path_start[one] : tree.path_start[one + 1]] for one in moved]
        starts = np.concatenate([[0], np.cumsum([len(path) for path in paths])]).astype(np.int64)
        tree = replace(tree, path_start=starts, paths=np.concatenate([*paths, np.zeros(0, np.int64)]).astype(np.int64))
    return replace(
        rows, arrival=np.ascontiguousarray(when), prompt=rows.prompt[moved], output=rows.output[moved], prefixes=tree,
        klass=None if rows.klass is None else rows.klass[moved],
        cancel=None if rows.cancel is None else np.maximum(rows.cancel[moved], when),
    )  # fmt: skip


def _joined(first: SimulationResult, second: SimulationResult, moved: Integers) -> SimulationResult:
    """Answers of both instances, times from the planned arrival; what the engine did inside stays the first one's."""
    planned = first.records["arrival"][moved].copy()
    first.records[moved] = second.records
    first.records["arrival"][moved] = planned
    lines = second.rows.copy()
    lines["request"] = moved[lines["request"]]
    counters = first.counters | {name: first.counters[name] + second.counters[name] for name in SUMMED}
    counters["gap_max"] = max(first.counters["gap_max"], second.counters["gap_max"])
    return replace(
        first, counters=counters, gaps=GapLog(*map(np.concatenate, zip(first.gaps, second.gaps, strict=True))),
        histogram=first.histogram + second.histogram,
        rows=np.concatenate([first.rows, lines]), elsewhere=second,
    )  # fmt: skip
