"""Several loads in one simulation: lowering a load costs many times what simulating its few hundred requests does.

Loads of one engine follow each other, each after a pause in which the engine falls idle, so that none meets the one before. Seconds.
A pause is first the time of all requests one by one; where that was too short, it is lengthened and the loads are simulated again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.kernels.step import StepModel
from models.simulate import GAP_LOG, simulate
from models.simulation_types import Cache, EngineParameters, Floats, Integers, Records, RequestArrays, SimulationResult

_LONGEST_S = 1e6  # of one simulation: a double tells 0.1 ns apart there
_LONGER = 4.0  # a pause that was too short grows so many times


@dataclass(frozen=True)
class Load:
    """Traffic on an engine; ``alone_s`` is what its mean request takes by itself."""

    requests: RequestArrays
    engine: EngineParameters
    alone_s: float

    @property
    def duration_s(self) -> float:
        """About the longest that the load can take: its clock and its pauses run out, then one request after the other."""
        clocked = _follows(self.requests) < 0
        arrival = self.requests.arrival
        return float(arrival.max(initial=0.0, where=clocked) + arrival.sum(where=~clocked)) + len(self.requests) * self.alone_s

    @property
    def leaves_nothing(self) -> bool:
        """Whether an idle engine is as if it had never seen the load: no cached prefix, no random draw, no time by another clock."""
        plain = self.engine.cache is Cache.OFF and self.engine.acceptance is None and self.engine.attention is None
        return plain and all(x is None for x in (self.requests.prefixes, self.requests.cancel, self.requests.klass, self.requests.branches))

    def simulated(self, model: StepModel) -> SimulationResult:
        """The load by itself. Its clients have an answer ``request_s`` after the engine's last step for it, and only then send the next."""
        return simulate(self.requests, replace(self.engine, delivery_s=model.request_s), model)


def simulate_each(loads: Sequence[Load], model: StepModel) -> list[Records]:
    """The records of each load's requests; their clock starts anywhere."""
    found: dict[int, Records] = {}
    for batch in _batches(loads):
        found |= zip(batch, _simulated([loads[i] for i in batch], model), strict=True)
    return [found[i] for i in range(len(loads))]


def _batches(loads: Sequence[Load]) -> Iterator[list[int]]:
    """Indices of loads that one simulation can hold: one engine, bounded time and, for the log of gaps, tokens."""
    by_engine: dict[object, list[int]] = defaultdict(list)
    for i, load in enumerate(loads):
        by_engine[load.engine if load.leaves_nothing else i].append(i)
    for members in by_engine.values():
        seconds = np.cumsum([loads[i].duration_s for i in members]) / _LONGEST_S
        tokens = np.cumsum([float(loads[i].requests.output.sum()) for i in members]) / GAP_LOG
        part = np.floor(seconds) + np.floor(tokens)
        for number in np.unique(part):
            yield [i for i, own in zip(members, part, strict=True) if own == number]


def _simulated(loads: Sequence[Load], model: StepModel) -> list[Records]:
    if len(loads) == 1:
        return [loads[0].simulated(model).records]
    cut = np.cumsum([len(load.requests) for load in loads])[:-1]
    pause = np.array([load.duration_s for load in loads[:-1]])
    while True:
        begin = np.concatenate([[0.0], np.cumsum(pause)])
        found: list[Records] = np.split(replace(loads[0], requests=_joined(loads, begin)).simulated(model).records, cut)
        late = np.array([float(records["last"].max(initial=0.0)) for records in found[:-1]]) > begin[1:]
        if not late.any():
            return found
        pause = np.where(late, _LONGER * pause, pause)


def _joined(loads: Sequence[Load], begin: Floats) -> RequestArrays:
    """One traffic: load i starts at ``begin[i]``."""
    traffic = [load.requests for load in loads]
    follows, sizes = [_follows(requests) for requests in traffic], [len(requests) for requests in traffic]
    clocked = np.concatenate(follows) < 0
    return RequestArrays(
        np.concatenate([requests.arrival for requests in traffic]) + np.where(clocked, np.repeat(begin, sizes), 0.0),
        np.concatenate([requests.prompt for requests in traffic]), np.concatenate([requests.output for requests in traffic]),
        follows=np.where(clocked, -1, np.concatenate(follows) + np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)),
    )  # fmt: skip


def _follows(requests: RequestArrays) -> Integers:
    return np.full(len(requests), -1) if requests.follows is None else requests.follows
