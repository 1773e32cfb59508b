"""Evidence of phases: a time that adds up one or more engine steps, with the host or on the device alone.

Notation as in ``models.calibration.evidence``; phase i is the sum over its steps, T_i = sum_j T(x_ij; p). Seconds.
Physics: the floor of a phase is the sum of its steps' floors max(F / P, D / B).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.calibration.evidence import Evidence, Floats, StepObservation, from_steps, joined
from models.errors import CalibrationError
from models.kernels.step import StepModel


@dataclass(frozen=True, slots=True)
class Phase:
    """``seconds`` that ``steps`` took one after the other (the steps' own seconds are not read)."""

    steps: tuple[StepObservation, ...]
    seconds: float
    name: str
    includes_host: bool = True
    kv_format: str = "bf16"

    def __post_init__(self) -> None:
        if not self.steps:
            raise CalibrationError("a phase needs at least one step", path=self.name)
        if not (np.isfinite(self.seconds) and self.seconds > 0):
            raise CalibrationError("a measurement must be a positive, finite number", path=self.name, value=self.seconds)


def from_phases(phases: Sequence[Phase]) -> Evidence:
    """Evidence of phases, those with the host first, then those of the device alone, by KV format."""
    kinds = sorted({(not p.includes_host, p.kv_format) for p in phases})
    parts = [_sums([p for p in phases if (not p.includes_host, p.kv_format) == kind], with_host=not kind[0]) for kind in kinds]
    return joined(parts) if parts else from_steps([])


def _sums(phases: Sequence[Phase], *, with_host: bool) -> Evidence:
    inner = from_steps([step for phase in phases for step in phase.steps], phases[0].kv_format)
    starts: npt.NDArray[np.intp] = np.cumsum([0, *(len(phase.steps) for phase in phases[:-1])]).astype(np.intp)

    def summed(logs: Floats) -> Floats:
        total: Floats = np.log(np.add.reduceat(np.exp(logs), starts))
        return total

    def seen(model: StepModel) -> StepModel:
        return model if with_host else model._replace(host_s=0.0, host_per_sequence_s=0.0)

    measured = np.log(np.array([phase.seconds for phase in phases], dtype=float))
    return Evidence(measured, lambda m: summed(inner.predict(seen(m))), tuple(p.name for p in phases), lambda m: summed(inner.floor(m)))
