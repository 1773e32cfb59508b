"""What is believed after the runs: parameters with covariance, noise, residuals; intervals, drift, and the way into a step model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import bdtrc, ndtri

from models.calibration.evidence import Evidence
from models.calibration.prior import Prior
from models.describe.calibration import Physical
from models.errors import CalibrationError
from models.kernels.step import PHYSICAL, StepModel

Floats = npt.NDArray[np.float64]
_DIFFERENCE = 1e-4  # step of the numeric gradient, in log space
_UNLIKELY = 0.01  # chance below which runs are said to have drifted


@dataclass(frozen=True)
class Posterior:
    """Parameters in log space. ``residuals``: log measured less log predicted of each run, ``outliers`` the names of those that do not fit.

    ``noise_sd``: of the log of one measurement. A posterior of no run is the prior itself.
    """

    names: tuple[str, ...]
    mean: Floats
    covariance: Floats
    most: Floats
    noise_sd: float
    residuals: Floats
    outliers: tuple[str, ...]
    runs: int

    def value(self, name: str) -> float:
        """The parameter in its own unit."""
        return float(np.exp(self.mean[self.names.index(name)]))

    def step_model(self, template: StepModel) -> StepModel:
        """``template`` with this posterior's parameters."""
        return parametrised(template, self.names, self.mean)


def parametrised(template: StepModel, names: Sequence[str], log_values: Floats) -> StepModel:
    """``template`` in the PHYSICAL form with exp(``log_values``) for ``names``; "parameter@format" holds for that KV format alone."""
    values = dict(zip(names, np.exp(log_values).tolist(), strict=True))
    plain = {name: value for name, value in values.items() if "@" not in name}
    return template._replace(form=PHYSICAL, by_format=tuple(item for item in values.items() if "@" in item[0]), **plain)


@dataclass(frozen=True)
class Interval:
    """Seconds: median and a central interval; ``log_sd`` of one measurement around the median."""

    median: Floats
    low: Floats
    high: Floats
    log_sd: Floats


def gradient(evidence: Evidence, template: StepModel, names: Sequence[str], mean: Floats) -> Floats:
    """d log prediction / d log parameter, rows x parameters, by central differences."""
    columns = []
    for j in range(len(names)):
        up, down = mean.copy(), mean.copy()
        up[j], down[j] = up[j] + _DIFFERENCE, down[j] - _DIFFERENCE
        change = evidence.predict(parametrised(template, names, up)) - evidence.predict(parametrised(template, names, down))
        columns.append(change / (2 * _DIFFERENCE))
    return np.stack(columns, axis=1)


def interval(posterior: Posterior, evidence: Evidence, template: StepModel, coverage: float = 0.9) -> Interval:
    """Prediction of what ``evidence`` describes (its measurements are not read), with the noise of one new measurement."""
    if not 0 < coverage < 1:
        raise CalibrationError("coverage must lie between 0 and 1", value=coverage)
    near = evidence.at(posterior.step_model(template))
    center = near.predict(posterior.step_model(template))
    slope = gradient(near, template, posterior.names, posterior.mean)
    sd = np.sqrt(np.einsum("ij,jk,ik->i", slope, posterior.covariance, slope) + (posterior.noise_sd / near.weights) ** 2)
    width = ndtri(0.5 + coverage / 2) * sd
    return Interval(np.exp(center), np.exp(center - width), np.exp(center + width), sd)


@dataclass(frozen=True)
class Drift:
    """``outside``: names of the runs beyond their interval; ``drifted``: too many, or too far to one side, for chance."""

    outside: tuple[str, ...]
    expected: float
    bias: float  # median of measured / predicted - 1
    drifted: bool


def drift(posterior: Posterior, evidence: Evidence, template: StepModel, coverage: float = 0.9) -> Drift:
    """Do new runs still agree with the calibration? The number outside is binomial; a common shift is tested by its mean."""
    found = interval(posterior, evidence, template, coverage)
    error = evidence.measured - np.log(found.median)
    outside = np.abs(error) > ndtri(0.5 + coverage / 2) * found.log_sd
    count, size = int(outside.sum()), len(evidence)
    too_many = bdtrc(count - 1, size, 1 - coverage) < _UNLIKELY if count else False
    shifted = abs(float(np.mean(error / found.log_sd))) * math.sqrt(size) > ndtri(1 - _UNLIKELY / 2) and size >= 2
    names = tuple(n for n, o in zip(evidence.names, outside, strict=True) if o)
    return Drift(names, (1 - coverage) * size, float(np.median(np.exp(error)) - 1), bool(too_many or shifted))


def borrow(relatives: Sequence[Posterior], prior: Prior) -> Prior:
    """A prior for a new member of a class (a model on this device, a device of this generation) from calibrated relatives.

    Parameter by parameter: relatives' means around a class mean with variance between them (DerSimonian and Laird 1986), the
    specification counted as one more relative; the new member may differ as much as the relatives do among themselves.
    """
    mean, sd = list(prior.mean), list(prior.sd)
    for j, name in enumerate(prior.names):
        known = [
            (p.mean[p.names.index(name)], p.covariance[p.names.index(name), p.names.index(name)]) for p in relatives if name in p.names
        ]
        if not known:
            continue
        values, variances = (np.array(x) for x in zip(*known, strict=True))
        weights = 1 / variances
        center = np.average(values, weights=weights)
        excess = float(np.sum(weights * (values - center) ** 2)) - (len(values) - 1)
        scale = float(weights.sum() - (weights**2).sum() / weights.sum())
        between = max(excess / scale, 0.0) if scale > 0 else 0.0
        between = (len(values) * between + prior.sd[j] ** 2) / (len(values) + 1)
        weights = 1 / (variances + between)
        total = weights.sum() + 1 / prior.sd[j] ** 2
        mean[j] = min(float((np.sum(weights * values) + prior.mean[j] / prior.sd[j] ** 2) / total), prior.most[j])
        sd[j] = math.sqrt(between + 1 / total)
    return Prior(prior.names, tuple(mean), tuple(sd), prior.most, prior.noise_sd, prior.noise_weight)


_FORMAT_FIELDS = {"short_pair_cost": "short_pair_cost", "kv_conversion_s_per_byte": "conversion_s_per_byte"}


def _by_format(posterior: Posterior, name: str) -> dict[str, float]:
    """Fitted values of a parameter that a KV format changes, by format."""
    return {n.partition("@")[2]: posterior.value(n) for n in posterior.names if n.partition("@")[0] == name and "@" in n}


def to_physical(posterior: Posterior, base: Physical, *, cuda_graphs: bool, layers: int = 1) -> Physical:
    """``base`` with the fitted parameters; the host's time goes where the runs were made (with or without captured graphs)."""
    same = {
        "matmul_efficiency",
        "half_rows",
        "attention_efficiency",
        "bandwidth_efficiency",
        "overlap",
        "host_per_sequence_s",
        "host_overlap",
    }
    change: dict[str, Any] = {n: posterior.value(n) for n in posterior.names if n in same}
    change |= {field: _by_format(posterior, name) for field, name in _FORMAT_FIELDS.items()}
    if "host_s" in posterior.names:
        change["host_graph_s" if cuda_graphs else "host_eager_s"] = posterior.value("host_s")
    if "collective_s" in posterior.names:
        change["all_reduce_latency_s"] = posterior.value("collective_s") / (2 * layers)
    return Physical.model_validate(base.model_dump() | change)
