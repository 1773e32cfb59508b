"""Planning rates: the closed form prunes and seeds, Optuna searches the simulated traffic, the simulator has the last word.

Domains are the registry's; a branch in which a single request alone on the engine already misses a deadline is left out. The exact
closed-form search of a few bursts gives the first trials, so the answer can say by how much the simulated search beats it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from models.case import Case
from models.describe.configuration import Configuration
from models.describe.engine import not_launchable
from models.describe.workload import Arrivals
from models.errors import GoodputError
from planner.options import Options
from planner.traffic.load import Traffic
from planner.traffic.trial import Abandoned, Trial, attempt, run
from solvers import full_resolution
from solvers.executors import local_executor
from solvers.grid import Grid
from solvers.optuna_search import Choice, Domain, Range, SearchResult, TrialOutcome, search
from solvers.space import Space, build_space

BURSTS = (1, 4, 16, 64)
NO_LIMIT = 0
TO_THE_END = 12
CANNOT_RUN = 10.0
"""Told to the search as the violation of what cannot run at all: beyond every lateness."""


@dataclass(frozen=True)
class TrafficSearch:
    """Every trial that ran to its end, the nearest to feasible first and then by the objectives, and how they were found."""

    traffic: Traffic
    trials: tuple[tuple[Configuration, Trial], ...]
    result: SearchResult
    seeded: tuple[Configuration, Trial] | None  # the best of what the closed form alone chooses


def explore(traffic: Traffic, options: Options, *, first_feasible: bool = False) -> TrafficSearch:
    """Search the configurations that the scenario leaves open; ``first_feasible`` only until something is on time."""
    case = traffic.case
    space = build_space(case)
    domains = _domains(case, space)
    seeds = _seeds(traffic, space, domains)
    trials: dict[str, tuple[Configuration, Trial]] = {}
    abandoned: dict[str, tuple[float, Configuration]] = {}

    def evaluate(choice: Choice) -> TrialOutcome:
        configuration = _configuration(case, choice)
        if configuration is None or not_launchable(configuration, case.engine):
            return TrialOutcome(_worst(case), CANNOT_RUN)
        found = attempt(traffic, configuration, seed=options.seed)
        if isinstance(found, Trial):
            trials[configuration.model_dump_json()] = (configuration, found)
            return TrialOutcome(tuple(found.values.values()), found.shortfall)
        if isinstance(found, Abandoned):
            abandoned[configuration.model_dump_json()] = (found.shortfall, configuration)
            return TrialOutcome(_worst(case), 1.0 + found.shortfall, pruned=True)
        return TrialOutcome(_worst(case), CANNOT_RUN)

    with local_executor(options.workers) as executor:
        result = search(
            domains, evaluate, seeds=seeds, trials=options.trials, seed=options.seed, executor=executor,
            objectives=len(case.scenario.objectives), progress=options.progress, first_feasible=first_feasible,
        )  # fmt: skip
        if not first_feasible and all(trial.late for _, trial in trials.values()):
            nearest = [abandoned[key][1] for key in sorted(abandoned, key=lambda key: (abandoned[key][0], key))[:TO_THE_END]]
            ended = executor.map(lambda one: run(traffic, one, seed=options.seed), nearest)
            trials |= {one.model_dump_json(): (one, trial) for one, trial in zip(nearest, ended, strict=True)}
    ordered = sorted(trials.values(), key=lambda pair: (pair[1].shortfall, *pair[1].values.values(), pair[0].model_dump_json()))
    return TrafficSearch(traffic, tuple(ordered), result, _seeded(traffic, seeds, trials, abandoned, options.seed))


def _worst(case: Case) -> tuple[float, ...]:
    return (1e12,) * len(case.scenario.objectives)


def _seeded(
    traffic: Traffic, seeds: Sequence[Choice], trials: Mapping[str, tuple[Configuration, Trial]],
    abandoned: Mapping[str, tuple[float, Configuration]], seed: int,
) -> tuple[Configuration, Trial] | None:  # fmt: skip
    """The best under simulation of what the closed form alone chooses; run to its end where all were abandoned."""
    configurations = (_configuration(traffic.case, choice) for choice in seeds)
    marks = [one.model_dump_json() for one in configurations if one is not None]
    ended = [trials[mark] for mark in marks if mark in trials]
    if ended:
        return min(ended, key=lambda pair: (pair[1].shortfall, *pair[1].values.values()))
    nearest = min((abandoned[mark] for mark in marks if mark in abandoned), key=lambda pair: pair[0], default=None)
    return None if nearest is None else (nearest[1], run(traffic, nearest[1], seed=seed))


def _domains(case: Case, space: Space) -> dict[str, Domain]:
    """Branch variables as categories, long axes as ranges; only branches in which one request alone is on time."""
    axes, keep = space.axes, _hopeful(case, space)

    def values(axis: int) -> tuple[Any, ...]:
        codes = np.unique(np.unravel_index(np.flatnonzero(keep), axes.shape)[axis])
        return tuple(axes.lists()[axis][i] for i in codes) or axes.lists()[axis]

    names = (
        "tensor_parallel",
        "weight_format",
        "kv_format",
        "prefix_sharing",
        "speculation",
        "prefetch_buffers",
        "graphs",
        "prefill_chunk",
    )
    found: dict[str, Domain] = {name: values(i) for i, name in enumerate(names)}
    found |= {name: _range(getattr(space, name), log=name == "max_num_seqs") for name in ("max_num_seqs", "max_num_batched_tokens")}
    buffered = any(count > 0 for count in values(5))
    found["offload_layers"] = _range(space.offload_layers, log=False) if buffered else (0,)
    limits = tuple(dict.fromkeys(a or NO_LIMIT for a in space.admission_limit))
    found["admission_limit"] = limits if len(limits) <= 16 else tuple(dict.fromkeys((NO_LIMIT, *(1 << i for i in range(2, 12)))))
    return found


def _range(values: tuple[int, ...], *, log: bool = False) -> Domain:
    """A range where the values are evenly spaced, else the values themselves."""
    steps = {b - a for a, b in pairwise(values)}
    if len(values) > 2 and len(steps) == 1:
        return Range(values[0], values[-1], steps.pop(), log=log)
    return values


def _hopeful(case: Case, space: Space) -> np.ndarray:
    """Branches in which a single request, alone, meets every deadline and limit (all branches when none does)."""
    alone = as_burst(case, 1)
    grid = Grid.of(alone, replace(space, admission_limit=(None,), max_num_seqs=(alone.request.samples,)))
    _, cells = full_resolution.bounded_cells(grid)
    keep = np.zeros(len(grid.columns.buffers), dtype=np.bool_)
    keep[cells.branch] = True
    return keep if keep.any() else ~keep


def as_burst(case: Case, count: int) -> Case:
    """The same requests, ``count`` at once."""
    request = case.request.model_copy(update={"arrivals": Arrivals(burst=count)})
    scenario = case.scenario.model_copy(update={"workload": {case.class_name: request}})
    return replace(case, request=request, scenario=scenario)


def _seeds(traffic: Traffic, space: Space, domains: dict[str, Domain]) -> list[Choice]:
    """What the closed form alone chooses: the best of a few bursts, exactly; each at its own size and at usual ones."""
    found: list[Choice] = []
    most = _largest(domains["max_num_seqs"])
    for count in BURSTS:
        case = as_burst(traffic.case, count)
        grid = Grid.of(case, replace(space, admission_limit=(None,)))
        for _, cell in full_resolution.solve(grid, keep=2).best:
            one = grid.configuration(cell)
            for seqs, budget in ((one.max_num_seqs, one.max_num_batched_tokens), (most // 4, 8192), (most, 2048)):
                choice = _choice(one, max_num_seqs=seqs, max_num_batched_tokens=budget)
                if all(_admits(domains[name], value) for name, value in choice.items()) and choice not in found:
                    found.append(choice)
    return found


def _largest(domain: Domain) -> int:
    return domain.high if isinstance(domain, Range) else int(max(domain))


def _admits(domain: Domain, value: Any) -> bool:
    return domain.low <= value <= domain.high if isinstance(domain, Range) else value in domain


def _choice(one: Configuration, **changed: Any) -> Choice:
    choice = {
        "tensor_parallel": one.tensor_parallel, "weight_format": one.weight_format, "kv_format": one.kv_format,
        "prefix_sharing": one.prefix_sharing, "speculation": (one.draft, one.draft_tokens), "prefetch_buffers": one.prefetch_buffers,
        "graphs": (one.cuda_graphs, one.captured_sizes, not one.captured_sizes and one.cuda_graphs), "prefill_chunk": one.prefill_chunk,
        "max_num_seqs": one.max_num_seqs, "max_num_batched_tokens": one.max_num_batched_tokens, "offload_layers": one.offload_layers,
        "admission_limit": one.admission_limit or NO_LIMIT,
    }  # fmt: skip
    return choice | changed


def _configuration(case: Case, choice: Choice) -> Configuration | None:
    """The settings of a choice; None where its parts do not go together."""
    draft, m = choice["speculation"]
    graphs, sizes, per_sequence = choice["graphs"]
    seqs = min(choice["max_num_seqs"], choice["max_num_batched_tokens"] // (m + 1))
    if seqs < case.request.samples:
        return None
    offloads = choice["offload_layers"] > 0 and choice["prefetch_buffers"] > 0  # half a choice is none
    try:
        return Configuration(
            max_num_seqs=seqs, max_num_batched_tokens=choice["max_num_batched_tokens"], prefill_chunk=choice["prefill_chunk"],
            kv_format=choice["kv_format"], weight_format=choice["weight_format"], prefix_sharing=choice["prefix_sharing"],
            offload_layers=choice["offload_layers"] if offloads else 0, prefetch_buffers=choice["prefetch_buffers"] if offloads else 0,
            draft=draft, draft_tokens=m,
            admission_limit=choice["admission_limit"] or None, tensor_parallel=choice["tensor_parallel"], cuda_graphs=graphs,
            captured_sizes=tuple(size * (m + 1) for size in sizes) if per_sequence else sizes,
        )  # fmt: skip
    except (ValueError, GoodputError):
        return None


def simulate_candidates(traffic: Traffic, named: dict[str, Configuration], seed: int) -> dict[str, Trial | str]:
    """Each named configuration under the traffic, in full."""
    found: dict[str, Trial | str] = {}
    for label, one in named.items():
        try:
            found[label] = run(traffic, one, seed=seed)
        except GoodputError as error:
            found[label] = str(error)
    return found
