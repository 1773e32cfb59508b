"""Acceptance by position from mean acceptance lengths at a few draft lengths, so that other lengths can be predicted.

Notation (section 8.5.1): a_i chance that position i is accepted once all before it were; E[N_m] = 1 + sum_{j<=m} prod_{i<=j} a_i tokens a
round of m drafted ones, the bonus token included.
Form: a_i = a r^(i-1), r <= 1: the draft reads ever more of its own guesses. Least squares in log E[N] with normal priors of logit a and
log r (what a trained draft head usually does), so that one measured length suffices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from models.calibration.prior import AcceptancePrior
from models.errors import CalibrationError
from models.speculation import expected_tokens

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Fitted ``first`` and ``ratio``."""

    first: float
    ratio: float

    def positions(self, length: int) -> tuple[float, ...]:
        """a_1 ... a_length, for the speculation façade."""
        return tuple(self.first * self.ratio**i for i in range(length))

    def tokens(self, length: int) -> float:
        """E[N_length], the bonus token included."""
        return expected_tokens(self.positions(length))


def fit_acceptance(lengths: Mapping[int, float], prior: AcceptancePrior) -> Acceptance:
    """``lengths``: drafted tokens -> mean acceptance length with the bonus token; none given: the prior."""
    for drafted, mean in lengths.items():
        if drafted < 1 or not (math.isfinite(mean) and 1.0 <= mean <= drafted + 1):
            raise CalibrationError(
                "a round of m drafted tokens yields between 1 and m + 1", path=f"acceptance.{drafted}", value=mean,
                way_out="give mean tokens a round with the bonus token, without failed requests",
            )  # fmt: skip
    middle = math.log(prior.first / (1 - prior.first)), math.log(prior.ratio)

    def unpack(x: Floats) -> Acceptance:
        return Acceptance(float(1 / (1 + np.exp(-x[0]))), float(np.exp(x[1])))

    def residuals(x: Floats) -> Floats:
        found = unpack(x)
        data = [math.log(found.tokens(m) / mean) / prior.noise_sd for m, mean in lengths.items()]
        return np.array([*data, (x[0] - middle[0]) / prior.first_sd, (x[1] - middle[1]) / prior.ratio_sd])

    answer = least_squares(residuals, np.minimum(middle, (np.inf, -1e-9)), bounds=((-np.inf, -np.inf), (np.inf, 0.0)))
    return unpack(answer.x)
