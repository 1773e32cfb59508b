"""Fit of the physical step model: robust, in log space, with the specification as prior, so that five runs suffice and none still answer.

Minimises  sum_i rho((log t_i - log T(x_i; p)) / sigma)^2  +  sum_j ((p_j - m_j) / s_j)^2   over the logs p of the parameters,
rho = soft L1 (scipy's ``soft_l1``), bounded where physics ends, so that no fitted step can beat max(F / P, D / B).
sigma: robust spread of the residuals, pooled with the prior's; re-estimated in a few rounds. Covariance: inverse of J'J at the optimum
(Gauss-Newton, loss-scaled); ``bootstrap`` checks it by refitting resampled runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import OptimizeResult, least_squares
from threadpoolctl import threadpool_limits

from models.calibration.evidence import Evidence
from models.calibration.posterior import Posterior, gradient, parametrised
from models.calibration.prior import Prior
from models.errors import CalibrationError
from models.kernels.step import StepModel

Floats = npt.NDArray[np.float64]
_MAD = 1.4826  # normal standard deviation over median absolute deviation
_FAR = 4.0  # robust standard deviations beyond which a run is named as an outlier
_CLOSE = 0.98  # measured / floor below which a run cannot be what it says (clock and rounding allowed for)
_ROUNDS = 4
_STILL = 0.1  # prior widths: a round that moves no parameter farther has settled
_LEAST_NOISE = 2e-3


def refuse_below_floor(evidence: Evidence, template: StepModel) -> None:
    """Runs that beat max(F / P, D / B) of their device: the calibration they lead to would break physics, so it is refused."""
    if not len(evidence):
        return
    ratio = np.exp(evidence.measured - evidence.floor(template))
    bad = np.flatnonzero(ratio < _CLOSE)
    if not len(bad):
        return
    worst = int(bad[np.argmin(ratio[bad])])
    times = 1 / float(ratio[worst])
    hint = "milliseconds given as seconds, or the other way round" if times > 50 else "wrong device, precision, parallelism or model"
    raise CalibrationError(
        f"{len(bad)} of {len(ratio)} runs are faster than the device can be; {evidence.names[worst]} beats the floor {times:.3g} times",
        path=evidence.names[worst], way_out=f"likely {hint}; remove the run or correct its description",
    )  # fmt: skip


def _loss(rows: int) -> Any:
    """Soft L1 for the ``rows`` measurements, squares for the prior: rho and its two derivatives of z = residual^2."""

    def rho(z: Floats) -> Floats:
        out = np.stack([z, np.ones_like(z), np.zeros_like(z)])
        root = np.sqrt(1.0 + z[:rows])
        out[0, :rows], out[1, :rows], out[2, :rows] = 2.0 * (root - 1.0), 1.0 / root, -0.5 / root**3
        return out

    return rho


def _solve(evidence: Evidence, template: StepModel, prior: Prior, start: Floats, sigma: float) -> OptimizeResult:
    mean, sd, weights = np.array(prior.mean), np.array(prior.sd), evidence.weights / sigma

    def residuals(p: Floats) -> Floats:
        data = (evidence.measured - evidence.predict(parametrised(template, prior.names, p))) * weights
        return np.concatenate([data, (p - mean) / sd])

    def jacobian(p: Floats) -> Floats:
        return np.vstack([-gradient(evidence, template, prior.names, p) * weights[:, None], np.diag(1 / sd)])

    most = np.array(prior.most)
    with threadpool_limits(1, "blas"):  # threads wait for each other a hundred times as long as so narrow a matrix takes
        return least_squares(
            residuals, np.minimum(start, most - 1e-6), jacobian, bounds=(np.full_like(mean, -np.inf), most), loss=_loss(len(evidence)),
            x_scale=sd, max_nfev=200,
        )  # fmt: skip


def _noise(residuals: Floats, prior: Prior) -> float:
    """Robust spread of the residuals with the degrees of freedom that the parameters took, pooled with the prior's."""
    freedom = max(len(residuals) - len(prior.names) / 2, len(residuals) / 2)
    spread = _MAD * float(np.median(np.abs(residuals))) if len(residuals) else 0.0
    variance = spread**2 * len(residuals) / freedom if len(residuals) else 0.0
    pooled = (freedom * variance + prior.noise_weight * prior.noise_sd**2) / (freedom + prior.noise_weight)
    return max(float(np.sqrt(pooled)), _LEAST_NOISE)


def fit_steps(evidence: Evidence, template: StepModel, prior: Prior) -> Posterior:
    """Posterior of ``prior.names``; what ``template`` says of the device and the model's work stays. No run: the prior."""
    if not len(evidence):
        mean = np.array(prior.mean)
        return Posterior(prior.names, mean, np.diag(np.square(prior.sd)), np.array(prior.most), prior.noise_sd, np.array([]), (), 0)
    if not np.isfinite(evidence.measured).all():
        raise CalibrationError("a measurement is not a positive, finite number")
    refuse_below_floor(evidence, template)
    start, sigma = np.array(prior.mean), prior.noise_sd
    for _ in range(_ROUNDS):
        near = evidence.at(parametrised(template, prior.names, start))
        answer = _solve(near, template, prior, start, sigma)
        moved, start = float(np.max(np.abs(answer.x - start) / np.array(prior.sd))), answer.x
        residual = near.measured - near.predict(parametrised(template, prior.names, start))
        previous, sigma = sigma, _noise(residual * near.weights, prior)
        if abs(sigma / previous - 1) < 0.02 and (evidence.refine is None or moved < _STILL):
            break
    information = answer.jac.T @ answer.jac
    if not np.isfinite(information).all() or np.linalg.cond(information) > 1e14:
        raise CalibrationError("the runs do not determine the parameters", value=prior.names, way_out="add runs of other sizes")
    far = np.abs(residual) * near.weights > _FAR * sigma
    outliers = tuple(n for n, out in zip(evidence.names, far, strict=True) if out)
    covariance = np.linalg.inv(information)
    return Posterior(prior.names, start, covariance, np.array(prior.most), sigma, residual, outliers, len(evidence))


def bootstrap(evidence: Evidence, template: StepModel, prior: Prior, target: Evidence, draws: int, seed: int) -> tuple[Floats, Posterior]:
    """Standard deviation of the log predictions of ``target`` over refits on resampled measurements, and the fit on all of them.

    Compared with the spread that the covariance gives, it checks the linearisation.
    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(draws):
        chosen = evidence.choose(rng.integers(0, len(evidence), len(evidence)))
        found.append(target.predict(fit_steps(chosen, template, prior).step_model(template)))
    return np.std(np.array(found), axis=0), fit_steps(evidence, template, prior)
