"""How sure the order of configurations is, and what a measurement would change: expected value of information.

Notation (log space; section 8.6)
    θ        logs of what is uncertain: step parameters, or one factor for each phase; prior N(0, Σ) around the calibration
    G_i      2 x |θ|: d log (prefill, decode seconds of configuration i) / dθ
    f        factors exp(G_i θ) of the two phases; v_i(θ) = good / (devices x (P_i f_p + D_i f_d)), 0 when a deadline breaks;
             over traffic the inverse objective of a simulation on an engine slower by f (``planner.traffic.decision``)
    a run    measures log phase times of one configuration with noise R: Σ' = Σ - ΣG'(GΣG' + R)⁻¹GΣ,
             its posterior mean is N(0, Σ - Σ'); value = E[max_i E[v_i | run]] - max_i E[v_i]  (never negative)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from models.case import Case
from models.describe.configuration import Configuration
from models.describe.scenario import Objective
from models.service import Limits
from planner.answer import Ranked
from solvers.constraints import Point
from solvers.grid import single
from solvers.objective import per_device

Floats = npt.NDArray[np.float64]
DRAWS = 2000
OUTER, INNER = 200, 200
DECIDED = 0.9
"""Probability from which the order of two configurations counts as decided."""
_SAME = 1e-3  # share below which two values count as equal: no measurement is that exact


class Option(Protocol):
    """One configuration under the load of ``case``, a burst, and what it is worth when its phases take other times."""

    @property
    def label(self) -> str: ...

    @property
    def case(self) -> Case: ...

    @property
    def configuration(self) -> Configuration: ...

    def value(self, logs: Floats, /) -> Floats:
        """v of ``logs`` [..., 2], the logs of the phases' factors."""
        ...

    @property
    def mark(self) -> tuple[float, ...]:
        """Equal for configurations that differ in nothing that matters."""
        ...


@dataclass(frozen=True)
class Choice:
    """A configuration in closed form: seconds of its phases and of its deadlines' metrics, and what they are worth."""

    label: str
    case: Case
    configuration: Configuration
    prefill_s: float
    decode_s: float
    metrics: dict[str, float]  # e2e, ttft, itl, tpot: seconds at the calibration
    limits: dict[str, float]
    queued: bool  # several waves: the last first token waits for whole waves
    worth: float  # good requests, for each device where the objective charges devices; 1 for latency

    def value(self, logs: Floats) -> Floats:
        """v of ``logs`` [..., 2], the logs of the phases' factors."""
        prefill, decode = np.exp(logs[..., 0]), np.exp(logs[..., 1])
        total = self.prefill_s * prefill + self.decode_s * decode
        whole = total / (self.prefill_s + self.decode_s)
        factors = {"e2e": whole, "ttft": whole if self.queued else prefill, "itl": decode, "tpot": decode}
        kept = np.ones(total.shape, dtype=np.bool_)
        for name, limit in self.limits.items():
            kept &= self.metrics[name] * factors[name] <= limit
        return np.where(kept, self.worth / total, 0.0)

    @property
    def mark(self) -> tuple[float, ...]:
        """Token budgets that change nothing are one."""
        return round(self.prefill_s, 5), round(self.decode_s, 5), self.worth


def evaluated(case: Case, configuration: Configuration) -> Point:
    """One configuration in closed form."""
    grid, _ = single(case, configuration)
    return grid.point(grid.columns, grid.b, grid.a, grid.c, grid.o)


def phase_seconds(at: Point) -> tuple[float, float]:
    """Seconds of all prefill and of all decode until the last answer."""
    t, full = at.outcome.times, int(at.outcome.waves.full.flat[0])
    prefill, decode, prefix, last_prefill, last_decode = (
        int(np.asarray(x).flat[0]) * 1e-6 for x in (t.prefill_full, t.decode_full, t.prefix, t.prefill_last, t.decode_last)
    )
    return prefix + full * prefill + last_prefill, full * decode + last_decode


def choices(case: Case, ranked: Sequence[Ranked]) -> list[Choice]:
    """The configurations that the engine can run and that break nothing but deadlines, in their order."""
    able = [
        one for one in ranked if one.launchable.get(case.engine.name) is True and all(v.unit == "s" for v in one.violations)
    ]  # fmt: skip
    return [_choice(case, one.id, Configuration.model_validate(one.settings)) for one in able]


