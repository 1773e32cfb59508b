"""Fit on some rows, predict the others: the loop that every small measured set shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from models.calibration.additive import AdditiveModel, Floats, Ints, Kernel, Table, interval_scale

QUANTILE = 1.6448536269514722
_ENOUGH = 20  # left-out rows that a learned interval width needs


@dataclass(frozen=True)
class Case:
    """One quantity of one measured set: terms in the quantity's unit with the specification's coefficients."""

    name: str
    terms: Sequence[Mapping[str, float]]
    spec: Mapping[str, float]
    measured: Floats
    features: Floats
    labels: Mapping[str, Sequence[str]]
    wide: Mapping[str, float]  # width of a term's prior, 1 where absent


@dataclass(frozen=True)
class Score:
    """Errors of held-out rows over all repetitions, as fractions."""

    name: str
    median: float
    mean: float
    worst: float
    covered: float
    rows: int


def model_of(case: Case, *, smooth_sd: float = 0.1, noise_sd: float = 0.02, label_sd: float = 0.15) -> AdditiveModel:
    """Prior of one machine: coefficients free by a factor of about 1.6, smooth departures of ``smooth_sd``."""
    names = tuple(case.spec)
    table = Table(
        names, np.array([[t[n] for n in names] for t in case.terms]), np.array([case.spec[n] for n in names]), case.features, case.labels
    )
    kernel = Kernel(
        width=tuple(case.wide.get(n, 1.0) for n in names), shared_sd=0.5, term_sd=dict.fromkeys(case.labels, label_sd),
        offset_sd=dict.fromkeys(case.labels, 0.05), smooth_sd={"all": smooth_sd, **dict.fromkeys(case.labels, smooth_sd / 2)},
        lengths=(1.5,) * case.features.shape[1], noise_sd=noise_sd,
    )  # fmt: skip
    return AdditiveModel(table, kernel)


def score(case: Case, split: Callable[[np.random.Generator], Ints], seeds: int, **widths: float) -> Score:
    """Repeat ``seeds`` times: calibrate on the rows that ``split`` draws, predict all others."""
    model, log_measured = model_of(case, **widths), np.log(case.measured)
    errors: list[Floats] = []
    inside: list[Floats] = []
    for seed in range(seeds):
        train = split(np.random.default_rng(seed))
        test = np.setdiff1d(np.arange(len(log_measured)), train)
        fit = model.fit(log_measured, train, passes=6)
        alone = model.held_out(fit, [np.array([i], dtype=np.intp) for i in range(len(train))])
        scale = interval_scale([e / sd for e, sd in alone], 0.9, QUANTILE) if len(train) >= _ENOUGH else 1.0
        answer = model.predict(fit, test)
        errors.append(np.abs(np.exp(answer.log_mean - log_measured[test]) - 1.0))
        inside.append(np.abs(answer.log_mean - log_measured[test]) <= QUANTILE * scale * answer.log_sd)
    e = np.concatenate(errors)
    return Score(case.name, float(np.median(e)), float(e.mean()), float(e.max()), float(np.concatenate(inside).mean()), len(e))


def per_group(labels: Sequence[str], count: int) -> Callable[[np.random.Generator], Ints]:
    """A split that draws ``count`` rows of each label."""
    groups = {g: np.flatnonzero(np.asarray(labels) == g) for g in sorted(set(labels))}
    return lambda rng: np.concatenate([rng.permutation(rows)[:count] for rows in groups.values()])


def head() -> str:
    """Header of the table that ``line`` prints."""
    return f"{'quantity':44}{'held out':>9}{'median':>9}{'mean':>9}{'worst':>9}{'in 90 %':>9}"


def line(s: Score) -> str:
    """One line of the table."""
    return f"{s.name:44}{s.rows:9d}{s.median:9.1%}{s.mean:9.1%}{s.worst:9.1%}{s.covered:9.0%}"
