"""A posterior as a JSON document, and as a calibration that every façade reads.

The document holds all that prediction with intervals needs; it is what the store keeps, version by version.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.calibration.posterior import Posterior, to_physical
from models.describe.calibration import Calibration, Physical, Source, Uncertainty
from models.errors import CalibrationError, NotCoveredError

SCHEMA = 1
_FIELDS = {"schema", "names", "mean", "covariance", "most", "noise_sd", "residuals", "outliers", "runs"}


def to_document(posterior: Posterior) -> dict[str, Any]:
    """Plain JSON values; an unbounded parameter has ``most`` null."""
    return {
        "schema": SCHEMA, "names": list(posterior.names), "mean": posterior.mean.tolist(), "covariance": posterior.covariance.tolist(),
        "most": [None if math.isinf(m) else m for m in posterior.most.tolist()], "noise_sd": posterior.noise_sd,
        "residuals": posterior.residuals.tolist(), "outliers": list(posterior.outliers), "runs": posterior.runs,
    }  # fmt: skip


def from_document(document: Mapping[str, Any]) -> Posterior:
    """The posterior of ``document``; one that is incomplete, not finite or no covariance is refused."""
    if set(document) != _FIELDS or document["schema"] != SCHEMA:
        raise CalibrationError(
            "not a calibration document of this version", path="document", value=sorted(set(document) ^ _FIELDS) or document["schema"]
        )
    try:
        mean, covariance, residuals = (np.array(document[k], dtype=float) for k in ("mean", "covariance", "residuals"))
        most = np.array([math.inf if m is None else m for m in document["most"]], dtype=float)
        names, size = tuple(map(str, document["names"])), len(document["names"])
        noise, runs = float(document["noise_sd"]), int(document["runs"])
    except (TypeError, ValueError) as cause:
        raise CalibrationError("a calibration document holds something that is no number", path="document", value=str(cause)) from cause
    shapes = mean.shape == most.shape == (size,) and covariance.shape == (size, size) and size > 0
    if not shapes or not all(np.isfinite(x).all() for x in (mean, covariance, residuals)) or not 0 < noise < math.inf or runs < 0:
        raise CalibrationError("a calibration document whose numbers do not fit together", path="document", value=names)
    if not np.allclose(covariance, covariance.T) or np.linalg.eigvalsh(covariance).min() <= 0:
        raise CalibrationError("the covariance of a calibration is not one", path="document.covariance")
    if (mean > most + 1e-9).any():
        raise CalibrationError(
            "an efficiency above 1 would beat the device", path="document.mean", value=names[int(np.argmax(mean - most))]
        )
    return Posterior(names, mean, covariance, most, noise, residuals, tuple(map(str, document["outliers"])), runs)


@dataclass(frozen=True, slots=True)
class Scope:
    """What a calibration is for."""

    device: str
    engine: str
    engine_version: str | None
    model: str
    weight_format: str | None
    tensor_parallel: int
    cuda_graphs: bool
    layers: int
    notes: tuple[str, ...] = ()  # what was assumed of the runs


def calibrated(posterior: Posterior, base: Calibration, scope: Scope, *, name: str, version: str, sources: Sequence[Source]) -> Calibration:
    """``base`` (physical, such as the catalogue's "none") with the fitted parameters, for ``scope``, with its uncertainty.

    The stated spread of a phase is the noise of one measurement together with that of the efficiency which limits the phase.
    """
    if not isinstance(base.prefill, Physical) or not isinstance(base.decode, Physical):
        raise NotCoveredError("only a physical calibration can be fitted", path="calibration", value=base.name, way_out="start from 'none'")
    prefill, decode = (
        to_physical(posterior, form, cuda_graphs=scope.cuda_graphs, layers=scope.layers) for form in (base.prefill, base.decode)
    )
    compute, memory = (_spread(posterior, n) for n in ("matmul_efficiency", "bandwidth_efficiency"))
    return base.model_copy(update={
        "name": name, "version": version, "device": scope.device, "engine": scope.engine, "engine_version": scope.engine_version,
        "model": scope.model, "weight_format": scope.weight_format, "tensor_parallel": scope.tensor_parallel,
        "cuda_graphs": scope.cuda_graphs, "prefill": prefill, "decode": decode, "sources": tuple(sources), "notes": tuple(scope.notes),
        "request_s": posterior.value("request_s") if "request_s" in posterior.names else 0.0,
        "uncertainty": Uncertainty(
            prefill_log_sd=math.hypot(posterior.noise_sd, compute), decode_log_sd=math.hypot(posterior.noise_sd, memory),
            source=f"fit of {posterior.runs} measurements, {len(posterior.outliers)} of them outliers",
        ),
    })  # fmt: skip


def _spread(posterior: Posterior, name: str) -> float:
    """Standard deviation of the log of one parameter; 0 where it was not fitted."""
    if name not in posterior.names:
        return 0.0
    at = posterior.names.index(name)
    return math.sqrt(float(posterior.covariance[at, at]))
