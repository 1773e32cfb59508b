"""Hierarchical fit of a positive measurement as a sum of physical terms, in log space: few runs suffice, zero runs still answer.

Notation
    t_ij    physical term j of row i, in the unit of the measurement (seconds), i < N, j < J; 0 where a term does not apply
    y_i     log of the measurement
    theta_j log of the coefficient that the specification suggests (an efficiency's inverse, microseconds a layer, ...)
    u_ij    departure of row i's coefficient: common part + one part for each label of the row (engine, device, model, group, ...)
    f_i     smooth departure from the sum: offsets by label, and a Gaussian process over features x_i within a label
    y_i = log sum_j exp(theta_j + u_ij) t_ij + f_i + e_i,   e_i ~ Student-t (as soft-L1: outliers lose weight)

Priors  u common ~ N(0, (width_j shared_sd)^2); by label L ~ N(0, (width_j term_sd[L])^2);
        f by label L: offset_sd[L]^2 + smooth_sd[L]^2 exp(-|x - x'|^2 / 2 l^2)
        (Rasmussen and Williams 2006, eq. 2.25-2.26 and section 2.7 for explicit basis functions).
The log-sum is linearised at the current u (Gauss-Newton); its gradient are the shares s_ij = exp(..) t_ij / sum, so each pass is one
linear Gaussian problem with covariance  sum_L [same label] (term_sd_L^2 S diag(width^2) S' + offset + smooth) + noise.
A row whose label was never seen borrows from the wider labels and from the common part: a new model on a known device borrows from
the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from models.errors import CalibrationError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
_TINY = 1e-12
_JITTER = 1e-8
_STUDENT = 4.0  # degrees of freedom of the error: between soft-L1 and Gaussian
_FURTHEST = 4.0  # |u| is kept below: a coefficient moves at most e^4 from its specification


@dataclass(frozen=True)
class Kernel:
    """Prior standard deviations in log space, by label name; ``lengths`` one for each feature, ``width`` a factor for each term.

    A term that the way of measuring switches on or off (bursts, a client more than slots) has a ``width`` above 1.
    """

    width: tuple[float, ...]
    shared_sd: float
    term_sd: Mapping[str, float]
    offset_sd: Mapping[str, float]
    smooth_sd: Mapping[str, float]
    lengths: tuple[float, ...]
    noise_sd: float


@dataclass(frozen=True)
class Table:
    """Rows to fit and to predict: ``terms`` N x J seconds, ``features`` N x D, ``labels`` name -> N strings, ``spec`` J coefficients."""

    names: tuple[str, ...]
    terms: Floats
    spec: Floats
    features: Floats
    labels: Mapping[str, Sequence[str]]

    def __post_init__(self) -> None:
        rows = len(self.terms)
        if self.terms.shape != (rows, len(self.names)) or self.spec.shape != (len(self.names),) or len(self.features) != rows:
            raise CalibrationError("terms, coefficients and features do not fit together", value=(self.terms.shape, self.features.shape))
        if not (np.isfinite(self.terms).all() and (self.terms >= 0).all() and (self.terms.sum(axis=1) > 0).all()):
            raise CalibrationError("every row needs finite, non-negative terms, at least one positive")
        if not np.isfinite(self.features).all() or any(len(v) != rows for v in self.labels.values()):
            raise CalibrationError("features must be finite and labels as many as rows")


@dataclass(frozen=True)
class Fit:
    """A fit on ``rows``: where it was linearised and the weights of its rows. Built by ``AdditiveModel.fit``."""

    rows: Ints
    departure: Floats  # u, N x J
    shares: Floats  # N x J
    level: Floats  # log of the sum at u, N
    alpha: Floats  # K^-1 (y - mean), of the fitted rows
    factor: tuple[Floats, bool]  # Cholesky factor of K
    inflation: Floats  # noise variance of each fitted row over the kernel's: 1 for good rows, large for outliers


@dataclass(frozen=True)
class Prediction:
    """Log of the predicted value and the standard deviation of the log, noise included."""

    log_mean: Floats
    log_sd: Floats


class AdditiveModel:
    """One table, one kernel: the covariances that do not depend on the linearisation are computed once."""

    def __init__(self, table: Table, kernel: Kernel) -> None:
        self.table, self.kernel = table, kernel
        self._width = np.asarray(kernel.width)
        if self._width.shape != table.spec.shape:
            raise CalibrationError("the kernel needs one width for each term", value=len(kernel.width))
        unknown = {n for part in (kernel.term_sd, kernel.offset_sd, kernel.smooth_sd) for n in part} - set(table.labels) - {"all"}
        if unknown or len(kernel.lengths) != table.features.shape[1]:
            raise CalibrationError("the kernel names labels or features that the table lacks", value=sorted(unknown))
        rows = len(table.terms)
        self._codes: dict[str, Ints] = {
            name: np.unique(np.asarray(values, dtype=str), return_inverse=True)[1] for name, values in table.labels.items()
        } | {"all": np.zeros(rows, dtype=np.intp)}
        self._log_terms = np.log(np.maximum(table.terms, _TINY)) + np.log(table.spec)
        self._smooth = self._smooth_covariance()
        self._same = self._labelled(kernel.term_sd)

    def _labelled(self, variances: Mapping[str, float]) -> Floats:
        rows = len(self.table.terms)
        found = np.zeros((rows, rows))
        for name, sd in variances.items():
            code = self._codes[name]
            found += sd**2 * (code[:, None] == code[None, :])
        return found

    def _smooth_covariance(self) -> Floats:
        x = self.table.features / np.asarray(self.kernel.lengths)
        square: Floats = (x**2).sum(axis=1)
        distance = np.maximum(square[:, None] + square[None, :] - 2.0 * x @ x.T, 0.0)
        smooth: Floats = self._labelled(self.kernel.smooth_sd) * np.exp(-0.5 * distance)
        return self._labelled(self.kernel.offset_sd) + smooth

    def _covariance(self, shares: Floats, i: Ints, j: Ints) -> Floats:
        common = (shares[i] * self._width**2) @ shares[j].T
        both = np.ix_(i, j)
        out: Floats = self._smooth[both] + (self._same[both] + self.kernel.shared_sd**2) * common
        return out

    def _level(self, departure: Floats) -> tuple[Floats, Floats]:
        z = self._log_terms + departure
        top = z.max(axis=1)
        part = np.exp(z - top[:, None])
        total = part.sum(axis=1)
        return top + np.log(total), part / total[:, None]

    def _move(self, fit: Fit) -> Floats:
        """Posterior mean of u for every row of the table."""
        weighted = fit.shares[fit.rows] * self._width**2 * fit.alpha[:, None]
        found = np.tile(self.kernel.shared_sd**2 * weighted.sum(axis=0), (len(self.table.terms), 1))
        for name, sd in self.kernel.term_sd.items():
            code = self._codes[name]
            total = np.zeros((code.max() + 1, weighted.shape[1]))
            np.add.at(total, code[fit.rows], weighted)
            found += sd**2 * total[code]
        kept: Floats = np.clip(found, -_FURTHEST, _FURTHEST)
        return kept

    def fit(self, log_measured: Floats, rows: Ints, passes: int = 4) -> Fit:
        """Fit on ``rows`` (none: the prior); ``log_measured`` has one value for each row of the table, others are not read."""
        departure = np.zeros_like(self._log_terms)
        inflation = np.ones(len(rows))
        for number in range(passes if len(rows) else 1):
            fit = self._linear(log_measured, rows, departure, inflation)
            if number == passes - 1:
                break
            standard = self.kernel.noise_sd * inflation * fit.alpha
            inflation = (_STUDENT + standard**2) / (_STUDENT + 1.0)
            departure = departure + (1.0 if number == 0 else 0.7) * (self._move(fit) - departure)
        return fit

    def _linear(self, log_measured: Floats, rows: Ints, departure: Floats, inflation: Floats) -> Fit:
        level, shares = self._level(departure)
        residual = log_measured[rows] - level[rows] + (shares[rows] * departure[rows]).sum(axis=1)
        k = self._covariance(shares, rows, rows)
        k[np.diag_indices(len(rows))] += self.kernel.noise_sd**2 * inflation + _JITTER
        factor = cho_factor(k, lower=True, check_finite=False) if len(rows) else (k, True)
        alpha = cho_solve(factor, residual, check_finite=False) if len(rows) else residual
        return Fit(rows, departure, shares, level, alpha, factor, inflation)

    def predict(self, fit: Fit, rows: Ints) -> Prediction:
        """Posterior of ``rows`` (any rows of the table), with the noise of one new measurement."""
        shares = fit.shares[rows]
        prior = self.kernel.shared_sd**2 + sum(sd**2 for sd in self.kernel.term_sd.values())
        variance = prior * ((shares * self._width) ** 2).sum(axis=1) + sum(
            sd**2 for part in (self.kernel.offset_sd, self.kernel.smooth_sd) for sd in part.values()
        )
        mean = fit.level[rows] - (shares * fit.departure[rows]).sum(axis=1)
        if len(fit.rows):
            cross = self._covariance(fit.shares, rows, fit.rows)
            mean = mean + cross @ fit.alpha
            variance = variance - np.einsum("ij,ji->i", cross, cho_solve(fit.factor, cross.T, check_finite=False))
        return Prediction(mean, np.sqrt(np.maximum(variance, 0.0) + self.kernel.noise_sd**2))

    def held_out(self, fit: Fit, blocks: Sequence[Ints]) -> list[tuple[Floats, Floats]]:
        """(log measured less log predicted, its standard deviation) of blocks of fitted rows, each from all other fitted rows.

        Closed form (Rasmussen and Williams 2006, section 5.4.2, for blocks): with Q = K^-1 the error is Q_bb^-1 (Q r)_b and its
        covariance Q_bb^-1; only the linearisation has seen the block. ``blocks`` hold positions within ``fit.rows``.
        """
        precision = cho_solve(fit.factor, np.eye(len(fit.rows)), check_finite=False)
        found = []
        for block in blocks:
            covariance = np.linalg.inv(precision[np.ix_(block, block)])
            variance = np.diag(covariance) - self.kernel.noise_sd**2 * (fit.inflation[block] - 1.0)
            found.append((covariance @ fit.alpha[block], np.sqrt(np.maximum(variance, self.kernel.noise_sd**2))))
        return found


def interval_scale(errors: Sequence[Floats], coverage: float, quantile: float) -> float:
    """Factor on the standard deviations so that ``coverage`` of new runs lie within ``quantile`` deviations.

    ``errors``: standardised errors of held-out blocks (groups of runs). Conformal (Vovk et al. 2005): where the prior was too narrow or
    too wide for this kind of run, the intervals learn it; a new block is one more draw, hence the level coverage (1 + 1 / blocks).
    """
    if not errors:
        return 1.0
    level = min(coverage * (1.0 + 1.0 / len(errors)), 1.0)
    return float(np.quantile(np.abs(np.concatenate(errors)), level) / quantile)
