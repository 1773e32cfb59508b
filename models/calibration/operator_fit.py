"""Scales of a profile's step model from the first requests of a served run, through the simulator.

A request is seen by three quantities: first token, mean gap, whole answer. Those of one run move together (one queue), so each quantity
counts as one observation of 2 %. The profile is the prior: what one row costs within 5 %, what further rows add within 10 %, a step's
constant 0 within 0.5 ms, the link's formula within a factor e^0.5; without it, one run would not tell reads and constant apart.

A simulated queue answers in jumps, which a gradient stumbles over: the posterior mean is found by population Monte Carlo (Cappe, Guillin,
Marin and Robert 2004) from a Sobol sequence. Each round draws from the normal that the round before found, with the likelihood raised to
the largest power (at most 1) that leaves an eighth of the draws effective. Same arguments, same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import norm, qmc

from models.calibration.operators import Scales
from models.errors import CalibrationError
from models.simulation_types import Floats, Integers

PRIOR = {"reads": 0.05, "compute": 0.10, "link": 0.5}  # standard deviations of the logs
STEP_SD = 5e-4  # s
ERROR = 0.02  # relative, of each quantity
_SOFT = 0.05  # of a quantity's median: a short wait is not judged by its relative error
_DRAWS, _ROUNDS = 128, 4


@dataclass(frozen=True)
class Served:
    """Requests of a run in order of arrival: seconds from the first arrival, tokens; ``first`` and ``last`` token."""

    arrival: Floats
    output: Integers
    first: Floats
    last: Floats

    def quantities(self, first: Floats, last: Floats, chosen: npt.NDArray[np.intp]) -> dict[str, Floats]:
        """Seconds to the first token, between tokens (requests of two tokens or more) and to the last one."""
        arrival, first, last, gaps = self.arrival[chosen], first[chosen], last[chosen], self.output[chosen] - 1
        return {"ttft": first - arrival, "tpot": (last - first)[gaps > 0] / gaps[gaps > 0], "e2e": last - arrival}

    def measured(self, chosen: npt.NDArray[np.intp]) -> dict[str, Floats]:
        """The quantities as measured."""
        return self.quantities(self.first, self.last, chosen)


def fit_scales(served: Served, simulate: Callable[[Scales], tuple[Floats, Floats]], count: int, *, linked: bool = False) -> Scales:
    """Posterior mean of the scales given the first ``count`` requests; ``simulate`` answers first and last token of every request.

    ``linked``: whether several ranks exchange data, so that the link has a scale of its own.
    """
    if not 1 <= count <= len(served.arrival):
        raise CalibrationError("no such number of requests", value=count, way_out=f"the run has {len(served.arrival)}")
    chosen = np.arange(count)
    real = {name: values for name, values in served.measured(chosen).items() if len(values)}
    weight = {name: (values + _SOFT * float(np.median(values))) * ERROR * np.sqrt(len(values)) for name, values in real.items()}
    names = [name for name in PRIOR if linked or name != "link"]

    def scales_of(p: Floats) -> Scales:
        logs = p[:-1] * [PRIOR[name] for name in names]
        return Scales(**dict(zip(names, np.exp(logs).tolist(), strict=True)), step_s=float(p[-1]) * STEP_SD)

    def log_likelihood(p: Floats) -> float:
        ours = served.quantities(*simulate(scales_of(p)), chosen)
        return -0.5 * sum(float(np.sum(((ours[name] - real[name]) / weight[name]) ** 2)) for name in real)

    return scales_of(posterior_mean(log_likelihood, len(names) + 1))


def posterior_mean(log_likelihood: Callable[[Floats], float], size: int) -> Floats:
    """Mean of ``size`` parameters whose prior is standard normal."""
    mean, factor = np.zeros(size), np.eye(size)
    sequence = qmc.Sobol(size, rng=0)
    for _ in range(_ROUNDS):
        z = norm.ppf(np.clip(sequence.random(_DRAWS), 1e-6, 1.0 - 1e-6))
        draws = mean + z @ factor.T
        likelihood = np.array([log_likelihood(p) for p in draws])
        proposal = -0.5 * np.sum(z**2, axis=1) - float(np.log(np.diag(factor)).sum())
        prior = -0.5 * np.sum(draws**2, axis=1) - proposal
        power = _power(likelihood, prior)
        weights = np.exp(power * likelihood + prior - logsumexp(power * likelihood + prior))
        mean = weights @ draws
        spread = (draws - mean).T @ ((draws - mean) * weights[:, None])
        factor = np.linalg.cholesky(spread + 1e-4 * np.eye(size))
    return mean


def _power(likelihood: Floats, prior: Floats) -> float:
    """The largest power of the likelihood, at most 1, at which an eighth of the draws count."""

    def excess(power: float) -> float:
        logs = power * likelihood + prior
        return float(2.0 * logsumexp(logs) - logsumexp(2.0 * logs) - np.log(len(logs) / 8.0))

    if excess(1.0) >= 0.0:
        return 1.0
    return float(brentq(excess, 0.0, 1.0)) if excess(0.0) > 0.0 else 0.0
