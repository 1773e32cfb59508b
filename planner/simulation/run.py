"""The use case: one configuration of a scenario, run through its traffic by the simulator, with the knee where it is asked for."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.case import Case
from models.describe.configuration import Configuration
from models.describe.scenario import Scenario
from models.describe.scheduler import Scheduling
from models.energy import joules_bound
from models.errors import ContradictionError, InputError, UnknownNameError
from models.lower_simulation import POLICIES
from models.serving import serve
from planner.answer import CalibrationUsed
from planner.coverage import asked_of_run, extrapolation
from planner.options import Options
from planner.scenario_file import parse_scenario
from planner.scheduler_notes import burst_note, outcome_notes
from planner.simulation.answer import SCHEMA_VERSION, SimulationAnswer, percentiles, refused_of, samples_of, simulated_class
from planner.simulation.knee import find_knee
from planner.simulation.options import SimulationOptions
from planner.traffic.load import Traffic, load, resolved_warnings
from planner.traffic.requests import offered_rate, scaled
from planner.traffic.trial import Trial, inputs_of, judge
from solvers.objective import power_w
from solvers.space import configuration_from

ENGINE_BLOCK = "engine"
"""Configuration name for the engine block's fixed values and the engine's own defaults."""
PLANNING = 0.5
"""Share of the progress that planning takes, where a rank of the plan is asked for."""


@dataclass(frozen=True)
class Simulated:
    """The answer, and the run behind it for charts."""

    answer: SimulationAnswer
    trial: Trial
    traffic: Traffic


def simulate_scenario(raw: Mapping[str, Any], options: SimulationOptions) -> Simulated:
    """Simulate raw scenario data; every problem with it is an ``InputError``."""
    started = time.perf_counter()
    scenario = parse_scenario(raw)
    sizes = Options(requests=options.requests, seed=options.seed, stored=options.stored)
    label, chosen = choose(raw, scenario, load(scenario, sizes).case, options)
    scenario, offered = _at_rate(scenario, load(scenario, sizes), options.rate)
    traffic = load(scenario, sizes)
    trial = run_in_full(traffic, chosen, options)
    found = find_knee(traffic, scenario, trial.inputs, options) if options.knee else None
    answer = _answer(traffic, (label, chosen), trial, options, offered)
    done = {"knee": found, "elapsed_s": round(time.perf_counter() - started, 4)}
    return Simulated(answer.model_copy(update=done), trial, traffic)


def choose(raw: Mapping[str, Any], scenario: Scenario, case: Case, options: SimulationOptions) -> tuple[str, Configuration]:
    """The configuration that was named, or the first candidate, or the plan's winner."""
    wanted, named = options.configuration, scenario.candidates or {}
    if wanted == ENGINE_BLOCK:
        return ENGINE_BLOCK, configuration_from(case, {}, "engine")
    label = wanted if wanted is not None else next(iter(named), None)
    if label in named:
        return label, configuration_from(case, named[label], f"candidates.{label}")
    if label is not None and not label.isdecimal():
        raise UnknownNameError.suggest("configuration", label, [*named, ENGINE_BLOCK], path="--config")
    return _ranked(raw, int(label or 1), options)


def _ranked(raw: Mapping[str, Any], rank: int, options: SimulationOptions) -> tuple[str, Configuration]:
    from planner.plan import plan  # noqa: PLC0415

    asked = Options(
        seed=options.seed, trials=options.trials, requests=options.requests, stored=options.stored, explain=False, prove=False,
        progress=lambda done, of, _best: options.progress(PLANNING * done / of),
    )  # fmt: skip
    answer = plan(raw, asked)
    if not 1 <= rank <= len(answer.configurations):
        raise InputError(
            f"the plan has {len(answer.configurations)} configurations", path="--config", value=rank, way_out="name a rank from 1"
        )
    one = answer.configurations[rank - 1]
    return f"{one.id} of the plan", Configuration.model_validate(one.settings)


