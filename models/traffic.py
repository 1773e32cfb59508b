"""Draw requests from a description of traffic, or take them from a trace. Pure: same description and seed, same requests.

Units: seconds and tokens. Lengths that are drawn round to whole tokens, at least 1. Requests that follow another one (closed
loop, further turns) carry in ``arrival`` the pause after it, and stand behind those that arrive by the clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from models.describe.traffic import ArrivalProcess, ContextUpdate, Lengths, Patience, TrafficClass
from models.errors import ContradictionError
from models.readers.traces import Trace
from models.simulation_types import Floats, Integers, PrefixTree, RequestArrays


@dataclass
class _Draft:
    """Requests being collected: one entry each, and the prefix forest."""

    arrival: list[float] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    klass: list[int] = field(default_factory=list)
    follows: list[int] = field(default_factory=list)
    cancel: list[float] = field(default_factory=list)
    branches: list[int] = field(default_factory=list)
    path: list[list[int]] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    warm: list[bool] = field(default_factory=list)

    def node(self, parent: int, tokens: int, *, warm: bool = False) -> int:
        self.parent.append(parent)
        self.tokens.append(tokens)
        self.warm.append(warm)
        return len(self.parent) - 1

    def request(self, arrival: float, prompt: int, output: int, klass: int, path: list[int], follows: int = -1) -> int:
        for values, value in zip(
            (self.arrival, self.prompt, self.output, self.klass, self.follows), (arrival, prompt, output, klass, follows), strict=True
        ):
            values.append(value)  # type: ignore[attr-defined]
        self.path.append(path)
        self.cancel.append(math.inf)
        self.branches.append(1)
        return len(self.arrival) - 1


def draw_lengths(lengths: Lengths, count: int, random: np.random.Generator) -> Integers:
    """``count`` token counts."""
    if lengths.fixed is not None:
        values = np.full(count, lengths.fixed, np.int64)
    elif lengths.uniform is not None:
        values = random.integers(lengths.uniform[0], lengths.uniform[1] + 1, count)
    elif lengths.lognormal is not None:
        variance = math.log1p(lengths.lognormal.cv**2)
        drawn = random.lognormal(math.log(lengths.lognormal.mean) - variance / 2, math.sqrt(variance), count)
        values = np.maximum(np.rint(np.minimum(drawn, 1e8)), 1).astype(np.int64)
    else:
        values = random.choice(np.array(lengths.empirical, np.int64), count)
    values = values if lengths.most is None else np.minimum(values, lengths.most)
    return values if lengths.least is None else np.maximum(values, lengths.least)


def draw_patience(patience: Patience, count: int, random: np.random.Generator) -> Floats:
    """Seconds that ``count`` clients wait for their answer; infinite for those who never give up."""
    if patience.fixed is not None:
        values = np.full(count, patience.fixed)
    elif patience.uniform is not None:
        values = random.uniform(*patience.uniform, count)
    elif patience.lognormal is not None:
        variance = math.log1p(patience.lognormal.cv**2)
        values = random.lognormal(math.log(patience.lognormal.mean) - variance / 2, math.sqrt(variance), count)
    else:
        values = random.choice(np.array(patience.empirical, np.float64), count)
    return np.where(random.random(count) < patience.share, values, math.inf)


def draw_arrivals(process: ArrivalProcess, count: int, random: np.random.Generator) -> Floats:
    """Times of ``count`` arrivals by the clock; the clients of a closed loop start over its ramp (the rest follow)."""
    if process.burst:
        return np.zeros(count)
    if process.closed_loop is not None:
        return np.asarray(np.arange(count) * (process.closed_loop.ramp / process.closed_loop.concurrency), np.float64)
    if process.even is not None:
        return np.arange(count) / process.even
    if process.gamma is not None:
        return np.cumsum(random.gamma(process.burstiness, 1.0 / (process.gamma * process.burstiness), count))
    if process.poisson is not None:
        return np.cumsum(random.exponential(1.0 / process.poisson, count))
    assert process.on_off is not None
    busy = np.cumsum(random.exponential(1.0 / process.on_off.rate, count))
    phases, within = np.divmod(busy, process.on_off.on)
    return np.asarray(phases * (process.on_off.on + process.on_off.off) + within)


def generate(classes: Mapping[str, TrafficClass], *, seed: int = 0) -> RequestArrays:
    """Several classes at once, merged in order of arrival."""
    draft = _Draft()
    for klass, traffic in enumerate(classes.values()):
        random = np.random.default_rng([seed, klass])
        root = draft.node(-1, traffic.shared_prefix_tokens, warm=traffic.prefix_cached) if traffic.shared_prefix_tokens else -1
        _draw_class(draft, traffic, klass, root, random)
    return _ordered(draft, tuple(classes))


def _draw_class(draft: _Draft, traffic: TrafficClass, klass: int, root: int, random: np.random.Generator) -> None:
    count = traffic.requests
    prompt, output = draw_lengths(traffic.prompt, count, random), draw_lengths(traffic.output, count, random)
    if root >= 0 and int(prompt.min()) < traffic.shared_prefix_tokens:
        raise ContradictionError(
            "a prompt is shorter than the shared prefix",
            path="shared_prefix_tokens",
            value=int(prompt.min()),
            way_out="give the lengths a least of the prefix, or shorten the prefix",
        )
    arrival = draw_arrivals(traffic.arrivals, count, random)
    loop, first = traffic.arrivals.closed_loop, len(draft.arrival)
    shared = [root] if root >= 0 else []
    waits = draw_patience(traffic.cancel_after, count, random) if traffic.cancel_after is not None else np.full(count, math.inf)
    for place in range(count):
        after = first + place - loop.concurrency if loop is not None and place >= loop.concurrency else -1
        when = loop.think if loop is not None and after >= 0 else float(arrival[place])
        if traffic.session is None:
            one = draft.request(when, int(prompt[place]), int(output[place]), klass, shared, after)
            draft.cancel[one], draft.branches[one] = when + float(waits[place]), traffic.samples
        else:
            _draw_session(draft, traffic, klass, root, (when, int(prompt[place]), int(output[place])), random)


def _draw_session(
    draft: _Draft, traffic: TrafficClass, klass: int, root: int, start: tuple[float, int, int], random: np.random.Generator
) -> None:
    """Turns of one session, each after the one before; a summary is one more request, over the whole history."""
    session = traffic.session
    assert session is not None
    when, prompt, output = start
    base = [root] if root >= 0 else []
    path = [*base, draft.node(root, prompt - sum(draft.tokens[one] for one in base) + output)]
    before = draft.request(when, prompt, output, klass, path)
    new, outputs = draw_lengths(session.new_tokens, session.turns - 1, random), draw_lengths(traffic.output, session.turns - 1, random)
    for added, answer in zip(new.tolist(), outputs.tolist(), strict=True):
        if session.context == ContextUpdate.APPEND:
            prompt, path = prompt + output + added, [*path, draft.node(path[-1], added + answer)]
        elif session.context == ContextUpdate.REWRITE:
            prompt = prompt + output + added
            path = [draft.node(-1, prompt + answer)]
        else:
            assert session.summary_tokens is not None
            before = draft.request(session.think, prompt + output, session.summary_tokens, klass, path, before)
            prompt = session.summary_tokens + added
            path = [draft.node(-1, prompt + answer)]
        pause = session.think if session.context != ContextUpdate.SUMMARISE else 0.0
        before = draft.request(pause, prompt, answer, klass, path, before)
        output = answer


def _ordered(draft: _Draft, names: tuple[str, ...]) -> RequestArrays:
    """Clocked requests by time, then the followers in the order in which they were drawn."""
    follows, arrival = np.array(draft.follows, np.int64), np.array(draft.arrival, np.float64)
    waits = follows >= 0
    order = np.lexsort((np.arange(len(arrival)), np.where(waits, 0.0, arrival), waits))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    paths = [draft.path[i] for i in order]
    start = np.concatenate([[0], np.cumsum([len(path) for path in paths])]).astype(np.int64)
    tree = PrefixTree(
        np.array(draft.parent, np.int64), np.array(draft.tokens, np.int64), start, np.array([n for path in paths for n in path], np.int64),
        np.array(draft.warm, np.bool_), np.zeros(len(draft.parent)),
    )  # fmt: skip
    linked = np.where(follows[order] >= 0, place[np.maximum(follows[order], 0)], -1)
    return RequestArrays(
        arrival[order], np.array(draft.prompt, np.int64)[order], np.array(draft.output, np.int64)[order],
        klass=np.array(draft.klass, np.int64)[order] if len(names) > 1 else None, class_names=names,
        prefixes=tree if draft.parent else None, follows=linked if waits.any() else None, **_optional(draft, order),
    )  # fmt: skip


def _optional(draft: _Draft, order: npt.NDArray[np.intp]) -> dict[str, Any]:
    """Patience and branches, where some class has them."""
    cancel, branches = np.array(draft.cancel)[order], np.array(draft.branches, np.int64)[order]
    return {"cancel": cancel if np.isfinite(cancel).any() else None, "branches": branches if (branches > 1).any() else None}


def from_trace(
    trace: Trace, *, name: str = "trace", speed: float = 1.0, patience: Patience | None = None, samples: int = 1, seed: int = 0
) -> RequestArrays:  # fmt: skip
    """The requests of a trace; ``speed`` 2 plays it twice as fast. Clients wait as long as ever they do, whatever the speed."""
    arrival, count = trace.arrival / speed, len(trace)
    waits = None if patience is None else draw_patience(patience, count, np.random.default_rng([seed, 0]))
    return RequestArrays(
        arrival, trace.prompt, trace.output, class_names=(name,), prefixes=trace.prefixes,
        cancel=None if waits is None else arrival + waits, branches=None if samples == 1 else np.full(count, samples, np.int64),
    )  # fmt: skip


def merged(parts: Sequence[RequestArrays], names: tuple[str, ...]) -> RequestArrays:
    """Several loads as one, in order of arrival; ``names`` orders their classes. Requests that follow another one stand last."""
    if len(parts) == 1:
        return parts[0]
    first = np.cumsum([0, *(len(part) for part in parts)])
    follows = np.concatenate([
        np.full(len(part), -1, np.int64) if part.follows is None else np.where(part.follows >= 0, part.follows + start, -1)
        for part, start in zip(parts, first, strict=False)
    ])  # fmt: skip
    klass = np.concatenate([_places(part, names) for part in parts])
    arrival, prompt, output = (np.concatenate([getattr(part, name) for part in parts]) for name in ("arrival", "prompt", "output"))
    waits = follows >= 0
    order = np.lexsort((np.arange(len(arrival)), np.where(waits, 0.0, arrival), waits))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    linked = np.where(follows[order] >= 0, place[np.maximum(follows[order], 0)], -1)
    return RequestArrays(
        arrival[order], prompt[order], output[order], klass=klass[order], class_names=names, prefixes=_forest(parts, order),
        follows=linked if waits.any() else None, cancel=_joined(parts, "cancel", order, math.inf),
        branches=_joined(parts, "branches", order, 1),
    )  # fmt: skip


def _joined(parts: Sequence[RequestArrays], name: str, order: Integers, usual: float) -> Any:
    """An optional array of all parts; ``usual`` where a part has none, None where no part has any."""
    found = [getattr(part, name) for part in parts]
    if all(values is None for values in found):
        return None
    filled = [np.full(len(part), usual) if values is None else values for part, values in zip(parts, found, strict=True)]
    return np.concatenate(filled)[order].astype(np.int64 if name == "branches" else np.float64)


def _places(part: RequestArrays, names: tuple[str, ...]) -> Integers:
    """The place in ``names`` of each request's class."""
    own = np.array([names.index(name) for name in part.class_names], np.int64)
    return own[np.zeros(len(part), np.int64) if part.klass is None else part.klass]


def _forest(parts: Sequence[RequestArrays], order: Integers) -> PrefixTree | None:
    """The prefix trees of all parts side by side, their paths in the order of the requests."""
    if all(part.prefixes is None for part in parts):
        return None
    trees = [part.prefixes if part.prefixes is not None else PrefixTree.empty(len(part)) for part in parts]
    nodes = np.cumsum([0, *(len(tree.parent) for tree in trees)])
    parent = np.concatenate([np.where(tree.parent >= 0, tree.parent + base, -1) for tree, base in zip(trees, nodes, strict=False)])
    paths = np.concatenate([tree.paths + base for tree, base in zip(trees, nodes, strict=False)])
    length = np.concatenate([np.diff(tree.path_start) for tree in trees])
    begin = np.concatenate([[0], np.cumsum(length)])[:-1][order]
    start = np.concatenate([[0], np.cumsum(length[order])]).astype(np.int64)
    picked = np.repeat(begin - start[:-1], length[order]) + np.arange(start[-1])
    tokens, warm, value = (np.concatenate([getattr(tree, name) for tree in trees]) for name in ("tokens", "warm", "value"))
    return PrefixTree(parent.astype(np.int64), tokens, start, paths[picked].astype(np.int64), warm, value)
