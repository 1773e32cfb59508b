"""Probabilities and values of information against closed forms: two log-normal choices (Margrabe's exchange option), a scalar filter."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from models.describe.configuration import Configuration
from planner.decision import Belief, Choice, after, best_chances, order_of, value_of

PLAIN = Configuration(max_num_seqs=1, max_num_batched_tokens=1)
EYE = np.eye(2)


def choice(label, prefill, decode, limits=None, metrics=None):
    return Choice(label, None, PLAIN, prefill, decode, metrics or {}, limits or {}, queued=False, worth=1.0)


def belief(prefill_sd, decode_sd, noise=1e-6):
    return Belief(np.diag([prefill_sd**2, decode_sd**2]), noise)


TINY = 1e-12


def test_the_order_of_two_choices_is_the_normal_integral():
    """One spends all its time in prefill, the other in decode: log v1 - log v2 is normal."""
    found = [choice("a", 1.0, TINY), choice("b", TINY, 1.1)]
    sure = order_of(found, [EYE, EYE], belief(0.2, 0.3))
    sd = math.hypot(0.2, 0.3)
    expected = norm.cdf(math.log(1.1) / sd)
    assert sure.probability == pytest.approx(expected, abs=0.03)
    assert sure.chances == pytest.approx([expected, 1 - expected], abs=0.03)
    means = math.exp(0.2**2 / 2), math.exp(0.3**2 / 2) / 1.1
    d = math.log(means[0] / means[1]) / sd + sd / 2
    best = means[1] + means[0] * norm.cdf(d) - means[1] * norm.cdf(d - sd)  # Margrabe 1978: E[max] = E[b] + E[(a - b)+]
    assert sure.gain == pytest.approx(best / max(means) - 1, abs=0.02)


def test_a_run_is_worth_something_only_where_it_can_change_the_choice():
    found = [choice("a", 1.0, TINY), choice("b", TINY, 1.1)]
    slopes, unsure = [EYE, EYE], belief(0.2, 0.3)
    both = value_of(found, slopes, unsure, EYE)
    one = value_of(found, slopes, unsure, EYE[:1])
    assert both == pytest.approx(order_of(found, slopes, unsure).gain, abs=0.03)  # without noise: perfect knowledge of both
    assert 0 < one < both
    assert value_of(found, slopes, Belief(unsure.covariance, 100.0), EYE) == pytest.approx(0.0, abs=1e-3)  # noise drowns it
    alike = [choice("a", 1.0, 1.0), choice("b", 1.0, 1.0)]
    assert value_of(alike, slopes, unsure, EYE) == pytest.approx(0.0, abs=1e-12)
    far = [choice("a", 1.0, 1.0), choice("b", 100.0, 100.0)]
    assert value_of(far, slopes, unsure, EYE) == pytest.approx(0.0, abs=1e-12)


def test_the_filter_is_the_scalar_one():
    rest = after(Belief(np.array([[0.04]]), 0.1), np.array([[1.0]]))
    assert rest[0, 0] == pytest.approx(1 / (1 / 0.04 + 1 / 0.01))


def test_a_deadline_that_the_draw_breaks_is_worth_nothing():
    one = choice("a", 1.0, 1.0, {"ttft": 1.5, "e2e": 10.0}, {"ttft": 1.0, "e2e": 2.0})
    assert one.value(np.array([0.0, 0.0])) == pytest.approx(0.5)
    assert one.value(np.array([math.log(1.6), 0.0])) == 0.0
    assert one.value(np.array([math.log(1.4), math.log(3.0)])) == pytest.approx(1 / 4.4)


def test_ties_go_to_the_first_and_worthless_draws_to_nobody():
    assert best_chances(np.array([[1.0, 1.0], [0.0, 0.0], [0.5, 1.0], [2.0, 1.0]])) == pytest.approx([0.5, 0.25])
