"""A workload with rates, traces or bursts, drawn as the simulator's request arrays and deadlines. Same seed, same requests.

Open processes of several classes share one window: each draws requests in proportion to its mean rate. A burst brings its
own count; a closed loop and a class without a rate bring the whole count; a trace brings its rows, the first ``count`` of them, and
open processes beside it fill the time that those rows span.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from models.describe.scenario import Scenario
from models.describe.traffic import ArrivalProcess, Lengths, TrafficClass
from models.describe.workload import Arrivals, RequestClass
from models.errors import InputError
from models.readers.traces import Trace, read_trace
from models.simulation_types import Deadlines, PrefixTree, RequestArrays
from models.traffic import from_trace, generate, merged

MOST_REQUESTS = 2_000_000
LONGEST_S = 1e9


def requests_of(scenario: Scenario, count: int, seed: int) -> RequestArrays:
    """About ``count`` requests of every class together."""
    if not 1 <= count <= MOST_REQUESTS:
        raise InputError(f"must be between 1 and {MOST_REQUESTS}", path="--requests", value=count)
    classes = scenario.workload
    recorded = {name: _recorded(name, one, count, seed) for name, one in classes.items() if one.arrivals.trace is not None}
    total = sum(one.arrivals.per_second or 0.0 for one in classes.values())
    if recorded:
        span = max(float(rows.arrival[-1]) for rows in recorded.values())
        count = max(1, round(total * span)) if total else count
    drawn = {name: _class(one, count, total) for name, one in classes.items() if name not in recorded}
    parts = [*([generate(drawn, seed=seed)] if drawn else []), *recorded.values()]
    return _bounded(merged(parts, tuple(classes)))


def _bounded(requests: RequestArrays) -> RequestArrays:
    """Beyond decades a step no longer moves a clock of double precision."""
    last = float(requests.arrival.max(initial=0.0))
    if last > LONGEST_S:
        raise InputError(
            "the arrivals span more than 30 years",
            path="workload",
            value=f"{last:.3g} s",
            way_out="raise the rate or ask for fewer requests",
        )
    return requests


def _recorded(name: str, one: RequestClass, count: int, seed: int) -> RequestArrays:
    trace = one.arrivals.trace
    assert trace is not None
    rows = _first(_read(trace.file), count)
    return from_trace(rows, name=name, speed=trace.speed, patience=one.cancel_after, samples=one.samples, seed=seed)


def _read(name: str) -> Trace:
    path = Path(name).expanduser()
    seen = path.stat() if path.is_file() else None
    return _read_once(path, (seen.st_mtime_ns, seen.st_size) if seen is not None else None)


@lru_cache(maxsize=2)
def _read_once(path: Path, _state: tuple[int, int] | None) -> Trace:
    """A search for the knee plays one file at many speeds; a changed file is read anew."""
    return read_trace(path)


def trace_notes(scenario: Scenario, count: int) -> tuple[str, ...]:
    """How much of a trace is played, and what its reader left out or wants known."""
    found: list[str] = []
    for one in scenario.workload.values():
        if one.arrivals.trace is not None:
            trace = _read(one.arrivals.trace.file)
            name = Path(one.arrivals.trace.file).name
            if len(trace) > count:
                found.append(f"the first {count:,} of the {len(trace):,} requests of {name} are played; --requests plays more")
            found += [f"{name}: {warning}" for warning in trace.warnings]
    return tuple(found)


def _first(trace: Trace, count: int) -> Trace:
    """The first ``count`` rows. Prefixes stay as they were found in the whole file."""
    if len(trace) <= count:
        return trace
    tree = trace.prefixes
    if tree is not None:
        start = tree.path_start[: count + 1]
        tree = PrefixTree(tree.parent, tree.tokens, start, tree.paths[: start[-1]], tree.warm, tree.value)
    return replace(trace, arrival=trace.arrival[:count], prompt=trace.prompt[:count], output=trace.output[:count], prefixes=tree)


def _class(one: RequestClass, count: int, total: float) -> TrafficClass:
    """One class as the generator takes it; further turns of sessions count as requests."""
    arrivals, turns = one.arrivals, one.session.turns if one.session is not None else 1
    rate = arrivals.per_second
    share = arrivals.burst or max(1, round(count * (rate / total if rate is not None else 1.0) / turns))
    return TrafficClass(
        requests=share, prompt=one.prompt_lengths or Lengths(fixed=one.prompt_tokens),
        output=one.output_lengths or Lengths(fixed=one.output_tokens), arrivals=_process(arrivals),
        shared_prefix_tokens=one.shared_prefix_tokens, prefix_cached=one.prefix_cached, session=one.session,
        cancel_after=one.cancel_after, samples=one.samples,
    )  # fmt: skip


def _process(arrivals: Arrivals) -> ArrivalProcess:
    if arrivals.burst is not None:
        return ArrivalProcess(burst=True)
    return ArrivalProcess.model_construct(  # validated already: its fields take text with units
        burst=False, poisson=arrivals.rate, gamma=arrivals.gamma, burstiness=arrivals.burstiness or 1.0, even=arrivals.even,
        closed_loop=arrivals.closed_loop, on_off=arrivals.on_off,
    )  # fmt: skip


def scaled(scenario: Scenario, factor: float) -> Scenario:
    """The same traffic with every open class ``factor`` times as fast."""
    classes = {name: one.model_copy(update={"arrivals": _faster(one.arrivals, factor)}) for name, one in scenario.workload.items()}
    return scenario.model_copy(update={"workload": classes})


def _faster(arrivals: Arrivals, factor: float) -> Arrivals:
    if arrivals.trace is not None:
        return arrivals.model_copy(update={"trace": arrivals.trace.model_copy(update={"speed": arrivals.trace.speed * factor})})
    if arrivals.on_off is not None:
        return arrivals.model_copy(update={"on_off": arrivals.on_off.model_copy(update={"rate": arrivals.on_off.rate * factor})})
    return arrivals.model_copy(
        update={name: value * factor for name in ("rate", "gamma", "even") if (value := getattr(arrivals, name)) is not None}
    )


def offered_rate(scenario: Scenario, requests: RequestArrays) -> float | None:
    """Mean arrivals a second of the open classes; with a trace, of everything that arrives by the clock; None for bursts, closed loops."""
    if any(one.arrivals.trace is not None for one in scenario.workload.values()):
        clocked = requests.arrival if requests.follows is None else requests.arrival[requests.follows < 0]
        span = float(clocked[-1] - clocked[0]) if len(clocked) > 1 else 0.0
        return (len(clocked) - 1) / span if span > 0 else None
    return sum(one.arrivals.per_second or 0.0 for one in scenario.workload.values()) or None


def typical_lengths(scenario: Scenario, requests: RequestArrays) -> Scenario:
    """A traced class with the mean lengths of its rows: they shape what is computed once for all requests."""

    def known(name: str, one: RequestClass) -> RequestClass:
        mine = slice(None) if requests.klass is None else requests.klass == requests.class_names.index(name)
        if one.arrivals.trace is None or not len(requests.prompt[mine]):
            return one
        mean = {"prompt_tokens": requests.prompt[mine], "output_tokens": requests.output[mine]}
        return one.model_copy(update={name: max(1, round(float(np.mean(values)))) for name, values in mean.items()})

    return scenario.model_copy(update={"workload": {name: known(name, one) for name, one in scenario.workload.items()}})


def deadlines_of(scenario: Scenario) -> Deadlines:
    """Limits by class in the simulator's order; infinite where none is set."""

    def limits(metric: str) -> tuple[float, ...]:
        deadlines = (one.slo.deadlines().get(metric) for one in scenario.workload.values())
        return tuple(d.limit if d is not None else math.inf for d in deadlines)

    return Deadlines(ttft=limits("ttft"), e2e=limits("e2e"), itl=limits("itl"), tpot=limits("tpot"))
