"""The use case for rates: a scenario whose requests arrive over time, ranked by simulation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from models.case import Case
from models.catalog.devices import catalogue_version
from models.describe.configuration import Configuration
from models.describe.scenario import Scenario
from models.errors import InputError
from planner.answer import SCHEMA_VERSION, Answer, CalibrationUsed, Relaxation, SwitchPoint, Trials
from planner.launch_commands import launch_commands
from planner.launchability import launchable
from planner.options import Options
from planner.ranking import pareto_front
from planner.rejections import left_out_notes
from planner.traffic.answer import Findings, explanation, notes_of, ranked_trial, refused, trials_of
from planner.traffic.decision import traffic_options
from planner.traffic.load import Traffic, load, resolved_warnings
from planner.traffic.probability import TOP, TOP_SEEDS, confidence, draws
from planner.traffic.relax import Tried, conflicts, deadline_relaxations, rate_relaxation, rate_switches
from planner.traffic.search import TrafficSearch, explore, simulate_candidates
from planner.traffic.ties import Contender, leading, ordered, screened
from planner.traffic.trial import Trial
from planner.weigh import Standing, standing
from solvers.executors import local_executor
from solvers.space import build_space, configuration_from
from solvers.status import Status

MOST_TRIALS = 100_000


@dataclass(frozen=True)
class _Ranking:
    """What was simulated, in order, and how it was found; ``undecided`` holds the labels that are tied with the first."""

    contenders: tuple[Contender, ...]
    undecided: tuple[str, ...]
    space: int
    solver: str
    evaluated: int
    refusals: dict[str, str]
    trials: Trials | None = None

    @property
    def tried(self) -> Tried:
        return [(one.label, one.configuration, one.trial) for one in self.contenders]


def plan_traffic(scenario: Scenario, options: Options, started: float) -> Answer:
    """Rank named candidates under the traffic, or search the space that the scenario leaves open."""
    if not 1 <= options.trials <= MOST_TRIALS:
        raise InputError(f"must be between 1 and {MOST_TRIALS}", path="--trials", value=options.trials)
    traffic = load(scenario, options)
    found = _candidates(traffic, scenario, options) if scenario.candidates is not None else _searched(traffic, scenario, options)
    ranked = tuple(ranked_trial(traffic, one, rank) for rank, one in enumerate(found.contenders, start=1))
    findings = _findings(traffic, scenario, found, options) if options.explain else Findings(found.refusals, found.undecided)
    sure = Standing(ranked)
    if options.launch:
        sure = standing(traffic.case, ranked, traffic_options(traffic, ranked, options), options.stored)
    return _answer(traffic, sure, found, findings, started)


def _candidates(traffic: Traffic, scenario: Scenario, options: Options) -> _Ranking:
    case, given = traffic.case, scenario.candidates or {}
    named = {label: configuration_from(case, values, f"candidates.{label}") for label, values in given.items()}
    found = simulate_candidates(traffic, named, options.seed)
    rows = [(label, named[label], trial) for label, trial in found.items() if isinstance(trial, Trial)]
    refusals = {label: refused(case, label, named[label], reason) for label, reason in found.items() if isinstance(reason, str)}
    contenders = ordered(case, _contenders(traffic, scenario, rows, options))
    return _Ranking(tuple(contenders), _undecided(case, contenders), len(named), "simulation of named candidates", len(named), refusals)


def _searched(traffic: Traffic, scenario: Scenario, options: Options) -> _Ranking:
    case, search = traffic.case, explore(traffic, options)
    rows = [(str(i), *pair) for i, pair in enumerate(screened(case, search.trials, search.seeded), start=1)]
    placed = ordered(case, _contenders(traffic, scenario, rows, options))
    contenders = tuple(replace(one, label=str(rank)) for rank, one in enumerate(placed, start=1))
    trials = trials_of(search, contenders, options)
    return _Ranking(contenders, _undecided(case, contenders), build_space(case).size, _solver(search), trials.tried, {}, trials)


def _solver(search: TrafficSearch) -> str:
    sampler = "TPE" if len(search.traffic.case.scenario.objectives) == 1 else "NSGA-II"
    return f"Optuna ({sampler}) over simulated traffic, seeded by the exact closed form"


def _contenders(traffic: Traffic, scenario: Scenario, rows: Tried, options: Options) -> list[Contender]:
    """Each with its probability and intervals from a slower engine, the first few from other draws of the traffic, too."""
    drawn = draws(traffic, scenario, options.requests, options.seed, TOP_SEEDS)

    def sure(numbered: tuple[int, tuple[str, Configuration, Trial]]) -> Contender:
        place, (label, one, trial) = numbered
        able = launchable(traffic.case, one)[traffic.case.engine.name] is True
        return Contender(label, one, trial, able, confidence(drawn if place < TOP else drawn[:1], one))

    with local_executor(options.workers) as executor:
        return list(executor.map(sure, enumerate(rows)))


def _undecided(case: Case, contenders: Sequence[Contender]) -> tuple[str, ...]:
    """Those that the simulation does not tell apart from the first, in their order."""
    able = [one for one in contenders if one.able and not one.trial.late]
    first = {one.label for one in leading(case, able)[0]} if able else set()
    return tuple(one.label for one in able[1:] if one.label in first)


def _findings(traffic: Traffic, scenario: Scenario, found: _Ranking, options: Options) -> Findings:
    """What turns the answer: relaxations where nothing is on time, switch points along the rate between named candidates."""
    relaxations: tuple[Relaxation, ...] = ()
    against: tuple[str, ...] = ()
    switches: tuple[SwitchPoint, ...] = ()
    tried = found.tried
    if scenario.candidates is not None:
        first = next((one.label for one in found.contenders if one.able and not one.trial.late), None)
        switches = rate_switches(traffic, scenario, {label: one for label, one, _ in tried}, options.seed, first)
    if tried and all(trial.late for _, _, trial in tried):
        against = conflicts(traffic, tried)
        again = lambda changed: _planned_again(changed, tried, options)  # noqa: E731 - one line with what it closes over
        relaxations = (*deadline_relaxations(scenario, tried, again), *rate_relaxation(traffic, scenario, tried, options.seed, again))
    return Findings(found.refusals, found.undecided, against, relaxations, switches)


def _planned_again(changed: Scenario, tried: Tried, options: Options) -> str | None:
    """Who is on time when the changed scenario is planned as this one was; None: nobody.

    A search stops at its first trial on time: its trials are those that a whole plan of the changed scenario would begin with.
    """
    traffic = load(changed, options)
    if changed.candidates is not None:
        found = simulate_candidates(traffic, {label: one for label, one, _ in tried}, options.seed)
        return next((label for label, trial in found.items() if isinstance(trial, Trial) and not trial.late), None)
    search = explore(traffic, replace(options, progress=None), first_feasible=True)
    fine = next((one for one, trial in search.trials if not trial.late), None)
    return None if fine is None else next((label for label, one, _ in tried if one == fine), "another configuration")


def _answer(traffic: Traffic, sure: Standing, found: _Ranking, findings: Findings, started: float) -> Answer:
    case, trials, ranked = traffic.case, found.trials, sure.ranked
    winner = ranked[0] if ranked and ranked[0].feasible and ranked[0].launchable[case.engine.name] is True else None
    left = left_out_notes(case) if trials is not None else ()
    interrupted = trials is not None and trials.interrupted
    return Answer(
        schema_version=SCHEMA_VERSION, status=Status.FEASIBLE if winner else Status.INFEASIBLE,
        termination="interrupted" if interrupted else "trials done", solver=found.solver,
        objective=case.scenario.objectives[0], bound=None, gap=None, evaluated=found.evaluated, space=found.space,
        calibration=CalibrationUsed(name=case.calibration.name, version=case.calibration.version, requested=case.scenario.calibration),
        catalogue_version=catalogue_version(), engine=f"{case.engine.name} {case.engine.version}",
        warnings=(*resolved_warnings(traffic), *sure.warnings, *notes_of(traffic, found.contenders, findings), *left),
        order_decided=sure.decided,
        configurations=ranked, pareto_front=pareto_front(ranked), explanation=explanation(traffic, ranked, found.contenders, findings),
        launch=launch_commands(case, Configuration.model_validate(winner.settings)) if winner else {}, trials=trials,
        elapsed_s=round(time.perf_counter() - started, 4),
    )  # fmt: skip
