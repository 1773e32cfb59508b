"""Rounds of the slowest request of a batch: against enumeration, simulation by drawing, and the normal limit."""

import itertools

import numpy as np
import pytest

from models.speculation import EXACT_TOKENS, _slowest_by_normal, exact_expected_rounds, slowest_rounds


def test_mean_of_one_request_is_the_exact_expectation():
    acceptance = (0.75, 0.75, 0.75, 0.75)
    done = slowest_rounds(acceptance, 256, 1)
    assert float((1.0 - done).sum()) == pytest.approx(exact_expected_rounds(acceptance, 256), rel=1e-9)


def test_small_case_against_every_outcome():
    a, tokens, sequences = 0.4, 3, 2  # one draft token: a round emits 2 with probability 0.4, else 1
    for r in range(tokens + 1):
        one = sum(np.prod([a if n == 2 else 1 - a for n in draws]) for draws in itertools.product((1, 2), repeat=r) if sum(draws) >= tokens)
        assert slowest_rounds((a,), tokens, sequences)[r] == pytest.approx(one**sequences)


def test_slowest_of_sixteen_against_draws():
    a, m = 0.6822, 7  # about three tokens a round
    random = np.random.default_rng(7)
    worst = []
    for _ in range(400):
        emitted, rounds = np.zeros(16), np.zeros(16)
        while (emitted < 255).any():
            run = np.cumprod(random.random((16, m)) < a, axis=1).sum(axis=1) + 1
            rounds += emitted < 255
            emitted += run
        worst.append(rounds.max())
    done = slowest_rounds((a,) * m, 255, 16)
    assert float((1.0 - done).sum()) == pytest.approx(float(np.mean(worst)), rel=0.01)


def test_normal_limit_meets_the_exact_count():
    exact, normal = slowest_rounds((0.7, 0.6), EXACT_TOKENS, 4), _slowest_by_normal((0.7, 0.6), EXACT_TOKENS, 4)
    assert np.abs(exact - normal).max() < 0.02
