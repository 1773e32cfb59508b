"""Acceptance by position from mean lengths: truths recovered, the prior where nothing is known, impossible lengths refused."""

from __future__ import annotations

import math

import pytest

from models.calibration.acceptance import Acceptance, fit_acceptance
from models.catalog.step_prior import acceptance_prior
from models.errors import CalibrationError


def test_tokens_of_a_round_by_hand():
    """0.8, then 0.8 x 0.9 = 0.72: 1 + 0.8 + 0.8 x 0.72."""
    found = Acceptance(0.8, 0.9)
    assert found.positions(2) == pytest.approx((0.8, 0.72))
    assert found.tokens(2) == pytest.approx(1 + 0.8 + 0.8 * 0.72)
    assert found.tokens(0) == 1.0


@pytest.mark.parametrize(("first", "ratio"), [(0.6, 0.95), (0.9, 0.97), (0.75, 0.9)])
def test_two_lengths_give_the_others(first, ratio):
    truth = Acceptance(first, ratio)
    found = fit_acceptance({1: truth.tokens(1), 6: truth.tokens(6)}, acceptance_prior())
    for length in range(1, 9):
        assert found.tokens(length) == pytest.approx(truth.tokens(length), rel=0.02)


def test_nothing_measured_is_the_prior_and_constant_acceptance_stays_constant():
    prior = acceptance_prior()
    found = fit_acceptance({}, prior)
    assert found.first == pytest.approx(prior.first, abs=1e-6)
    even = Acceptance(0.8, 1.0)
    assert fit_acceptance({m: even.tokens(m) for m in (1, 2, 4, 8)}, prior).ratio == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("lengths", [{3: 4.5}, {3: 0.5}, {0: 1.0}, {3: math.nan}])
def test_impossible_lengths_are_refused(lengths):
    with pytest.raises(CalibrationError, match="between 1 and m"):
        fit_acceptance(lengths, acceptance_prior())
