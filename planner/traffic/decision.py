"""What a configuration is worth over traffic on an engine that is faster or slower than calibrated: options for ``planner.weigh``.

A configuration is simulated at a few slowdowns s of its engine (arrivals and deadlines divided by s, see ``planner.traffic.probability``);
worth is the inverse objective, 0 where a deadline breaks, linear in ln s between them. Its phases, of the factors f, slow the engine by
ln s = w_p ln f_p + w_d ln f_d with the shares w of prefill and decode in a burst of as many requests as ran together on average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.case import Case
from models.describe.configuration import Configuration
from models.errors import GoodputError
from planner.answer import Ranked
from planner.decision import Floats, evaluated, phase_seconds
from planner.options import Options
from planner.traffic.load import Traffic
from planner.traffic.search import as_burst
from planner.traffic.trial import Trial, run
from solvers.executors import local_executor

TOP = 5
SLOWDOWNS = np.linspace(-0.6, 0.6, 9)
"""ln s: from an engine nearly twice as fast to one nearly twice as slow; beyond, the end values hold."""


@dataclass(frozen=True)
class Simulated:
    """One configuration: shares of prefill and decode, and its worth at each of ``SLOWDOWNS``."""

    label: str
    case: Case
    configuration: Configuration
    shares: Floats
    worth: Floats

    def value(self, logs: Floats, /) -> Floats:
        """v of ``logs`` [..., 2], the logs of the phases' factors."""
        return np.asarray(np.interp(logs @ self.shares, SLOWDOWNS, self.worth), dtype=np.float64)

    @property
    def mark(self) -> tuple[float, ...]:
        """Sizes that the traffic never reaches are one."""
        return tuple(float(f"{one:.9g}") for one in self.worth)


def traffic_options(traffic: Traffic, ranked: Sequence[Ranked], options: Options) -> list[Simulated]:
    """The first few configurations that the engine can run, simulated at every slowdown."""
    able = [one for one in ranked if one.launchable[traffic.case.engine.name] is True][:TOP]
    configurations = [Configuration.model_validate(one.settings) for one in able]
    jobs = [(one, slower) for one in configurations for slower in SLOWDOWNS.tolist()]
    with local_executor(options.workers) as executor:
        trials = list(executor.map(lambda job: _at(traffic, *job, seed=options.seed), jobs))
    rows = np.array([_worth(traffic, trial, slower) for trial, (_, slower) in zip(trials, jobs, strict=True)])
    rows = rows.reshape(len(able), len(SLOWDOWNS))
    middle = trials[len(SLOWDOWNS) // 2 :: len(SLOWDOWNS)]
    cases = [as_burst(traffic.case, _together(trial, one)) for trial, one in zip(middle, configurations, strict=True)]
    return [
        Simulated(one.id, case, configuration, _shares(case, configuration), row)
        for one, case, configuration, row in zip(able, cases, configurations, rows, strict=True)
    ]


def _at(traffic: Traffic, configuration: Configuration, slower: float, *, seed: int) -> Trial | None:
    try:
        return run(traffic.slowed(math.exp(slower)), configuration, seed=seed)
    except GoodputError:
        return None


def _worth(traffic: Traffic, trial: Trial | None, slower: float) -> float:
    """Inverse objective; every objective is a time, or one times a price or a power, and counts on the clock of the world."""
    if trial is None or trial.late:
        return 0.0
    return math.exp(-slower) / trial.values[traffic.case.scenario.objectives[0].value]


def _together(trial: Trial | None, configuration: Configuration) -> int:
    """Requests that ran together on average (Little's law)."""
    if trial is None or not trial.summary.overall.finished:
        return 1
    one = trial.summary.overall
    running = one.finished * (one.e2e.mean - one.queue.mean) / trial.summary.makespan_s
    return int(min(max(round(running), 1), configuration.max_num_seqs))


def _shares(case: Case, configuration: Configuration) -> Floats:
    prefill, decode = phase_seconds(evaluated(case, configuration))
    return np.array([prefill, decode]) / max(prefill + decode, 1e-12)
