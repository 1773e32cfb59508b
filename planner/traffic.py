"""The use case for rates: a scenario whose requests arrive over time, ranked by simulation."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from models.catalog.devices import catalogue_version
from models.describe.configuration import Configuration
from models.describe.scenario import Scenario
from planner.answer import SCHEMA_VERSION, Answer, CalibrationUsed, Ranked, Trials
from planner.launch_commands import launch_commands
from planner.traffic_answer import explanation, ranked_trial, refused, trials_of
from planner.traffic_plan import TrafficOptions, TrafficSearch, explore, load, simulate_candidates
from planner.traffic_trial import Traffic, Trial, resolved_warnings
from solvers.space import build_space, configuration_from
from solvers.status import Status

if TYPE_CHECKING:
    from planner.plan import Options

SHOWN = 12


def plan_traffic(scenario: Scenario, options: Options, started: float) -> Answer:
    """Rank named candidates under the traffic, or search the space that the scenario leaves open."""
    wanted = TrafficOptions(options.trials, options.requests, options.seed, options.progress)
    traffic = load(scenario, options.stored, wanted)
    if scenario.candidates is not None:
        ranked, trials, refusals = _candidates(traffic, scenario, wanted)
        space, solver, evaluated = len(scenario.candidates), "simulation of named candidates", len(scenario.candidates)
    else:
        ranked, trials = _searched(traffic, wanted)
        refusals, space, solver = {}, build_space(traffic.case).size, "Optuna over simulated traffic, seeded by the exact closed form"
        evaluated = trials.tried if trials else 0
    return _answer(traffic, ranked, trials, refusals, (space, solver, evaluated), started)


def _candidates(traffic: Traffic, scenario: Scenario, wanted: TrafficOptions) -> tuple[tuple[Ranked, ...], Trials | None, dict[str, str]]:
    case = traffic.case
    named = {label: configuration_from(case, given, f"candidates.{label}") for label, given in (scenario.candidates or {}).items()}
    found = simulate_candidates(traffic, named, wanted.seed)
    rows = [ranked_trial(traffic, label, named[label], t) for label, t in found.items() if isinstance(t, Trial)]
    refusals = {label: refused(case, label, named[label], t) for label, t in found.items() if isinstance(t, str)}
    return _ordered(traffic, rows), None, refusals


def _searched(traffic: Traffic, wanted: TrafficOptions) -> tuple[tuple[Ranked, ...], Trials]:
    search = explore(traffic, wanted)
    rows = [ranked_trial(traffic, str(i), one, trial) for i, (one, trial) in enumerate(_distinct(search), start=1)]
    return _ordered(traffic, rows), trials_of(search, wanted)


def _distinct(search: TrafficSearch) -> list[tuple[Configuration, Trial]]:
    """The best trials, each outcome once: sizes that the traffic never reaches change nothing."""
    seen: set[tuple[float, ...]] = set()
    kept = []
    for one, trial in search.best:
        mark = tuple(float(f"{value:.9g}") for value in (*trial.values.values(), trial.summary.overall.e2e.mean, trial.shortfall))
        if mark not in seen:
            seen.add(mark)
            kept.append((one, trial))
    return kept[:SHOWN]


def _ordered(traffic: Traffic, rows: list[Ranked]) -> tuple[Ranked, ...]:
    from planner.plan import order  # noqa: PLC0415

    return order(traffic.case, rows)


def _answer(
    traffic: Traffic, ranked: tuple[Ranked, ...], trials: Trials | None, refusals: dict[str, str], how: tuple[int, str, int], started: float
) -> Answer:  # fmt: skip
    from planner.plan import pareto_front  # noqa: PLC0415

    case = traffic.case
    space, solver, evaluated = how
    winner = ranked[0] if ranked and ranked[0].feasible and ranked[0].launchable[case.engine.name] is True else None
    warnings = resolved_warnings(traffic)
    note = f"simulated with {len(traffic.requests)} requests; the search proves nothing beyond what it tried"
    return Answer(
        schema_version=SCHEMA_VERSION, status=Status.FEASIBLE if winner else Status.INFEASIBLE, termination="trials done", solver=solver,
        objective=case.scenario.objectives[0], bound=None, gap=None, evaluated=evaluated, space=space,
        calibration=CalibrationUsed(name=case.calibration.name, version=case.calibration.version, requested=case.scenario.calibration),
        catalogue_version=catalogue_version(), engine=f"{case.engine.name} {case.engine.version}", warnings=(*warnings, note),
        configurations=ranked, pareto_front=pareto_front(ranked), explanation=explanation(traffic, ranked, refusals),
        launch=launch_commands(case, Configuration.model_validate(winner.settings)) if winner else {}, trials=trials,
        elapsed_s=round(time.perf_counter() - started, 4),
    )  # fmt: skip
