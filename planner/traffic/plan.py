"""The use case for rates: a scenario whose requests arrive over time, ranked by simulation."""

from __future__ import annotations

import time
from collections.abc import Sequence

from models.catalog.devices import catalogue_version
from models.describe.configuration import Configuration
from models.describe.scenario import Scenario
from models.errors import InputError
from planner.answer import SCHEMA_VERSION, Answer, CalibrationUsed, Ranked, Relaxation, SwitchPoint, Trials
from planner.launch_commands import launch_commands
from planner.options import Options
from planner.ranking import order, pareto_front
from planner.traffic.answer import Findings, explanation, ranked_trial, refused, trials_of
from planner.traffic.load import Traffic, load, resolved_warnings
from planner.traffic.probability import TOP, TOP_SEEDS, confidence, draws
from planner.traffic.relax import Tried, conflicts, deadline_relaxations, rate_relaxation, rate_switches
from planner.traffic.search import TrafficSearch, explore, simulate_candidates
from planner.traffic.trial import Trial
from solvers.executors import local_executor
from solvers.space import build_space, configuration_from
from solvers.status import Status

SHOWN = 12
MOST_TRIALS = 100_000


def plan_traffic(scenario: Scenario, options: Options, started: float) -> Answer:
    """Rank named candidates under the traffic, or search the space that the scenario leaves open."""
    if not 1 <= options.trials <= MOST_TRIALS:
        raise InputError(f"must be between 1 and {MOST_TRIALS}", path="--trials", value=options.trials)
    traffic = load(scenario, options)
    trials, refusals = None, dict[str, str]()
    if scenario.candidates is not None:
        tried, refusals = _candidates(traffic, scenario, options)
        space, solver, evaluated = len(scenario.candidates), "simulation of named candidates", len(scenario.candidates)
    else:
        search = explore(traffic, options)
        tried, trials = [(str(i), *pair) for i, pair in enumerate(_distinct(search), start=1)], trials_of(search, options)
        space, solver = build_space(traffic.case).size, "Optuna over simulated traffic, seeded by the exact closed form"
        evaluated = trials.tried
    ranked = _ranked(traffic, scenario, tried, options)
    findings = _findings(traffic, scenario, tried, ranked, refusals, options) if options.explain else Findings(refusals)
    return _answer(traffic, ranked, trials, findings, (space, solver, evaluated), started)


def _candidates(traffic: Traffic, scenario: Scenario, options: Options) -> tuple[Tried, dict[str, str]]:
    case = traffic.case
    named = {label: configuration_from(case, given, f"candidates.{label}") for label, given in (scenario.candidates or {}).items()}
    found = simulate_candidates(traffic, named, options.seed)
    rows = [(label, named[label], trial) for label, trial in found.items() if isinstance(trial, Trial)]
    return rows, {label: refused(case, label, named[label], reason) for label, reason in found.items() if isinstance(reason, str)}


def _distinct(search: TrafficSearch) -> list[tuple[Configuration, Trial]]:
    """The best trials, each outcome once: sizes that the traffic never reaches change nothing. The Pareto front stays whole."""
    seen: set[tuple[float, ...]] = set()
    kept = []
    for one, trial in search.best:
        mark = tuple(float(f"{value:.9g}") for value in (*trial.values.values(), trial.summary.overall.e2e.mean, trial.shortfall))
        if mark not in seen:
            seen.add(mark)
            kept.append((one, trial))
    if len(search.traffic.case.scenario.objectives) == 1:
        return kept[:SHOWN]
    able = [trial for _, trial in kept if not trial.late]
    front = [pair for pair in kept if not pair[1].late and not any(_beats(other, pair[1]) for other in able)]
    return (front + [pair for pair in kept if pair not in front][: max(0, SHOWN - len(front))])[: 4 * SHOWN]


def _beats(other: Trial, one: Trial) -> bool:
    pairs = [(other.values[name], value) for name, value in one.values.items()]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def _ranked(traffic: Traffic, scenario: Scenario, tried: Tried, options: Options) -> tuple[Ranked, ...]:
    """Ordered as every plan is, each with its probability and intervals from other draws and a slower engine."""
    found = {label: (one, trial) for label, one, trial in tried}
    ordered = order(traffic.case, [ranked_trial(traffic, label, one, trial) for label, one, trial in tried])
    drawn = draws(traffic, scenario, options.requests, options.seed, TOP_SEEDS)

    def sure(one: Ranked) -> Ranked:
        known = confidence(drawn if one.rank <= TOP else drawn[:1], found[one.id][0])
        return one.model_copy(update={"slo_probability": known.probability, "intervals": known.intervals})

    with local_executor(options.workers) as executor:
        return tuple(executor.map(sure, ordered))


def _findings(
    traffic: Traffic, scenario: Scenario, tried: Tried, ranked: Sequence[Ranked], refusals: dict[str, str], options: Options
) -> Findings:  # fmt: skip
    """What turns the answer: relaxations where nothing is on time, switch points along the rate between named candidates."""
    relaxations: tuple[Relaxation, ...] = ()
    against: tuple[str, ...] = ()
    switches: tuple[SwitchPoint, ...] = ()
    if scenario.candidates is not None:
        switches = rate_switches(traffic, scenario, {label: one for label, one, _ in tried}, options.seed)
    if not any(one.feasible for one in ranked) and tried:
        place = {one.id: one.rank for one in ranked}
        closest = sorted(tried, key=lambda row: place[row[0]])
        against = conflicts(traffic, tried)
        relaxations = (*deadline_relaxations(closest), *rate_relaxation(traffic, scenario, closest, options.seed))
    return Findings(refusals, against, relaxations, switches)


def _answer(
    traffic: Traffic, ranked: tuple[Ranked, ...], trials: Trials | None, findings: Findings, how: tuple[int, str, int], started: float
) -> Answer:  # fmt: skip
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
        configurations=ranked, pareto_front=pareto_front(ranked), explanation=explanation(traffic, ranked, findings),
        launch=launch_commands(case, Configuration.model_validate(winner.settings)) if winner else {}, trials=trials,
        elapsed_s=round(time.perf_counter() - started, 4),
    )  # fmt: skip
