"""The only door to Optuna: a seeded search over mixed variables, in batches, with constraints and early stopping.

Batches have a fixed size whatever the number of workers, are asked together and told in order, so the same seed gives the same answer
on one core and on many. Seeds (the exact solver's best configurations) are the first trials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import Trial, TrialState

BATCH = 4
VIOLATION = "violation"


@dataclass(frozen=True)
class Range:
    """Integers low, low + step, … up to high; ``log`` where ratios matter more than differences."""

    low: int
    high: int
    step: int = 1
    log: bool = False

    def nearest(self, value: float) -> int:
        """The range's integer nearest to ``value``."""
        steps = round((min(max(value, self.low), self.high) - self.low) / self.step)
        return self.low + min(steps, (self.high - self.low) // self.step) * self.step


Domain = Range | tuple[Any, ...]
Choice = dict[str, Any]


@dataclass(frozen=True)
class TrialOutcome:
    """Objective values to minimise; ``violation`` 0 when every deadline holds, else how much is missing; ``pruned`` early.

    A pruned trial's violation still tells the sampler how far off it was.
    """

    values: tuple[float, ...]
    violation: float
    pruned: bool = False


@dataclass(frozen=True)
class SearchResult:
    """Feasible trials that no other beats (one for a single objective), and the best value so far after each trial."""

    front: tuple[tuple[Choice, TrialOutcome], ...]
    history: tuple[tuple[int, float], ...]
    tried: int
    pruned: int
    interrupted: bool = False


Progress = Callable[[int, int, float | None], None]
"""Called with (done, of, best value so far)."""


def search(
    domains: Mapping[str, Domain],
    evaluate: Callable[[Choice], TrialOutcome],
    *,
    seeds: Sequence[Choice] = (),
    trials: int,
    seed: int,
    executor: Executor,
    objectives: int = 1,
    progress: Progress | None = None,
    first_feasible: bool = False,
) -> SearchResult:
    """Minimise ``evaluate`` over ``domains``; a choice that was tried before is not simulated again.

    An interruption by the keyboard ends the search with the best so far. ``first_feasible`` ends it after the batch in which a trial
    without violation turns up: the trials until then are those of the whole search.
    """
    study = _study(seed, objectives)
    for first in seeds:
        study.enqueue_trial(_encoded(domains, first), skip_if_exists=True)
    known: dict[tuple[tuple[str, Any], ...], TrialOutcome] = {}
    ledger = _Ledger()
    interrupted = False
    try:
        while ledger.told < trials and not (first_feasible and ledger.front):
            asked = [study.ask(_distributions(domains)) for _ in range(min(BATCH, trials - ledger.told))]
            choices = [_decoded(domains, trial) for trial in asked]
            fresh = {_key(c): c for c in choices if _key(c) not in known}
            known.update(zip(fresh, executor.map(evaluate, fresh.values()), strict=True))
            for trial, choice in zip(asked, choices, strict=True):
                _tell(study, trial, known[_key(choice)])
                ledger.add(choice, known[_key(choice)])
            if progress is not None:
                progress(ledger.told, trials, ledger.best)
    except KeyboardInterrupt:
        interrupted = True
    return SearchResult(tuple(ledger.front), tuple(ledger.history), ledger.told, ledger.pruned, interrupted)


class _Ledger:
    """Best so far and the undominated feasible trials, in the order they were told."""

    def __init__(self) -> None:
        self.told = 0
        self.front: list[tuple[Choice, TrialOutcome]] = []
        self.history: list[tuple[int, float]] = []
        self.best: float | None = None
        self.pruned = 0

    def add(self, choice: Choice, outcome: TrialOutcome) -> None:
        number = self.told
        self.told += 1
        self.pruned += outcome.pruned
        if outcome.pruned or outcome.violation > 0:
            return
        if self.best is None or outcome.values[0] < self.best:
            self.best = outcome.values[0]
            self.history.append((number, self.best))
        if any(_not_worse(other.values, outcome.values) for _, other in self.front):
            return
        self.front = [(c, o) for c, o in self.front if not _not_worse(outcome.values, o.values)]
        self.front.append((choice, outcome))


def _not_worse(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


def _study(seed: int, objectives: int) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler: optuna.samplers.BaseSampler
    if objectives == 1:
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=16, constant_liar=True)
    else:
        sampler = optuna.samplers.NSGAIISampler(seed=seed, population_size=24)
    return optuna.create_study(directions=["minimize"] * objectives, sampler=sampler)


def _tell(study: optuna.Study, trial: Trial, outcome: TrialOutcome) -> None:
    trial.set_constraint(VIOLATION, outcome.violation)
    if outcome.pruned:
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, list(outcome.values))


def _distributions(domains: Mapping[str, Domain]) -> dict[str, BaseDistribution]:
    """Categories are told to Optuna by their position, since it takes only plain values.

    A range is told as the interval that rounds to it: over integers, TPE would integrate each of its densities around each candidate,
    which takes far longer than simulating them.
    """
    found: dict[str, BaseDistribution] = {}
    for name, domain in domains.items():
        if isinstance(domain, Range):
            half = 0.5 * domain.step
            found[name] = FloatDistribution(domain.low - half, domain.high + half, log=domain.log and domain.low > half)
        else:
            found[name] = CategoricalDistribution(list(range(len(domain))))
    return found


def _encoded(domains: Mapping[str, Domain], choice: Choice) -> dict[str, int]:
    found = {}
    for name, domain in domains.items():
        if isinstance(domain, Range):
            found[name] = domain.nearest(choice[name])
        else:
            found[name] = domain.index(choice[name])
    return found


def _decoded(domains: Mapping[str, Domain], trial: Trial) -> Choice:
    return {n: d.nearest(trial.params[n]) if isinstance(d, Range) else d[trial.params[n]] for n, d in domains.items()}


def _key(choice: Choice) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(choice.items(), key=lambda item: item[0]))
