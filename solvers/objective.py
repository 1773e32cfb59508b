"""What a plan optimises, as one number to minimise; every objective is for good requests (correct and on time).

Notation: T makespan in microseconds, g good requests, d devices, w watts of one device, p price of a device-hour.
    gpu_seconds  d T / g          joules  w d T / g        cost  p d T / g
    goodput      -g / T, compared as T / g                 latency  the e2e time of the rank that the deadline names
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from models.case import Case
from models.columns import Columns
from models.describe.scenario import Objective
from models.errors import InputError, NotCoveredError
from models.service import Outcome

Floats = npt.NDArray[np.float64]


def power_w(case: Case) -> float | None:
    """Watts of one device at its cap: the calibration's, or the device's board power."""
    return case.calibration.power_cap_w or case.device.power_w


def scale(case: Case, objective: Objective) -> float:
    """Constant factor of an objective; raises where the scenario lacks what it needs."""
    if objective is Objective.JOULES:
        watts = power_w(case)
        if watts is None:
            raise NotCoveredError(
                "no board power is known for this device", path="objective", value=objective, way_out="choose another objective"
            )
        return watts
    if objective is Objective.COST:
        price = case.scenario.hardware.price_per_hour
        if price is None:
            raise InputError("objective cost needs a price", path="hardware.price_per_hour", way_out="add price_per_hour")
        return price / 3600.0
    return 1.0


def per_device(objective: Objective) -> bool:
    """Whether more devices make the objective worse at the same time."""
    return objective in (Objective.GPU_SECONDS, Objective.JOULES, Objective.COST)


def score(case: Case, objective: Objective, k: Columns, outcome: Outcome) -> Floats:
    """The number to minimise, in the objective's unit; infinite where no request is good."""
    if objective is Objective.LATENCY:
        return np.where(outcome.good > 0, outcome.e2e_us / 1e6, np.inf)
    factor = scale(case, objective) * (k.devices if per_device(objective) else np.ones_like(k.devices))
    with np.errstate(divide="ignore"):
        return np.where(outcome.good > 0, factor * (outcome.busy_us / 1e6) / outcome.good, np.inf)
