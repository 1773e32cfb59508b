"""One trial: a configuration simulated under the traffic, judged by every class's deadlines."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from models.case import Case
from models.describe.configuration import Configuration
from models.describe.scenario import Objective
from models.describe.scheduler import Scheduling
from models.errors import GoodputError
from models.lower_simulation import lower_simulation
from models.quality import probability_correct
from models.service import nearest_rank
from models.serving import serve
from models.simulation_summary import SimulationSummary, summarise
from models.simulation_types import EarlyStop, SimulationInputs, SimulationResult, Status
from planner.traffic.load import Traffic
from solvers.objective import power_w, scale
from solvers.space import configuration_from

HOPELESS = 1e12
"""Value told to the search for a configuration without a single good request."""


@dataclass(frozen=True)
class Trial:
    """What a simulated configuration came to; ``late`` names each missed deadline with (value, limit) at its percentile."""

    inputs: SimulationInputs
    result: SimulationResult
    summary: SimulationSummary
    good: float
    late: dict[str, tuple[float, float]]
    shortfall: float  # 0 when feasible, else how far from it (``lateness``)
    used: dict[str, float]  # share of each deadline at its percentile
    values: dict[str, float]

    @property
    def device_s(self) -> float:
        """Seconds in which devices execute, the second instance's too."""
        return executing_s(self.inputs, self.result, self.summary)

    @property
    def devices(self) -> int:
        """Devices of every instance."""
        return self.inputs.all_devices

    @property
    def end_share(self) -> float:
        """Share of the run after the last arrival, in which the engine only empties: a longer run would have less of it."""
        arrivals, whole = self.result.records["arrival"], self.summary.makespan_s
        return max(0.0, 1.0 - float(arrivals.max(initial=0.0)) / whole) if whole > 0 else 0.0


@dataclass(frozen=True)
class Abandoned:
    """A trial whose first tenth already fails, and how far that tenth is from the deadlines."""

    shortfall: float


def executing_s(inputs: SimulationInputs, result: SimulationResult, summary: SimulationSummary) -> float:
    """Device-seconds of execution on all instances."""
    other = inputs.elsewhere.devices * result.elsewhere.counters["busy_s"] if inputs.elsewhere and result.elsewhere else 0.0
    return inputs.devices * summary.busy_s + other


def inputs_of(case: Case, configuration: Configuration, *, random: bool = True, policy: Scheduling | None = None) -> SimulationInputs:
    """A configuration lowered, with the second instance that the scenario describes."""
    return lower_simulation(case, configuration, random=random, policy=policy, faster=_second_instance(case))


def _second_instance(case: Case) -> Configuration | None:
    """Settings of ``engine.scheduler.faster``: its own go before what the engine block fixes for the first instance."""
    engine = case.scenario.engine
    given = engine.scheduler.faster
    settings = (case.scenario.candidates or {})[given] if isinstance(given, str) else given
    if settings is None:
        return None
    fixed = {name: value for name, value in engine.fixed.items() if name not in settings}
    scenario = case.scenario.model_copy(update={"engine": engine.model_copy(update={"fixed": fixed})})
    return configuration_from(replace(case, scenario=scenario), settings, "engine.scheduler.faster")


def run(traffic: Traffic, configuration: Configuration, *, seed: int) -> Trial:
    """Simulate to the end and judge."""
    inputs = inputs_of(traffic.case, configuration)
    return judge(traffic, configuration, inputs, serve(traffic.requests, inputs, seed=seed, deadlines=traffic.deadlines))


def _early_stop(traffic: Traffic) -> EarlyStop | None:
    """Abandon when four fifths of the share that must be on time are not reached in the first tenth."""
    share = min((d.percentile for c in traffic.cases.values() for d in c.request.slo.deadlines().values()), default=0.0) / 100
    after = len(traffic.requests) // 10
    return EarlyStop(after, math.ceil(0.8 * share * after)) if share and after >= 20 else None