def _at_rate(scenario: Scenario, traffic: Traffic, rate: float | None) -> tuple[Scenario, float | None]:
    """The scenario at the rate asked for (all open classes in proportion), and the rate that it then offers."""
    offered = offered_rate(scenario, traffic.requests)
    if rate is None:
        return scenario, offered
    if offered is None:
        raise ContradictionError(
            "no class of this traffic has a rate", path="--rate", value=rate, way_out="give the class arrivals such as {rate: 4 /s}"
        )
    if not (math.isfinite(rate) and rate > 0):
        raise InputError("must be above 0", path="--rate", value=rate)
    return scaled(scenario, rate / offered), rate


def run_in_full(traffic: Traffic, configuration: Configuration, options: SimulationOptions) -> Trial:
    """Simulate without early stopping."""
    names = [one.value for one in Scheduling]
    if options.policy is not None and options.policy not in names:
        raise UnknownNameError.suggest("policy", options.policy, names, path="--policy")
    policy = Scheduling(options.policy) if options.policy is not None else None
    inputs = inputs_of(traffic.case, configuration, random=not options.expected, policy=policy)
    result = serve(traffic.requests, inputs, seed=options.seed, deadlines=traffic.deadlines, timeline=options.timeline)
    return judge(traffic, configuration, inputs, result)


def _answer(
    traffic: Traffic, chosen: tuple[str, Configuration], trial: Trial, options: SimulationOptions, offered: float | None
) -> SimulationAnswer:  # fmt: skip
    case, s, inputs = traffic.case, trial.summary, trial.inputs
    watts, blocks = power_w(case), max(inputs.engine.kv_blocks, 1)
    names = {policy: name.value for name, policy in POLICIES.items()}
    return SimulationAnswer(
        schema_version=SCHEMA_VERSION, configuration=chosen[0], settings=chosen[1].model_dump(mode="json"),
        policy=names[inputs.engine.policy], acceptance="random" if inputs.engine.acceptance is not None else "expected",
        engine=f"{case.engine.name} {case.engine.version}", seed=options.seed, offered_per_s=offered,
        calibration=CalibrationUsed(name=case.calibration.name, version=case.calibration.version, requested=case.scenario.calibration),
        overall=simulated_class(s.overall), classes={name: simulated_class(one) for name, one in s.by_class.items()},
        itl_s=percentiles(s.itl), itl_resolution=s.itl_resolution, makespan_s=s.makespan_s, busy_s=s.busy_s, iterations=s.iterations,
        good_requests=trial.good, gpu_s_per_good=trial.device_s / trial.good if trial.good else None,
        joules_per_good=joules_bound(watts, 1, trial.device_s) / trial.good if trial.good and watts is not None else None,
        peak_kv_bytes=inputs.pool_bytes * min(s.peak_kv_blocks, blocks) // blocks, pool_bytes=inputs.pool_bytes, hit_rate=s.hit_rate,
        preemptions=s.preemptions, recomputed_tokens=s.recomputed_tokens, evicted_blocks=s.evicted_blocks, refused=refused_of(trial),
        late={name: (value if math.isfinite(value) else None, limit) for name, (value, limit) in trial.late.items()},
        overload=s.overload, queue_growth_per_s=s.queue_growth_per_s, samples=samples_of(trial), knee=None,
        warnings=warnings_of(traffic, trial), elapsed_s=0.0,
    )  # fmt: skip


def warnings_of(traffic: Traffic, trial: Trial) -> tuple[str, ...]:
    """Everything that a reader must know before trusting the figures."""
    found = [*resolved_warnings(traffic), *extrapolation(traffic.case.calibration, asked_of_run(trial.result)), *trial.result.warnings]
    found += [*outcome_notes(trial.result), *burst_note(traffic.case, trial.inputs.engine.policy)]
    if trial.summary.overload:
        found.append(
            f"overload: the queue grows by {trial.summary.queue_growth_per_s:.3g} requests a second; "
            "waiting times are those of this many requests, not a steady state"
        )
    return tuple(dict.fromkeys(found))
