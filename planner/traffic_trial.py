"""One trial: a configuration simulated under the traffic, judged by every class's deadlines."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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
from models.simulation_types import Deadlines, EarlyStop, RequestArrays, SimulationResult, Status
from solvers.objective import power_w, scale

HOPELESS = 1e12
"""Value told to the search for a configuration without a single good request."""


@dataclass(frozen=True)
class Traffic:
    """The load that every trial runs: requests, deadlines, and the case of each class (they share everything but the class)."""

    cases: dict[str, Case]
    requests: RequestArrays
    deadlines: Deadlines
    slowdown: float = 1.0  # seconds of the world for each simulated second
    notes: tuple[str, ...] = ()  # of whoever read the requests

    @property
    def case(self) -> Case:
        """The class with the most prompt and output tokens: its lengths shape the engine-wide averages."""
        return max(self.cases.values(), key=lambda c: c.request.prompt_tokens + c.request.output_tokens)

    def slowed(self, factor: float) -> Traffic:
        """The same traffic as an engine slower by ``factor`` sees it, on the clock of the one that is simulated."""
        limits = {name: tuple(one / factor for one in getattr(self.deadlines, name)) for name in ("ttft", "e2e", "itl", "tpot")}
        requests = replace(self.requests, arrival=self.requests.arrival / factor)
        return Traffic(self.cases, requests, Deadlines(**limits), self.slowdown * factor, self.notes)


def resolved_warnings(traffic: Traffic) -> tuple[str, ...]:
    """Warnings of every class; delivery to the client is inside simulated times, so the note that it is not is replaced."""
    found = [*traffic.notes]
    found += [w for case in traffic.cases.values() for w in case.warnings if not w.startswith("times are the engine's")]
    delay = traffic.case.calibration.delivery_s
    if delay:
        found.append(f"client times include {delay * 1e3:.2f} ms of delivery for every token, measured at batch 1")
    return tuple(dict.fromkeys(found))


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
