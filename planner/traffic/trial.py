"""One trial: a configuration simulated under the traffic, judged by every class's deadlines."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from models.case import Case
from models.describe.configuration import Configuration
from models.describe.scenario import Objective
from models.errors import GoodputError
from models.lower_simulation import SimulationInputs, lower_simulation
from models.quality import probability_correct
from models.service import nearest_rank
from models.simulate import simulate
from models.simulation_summary import SimulationSummary, summarise
from models.simulation_types import EarlyStop, SimulationResult, Status
from planner.traffic.load import Traffic
from solvers.objective import power_w, scale

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
    shortfall: float  # 0 when feasible: share of requests missing to the percentiles, summed
    values: dict[str, float]


def run(traffic: Traffic, configuration: Configuration, *, seed: int, stop: bool = False) -> Trial | None:
    """Simulate; None when the run was abandoned because its first tenth already fails."""
    inputs = lower_simulation(traffic.case, configuration)
    early = _early_stop(traffic) if stop else None
    result = simulate(
        traffic.requests, inputs.engine, inputs.prefill, inputs.decode, seed=seed, deadlines=traffic.deadlines, early_stop=early
    )
    if result.stopped_early:
        return None
    return judge(traffic, configuration, inputs, result)


def _early_stop(traffic: Traffic) -> EarlyStop | None:
    """Abandon when four fifths of the share that must be on time are not reached in the first tenth."""
    share = min((d.percentile for c in traffic.cases.values() for d in c.request.slo.deadlines().values()), default=0.0) / 100
    after = len(traffic.requests) // 10
    return EarlyStop(after, math.ceil(0.8 * share * after)) if share and after >= 20 else None


def judge(traffic: Traffic, configuration: Configuration, inputs: SimulationInputs, result: SimulationResult) -> Trial:
    """Deadlines at their percentiles, good requests with the quality of their class, objective values."""
    summary = summarise(result, watts=power_w(traffic.case))
    late: dict[str, tuple[float, float]] = {}
    shortfall, good = 0.0, 0.0
    for place, (name, case) in enumerate(traffic.cases.items()):
        mine = result.requests.klass == place if result.requests.klass is not None else np.ones(len(result.records), dtype=np.bool_)
        metrics = {metric: values * traffic.slowdown for metric, values in _metrics(result, mine).items()}
        for metric, deadline in case.request.slo.deadlines().items():
            values = metrics[metric]
            wanted = nearest_rank(deadline.percentile, len(values))
            value = float(np.partition(values, wanted - 1)[wanted - 1]) if len(values) else 0.0
            if value > deadline.limit:
                late[f"{name}.{metric}"] = (value, deadline.limit)
                shortfall += (wanted - int((values <= deadline.limit).sum())) / max(len(values), 1)
        q = probability_correct(case.request.quality, configuration.kv_format)
        good += q * (summary.by_class[name].good if summary.by_class else summary.overall.good)
    return Trial(inputs, result, summary, good, late, shortfall, _values(traffic.case, inputs, summary, good))


def _metrics(result: SimulationResult, mine: np.ndarray) -> dict[str, np.ndarray]:
    """Client-side metrics of one class; a request without an answer is infinitely late."""
    r, output = result.records[mine], result.requests.output[mine]
    done, delay = r["status"] == Status.FINISHED, result.engine.delivery_s
    tpot = (r["last"] - r["first"]) / np.maximum(output - 1, 1)
    found = {"e2e": r["last"] - r["arrival"] + delay, "ttft": r["first"] - r["arrival"] + delay, "itl": r["max_gap"], "tpot": tpot}
    return {name: np.where(done, value, math.inf) for name, value in found.items()}


def _values(case: Case, inputs: SimulationInputs, summary: SimulationSummary, good: float) -> dict[str, float]:
    """Objectives to minimise. GPU-seconds and joules count the time in which the engine executes, cost the whole rented time."""
    found = {}
    for objective in case.scenario.objectives:
        if objective is Objective.LATENCY:
            found[objective.value] = summary.overall.e2e.p95
            continue
        seconds = summary.makespan_s if objective in (Objective.COST, Objective.GOODPUT) else summary.busy_s
        devices = 1 if objective is Objective.GOODPUT else inputs.devices
        found[objective.value] = scale(case, objective) * devices * seconds / good if good > 0 else HOPELESS
    return {name: value if math.isfinite(value) else HOPELESS for name, value in found.items()}


def attempt(traffic: Traffic, configuration: Configuration, *, seed: int) -> Trial | str | None:
    """A trial, the reason why the configuration cannot run at all, or None when it was abandoned early."""
    try:
        return run(traffic, configuration, seed=seed, stop=True)
    except GoodputError as error:
        return str(error)