def _choice(case: Case, label: str, configuration: Configuration) -> Choice:
    at = evaluated(case, configuration)
    outcome, limits = at.outcome, Limits.of(case.request.slo, case.requests)
    prefill, decode = phase_seconds(at)
    names = case.request.slo.deadlines()
    metrics = {n: int(np.asarray(getattr(outcome, f"{n}_us")).flat[0]) * 1e-6 for n in names}
    bounds = {n: getattr(limits, f"{n}_us") * 1e-6 for n in names}
    served = float(np.asarray(outcome.waves.admitted).flat[0]) * float(np.asarray(at.k.probability_correct).flat[0])
    kept = all(metrics[n] <= bounds[n] for n in names)
    worth = float(np.asarray(outcome.good).flat[0]) if kept else served
    objective = case.scenario.objectives[0]
    worth = 1.0 if objective is Objective.LATENCY else worth / (configuration.tensor_parallel if per_device(objective) else 1)
    queued = int(outcome.waves.full.flat[0]) > 0
    return Choice(label, case, configuration, max(prefill, 1e-9), max(decode, 1e-9), metrics, bounds, queued, worth)


def best_chances(values: Floats) -> Floats:
    """P(best) of each column of ``values`` [draws, choices]; ties go to the earlier one, draws without any worth to none."""
    top = values.max(axis=1, keepdims=True)
    first = np.argmax(values >= top * (1 - _SAME), axis=1)
    counted = np.bincount(first[top[:, 0] > 0], minlength=values.shape[1])
    return np.asarray(counted / len(values), dtype=np.float64)


@dataclass(frozen=True)
class Belief:
    """Σ over θ and, for each configuration asked about, its G; ``noise_sd`` of one run's log time."""

    covariance: Floats
    noise_sd: float


def _root(covariance: Floats) -> Floats:
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return np.asarray(vectors * np.sqrt(np.clip(values, 0.0, None)), dtype=np.float64)


def after(belief: Belief, rows: Floats) -> Floats:
    """Σ' once ``rows`` [measurements, θ] were measured."""
    sigma = belief.covariance
    gain = sigma @ rows.T @ np.linalg.inv(rows @ sigma @ rows.T + belief.noise_sd**2 * np.eye(len(rows)))
    return np.asarray(sigma - gain @ rows @ sigma, dtype=np.float64)


def value_of(options: Sequence[Option], slopes: Sequence[Floats], belief: Belief, rows: Floats, seed: int = 0) -> float:
    """Expected gain of deciding after ``rows`` were measured, as a share of what the best choice is expected to be worth now."""
    rng = np.random.default_rng(seed)
    rest = after(belief, rows)
    size = len(belief.covariance)
    means = rng.standard_normal((OUTER, size)) @ _root(belief.covariance - rest).T
    inner = rng.standard_normal((INNER, size)) @ _root(rest).T
    draws = means[:, None, :] + inner[None, :, :]
    expected = np.stack([one.value(draws @ g.T).mean(axis=1) for one, g in zip(options, slopes, strict=True)], axis=1)
    now = float(expected.mean(axis=0).max())
    return (float(expected.max(axis=1).mean()) - now) / now if now > 0 else 0.0


@dataclass(frozen=True)
class Order:
    """``chances``: P(best) of each option; ``rival``: the first whose order with the first option is open, else the second, with
    ``probability`` that the first is no worse (None: nothing to compare); ``gain``: expected, of knowing θ exactly, as a share.
    """

    chances: Floats
    rival: int
    probability: float | None
    gain: float

    @property
    def decided(self) -> bool:
        """Whether the data decide the order of the first and every other."""
        return self.probability is None or self.probability >= DECIDED


def order_of(options: Sequence[Option], slopes: Sequence[Floats], belief: Belief, seed: int = 0) -> Order:
    """How sure the first option's place is, over draws of θ."""
    draws = np.random.default_rng(seed).standard_normal((DRAWS, len(belief.covariance))) @ _root(belief.covariance).T
    values = np.stack([one.value(draws @ g.T) for one, g in zip(options, slopes, strict=True)], axis=1)
    now = float(values.mean(axis=0).max())
    gain = (float(values.max(axis=1).mean()) - now) / now if now > 0 else 0.0
    no_worse = np.mean(values[:, :1] >= values * (1 - _SAME), axis=0)
    rival = next((i for i, p in enumerate(no_worse) if p < DECIDED), 1)
    return Order(best_chances(values), rival, float(no_worse[rival]) if len(options) > 1 else None, gain)
