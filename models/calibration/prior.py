"""What is believed before any run: the logarithm of each parameter is normal, cut where physics ends (an efficiency of 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from models.errors import CalibrationError


@dataclass(frozen=True, slots=True)
class Prior:
    """``mean``, ``sd``, ``most``: of the log of each parameter; ``noise_sd`` of the log of a measurement, worth ``noise_weight`` runs."""

    names: tuple[str, ...]
    mean: tuple[float, ...]
    sd: tuple[float, ...]
    most: tuple[float, ...]
    noise_sd: float
    noise_weight: float

    def __post_init__(self) -> None:
        size = len(self.names)
        if not size or not len(self.mean) == len(self.sd) == len(self.most) == size or len(set(self.names)) != size:
            raise CalibrationError("a prior needs one mean, width and bound for each parameter, named once", value=self.names)
        if not all(math.isfinite(m) and s > 0 and m <= b for m, s, b in zip(self.mean, self.sd, self.most, strict=True)):
            raise CalibrationError("a prior needs finite means within their bounds and positive widths", value=self.names)
        if not (self.noise_sd > 0 and self.noise_weight > 0):
            raise CalibrationError("the noise of a prior must be positive", value=self.noise_sd)


@dataclass(frozen=True, slots=True)
class AcceptancePrior:
    """Median and spread of the first position's acceptance (logit) and of the ratio from one position to the next (log)."""

    first: float
    first_sd: float
    ratio: float
    ratio_sd: float
    noise_sd: float  # of the log of a measured acceptance length