def judge(traffic: Traffic, configuration: Configuration, inputs: SimulationInputs, result: SimulationResult) -> Trial:
    """Deadlines at their percentiles, good requests with the quality of their class, objective values."""
    summary = summarise(result, watts=power_w(traffic.case))
    late, shortfall, used = lateness(traffic, result)
    good = 0.0
    for name, case in traffic.cases.items():
        q = probability_correct(case.request.quality, configuration.kv_format)
        good += q * (summary.by_class[name].good if summary.by_class else summary.overall.good)
    return Trial(inputs, result, summary, good, late, shortfall, used, _values(traffic.case, inputs, result, summary, good))


def lateness(traffic: Traffic, result: SimulationResult) -> tuple[dict[str, tuple[float, float]], float, dict[str, float]]:
    """Missed deadlines with (value, limit), the shortfall, and the share of each deadline that is used.

    Shortfall sums over the missed deadlines the share of requests that are missing to the percentile, and how late the percentile is:
    log10(value / limit) / 3, at most 1. So it falls steadily towards 0 where deadlines are missed by orders of magnitude, too.
    """
    late: dict[str, tuple[float, float]] = {}
    used: dict[str, float] = {}
    shortfall = 0.0
    done = ~(result.status(Status.PENDING) | result.status(Status.HANDED_OVER))  # those handed over are somebody else's to answer in time
    for place, (name, case) in enumerate(traffic.cases.items()):
        mine = done if result.requests.klass is None else done & (result.requests.klass == place)
        metrics = {metric: values * traffic.slowdown for metric, values in _metrics(result, mine).items()}
        for metric, deadline in case.request.slo.deadlines().items():
            values = metrics[metric]
            wanted = nearest_rank(deadline.percentile, len(values))
            value = float(np.partition(values, wanted - 1)[wanted - 1]) if len(values) else 0.0
            used[f"{name}.{metric}"] = value / deadline.limit
            if value > deadline.limit:
                late[f"{name}.{metric}"] = (value, deadline.limit)
                missing = (wanted - int((values <= deadline.limit).sum())) / max(len(values), 1)
                shortfall += missing + min(1.0, math.log10(value / deadline.limit) / 3)
    return late, shortfall, used


def _metrics(result: SimulationResult, mine: np.ndarray) -> dict[str, np.ndarray]:
    """Client-side metrics of one class; a request without an answer is infinitely late."""
    r, output = result.records[mine], result.requests.output[mine]
    done, delay = r["status"] == Status.FINISHED, result.engine.delivery_s
    tpot = (r["last"] - r["first"]) / np.maximum(output - 1, 1)
    found = {"e2e": r["last"] - r["arrival"] + delay, "ttft": r["first"] - r["arrival"] + delay, "itl": r["max_gap"], "tpot": tpot}
    return {name: np.where(done, value, math.inf) for name, value in found.items()}


def _values(
    case: Case, inputs: SimulationInputs, result: SimulationResult, summary: SimulationSummary, good: float
) -> dict[str, float]:  # fmt: skip
    """Objectives to minimise. GPU-seconds and joules count the time in which the engine executes, cost the whole rented time."""
    found = {}
    for objective in case.scenario.objectives:
        if objective is Objective.LATENCY:
            found[objective.value] = summary.overall.e2e.p95
            continue
        rented = summary.makespan_s * (1 if objective is Objective.GOODPUT else inputs.all_devices)
        spent = rented if objective in (Objective.COST, Objective.GOODPUT) else executing_s(inputs, result, summary)
        found[objective.value] = scale(case, objective) * spent / good if good > 0 else HOPELESS
    return {name: value if math.isfinite(value) else HOPELESS for name, value in found.items()}


def attempt(traffic: Traffic, configuration: Configuration, *, seed: int) -> Trial | Abandoned | str:
    """A trial, abandoned early where its first tenth already fails, or the reason why the configuration cannot run at all."""
    try:
        inputs = inputs_of(traffic.case, configuration)
        result = serve(traffic.requests, inputs, seed=seed, deadlines=traffic.deadlines, early_stop=_early_stop(traffic))
    except GoodputError as error:
        return str(error)
    if result.stopped_early:
        return Abandoned(lateness(traffic, result)[1])
    return judge(traffic, configuration, inputs, result)
