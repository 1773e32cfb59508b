"""The hierarchical fit against closed forms of normal theory, synthetic truths, and itself refitted without the held-out rows."""

from __future__ import annotations

import numpy as np
import pytest

from models.calibration.additive import AdditiveModel, Kernel, Table, interval_scale
from models.errors import CalibrationError


def kernel(**changes):
    base = {
        "width": (1.0,),
        "shared_sd": 0.5,
        "term_sd": {},
        "offset_sd": {},
        "smooth_sd": {},
        "lengths": (1.0,),
        "noise_sd": 0.1,
    }
    return Kernel(**(base | changes))


def table(terms, labels=None, features=None, spec=None):
    terms = np.asarray(terms, dtype=float)
    spec = np.ones(terms.shape[1]) if spec is None else np.asarray(spec, dtype=float)
    features = np.zeros((len(terms), 1)) if features is None else features
    return Table(tuple(f"t{j}" for j in range(terms.shape[1])), terms, spec, features, labels or {"group": ["g"] * len(terms)})


def test_zero_rows_answer_with_the_specification_and_its_prior_width():
    model = AdditiveModel(table([[1.0, 2.0], [3.0, 0.0]], spec=[2.0, 4.0]), kernel(width=(1.0, 1.0)))
    answer = model.predict(model.fit(np.zeros(2), np.array([], dtype=np.intp)), np.arange(2))
    assert np.exp(answer.log_mean) == pytest.approx([10.0, 6.0])
    # shares 0.2/0.8 and 1/0; variance = 0.5^2 (s1^2 + s2^2) + 0.1^2
    assert answer.log_sd**2 == pytest.approx([0.25 * (0.04 + 0.64) + 0.01, 0.25 + 0.01], rel=1e-6)


def test_one_term_is_the_normal_mean_problem():
    """y = log t + u + e with u ~ N(0, tau^2): the posterior mean is n tau^2 / (n tau^2 + sigma^2) times the mean residual."""
    rng = np.random.default_rng(0)
    residual = rng.normal(0.3, 0.1, 7)
    model = AdditiveModel(table(np.ones((8, 1))), kernel())
    measured = np.append(residual, 0.0)
    answer = model.predict(model.fit(measured, np.arange(7), passes=1), np.array([7]))
    n, tau2, sigma2 = 7, 0.25, 0.01
    assert answer.log_mean[0] == pytest.approx(n * tau2 / (n * tau2 + sigma2) * residual.mean(), rel=1e-5)
    assert answer.log_sd[0] ** 2 == pytest.approx(tau2 * sigma2 / (n * tau2 + sigma2) + sigma2, rel=1e-5)


def test_two_levels_shrink_towards_the_shared_part():
    """Two groups of equal size: the group means shrink by tau_g^2 / (tau_g^2 + sigma^2 / n) around the shared estimate."""
    means, n, tau_s2, tau_g2, sigma2 = np.array([0.1, 0.5]), 5, 0.09, 0.04, 0.01
    labels = {"group": ["a"] * (n + 1) + ["b"] * (n + 1) + ["new"]}
    measured = np.concatenate([np.full(n + 1, means[0]), np.full(n + 1, means[1]), [0.0]])
    rows = np.array([i for i in range(2 * n + 2) if i not in (n, 2 * n + 1)])
    model = AdditiveModel(table(np.ones((2 * n + 3, 1)), labels), kernel(shared_sd=0.3, term_sd={"group": 0.2}))
    answer = model.predict(model.fit(measured, rows, passes=1), np.array([n, 2 * n + 1, 2 * n + 2]))
    v = tau_g2 + sigma2 / n  # variance of a group's mean around the shared part
    shared = 2 * tau_s2 / (2 * tau_s2 + v) * means.mean()
    expected = shared + tau_g2 / v * (means - shared)
    assert answer.log_mean == pytest.approx([*expected, shared], rel=1e-4)
    assert answer.log_sd[2] > answer.log_sd[0]  # the unseen group is less certain


def test_recovers_coefficients_of_a_sum_of_terms():
    rng = np.random.default_rng(1)
    terms = np.exp(rng.uniform(-3, 3, (200, 2)))
    truth = np.log(terms @ np.array([1.7, 0.6]))
    model = AdditiveModel(table(terms), kernel(width=(1.0, 1.0), noise_sd=0.02))
    rows = np.arange(40)
    fit = model.fit(truth + rng.normal(0, 0.02, 200), rows, passes=8)
    answer = model.predict(fit, np.arange(40, 200))
    assert np.median(np.abs(np.exp(answer.log_mean - truth[40:]) - 1)) < 0.01
    assert np.exp(fit.departure[0]) == pytest.approx([1.7, 0.6], rel=0.03)


def test_an_outlier_loses_its_weight():
    rng = np.random.default_rng(2)
    measured = rng.normal(0.2, 0.05, 21)
    spoiled = measured.copy()
    spoiled[3] += 3.0  # twenty times too slow
    model = AdditiveModel(table(np.ones((21, 1))), kernel(noise_sd=0.05))
    rows, last = np.arange(20), np.array([20])
    clean = model.predict(model.fit(measured, rows, passes=10), last)
    dirty_fit = model.fit(spoiled, rows, passes=10)
    assert model.predict(dirty_fit, last).log_mean[0] == pytest.approx(clean.log_mean[0], abs=0.03)
    assert dirty_fit.inflation.argmax() == 3
    assert dirty_fit.inflation[3] > 50 * np.median(dirty_fit.inflation)


def test_held_out_blocks_equal_a_refit_without_them():
    rng = np.random.default_rng(3)
    labels = {"group": [str(i % 3) for i in range(30)]}
    model = AdditiveModel(
        table(np.ones((30, 1)), labels, rng.normal(size=(30, 1))), kernel(term_sd={"group": 0.2}, smooth_sd={"group": 0.1})
    )
    measured = rng.normal(0, 0.3, 30)
    block = np.array([0, 3, 6, 9])
    error, sd = model.held_out(model.fit(measured, np.arange(30), passes=1), [block])[0]
    rest = np.setdiff1d(np.arange(30), block)
    answer = model.predict(model.fit(measured, rest, passes=1), block)
    assert error == pytest.approx(measured[block] - answer.log_mean, rel=1e-4)
    assert sd == pytest.approx(answer.log_sd, rel=1e-4)


def test_intervals_of_data_drawn_from_the_prior_cover_what_they_say():
    rng = np.random.default_rng(4)
    groups, each = 60, 12
    labels = {"group": [str(i // each) for i in range(groups * each)]}
    x = rng.normal(size=(groups * each, 1))
    level = 0.4 * rng.normal() + np.repeat(0.2 * rng.normal(size=groups), each)
    measured = level + 0.1 * rng.normal(size=groups * each)
    model = AdditiveModel(table(np.ones((groups * each, 1)), labels, x), kernel(shared_sd=0.4, term_sd={"group": 0.2}))
    train = np.array([i for i in range(groups * each) if i % each < 5])
    test = np.setdiff1d(np.arange(groups * each), train)
    answer = model.predict(model.fit(measured, train, passes=1), test)
    inside = np.abs(measured[test] - answer.log_mean) < 1.645 * answer.log_sd
    assert 0.85 <= inside.mean() <= 0.95


def test_interval_scale_is_the_corrected_quantile_over_the_normal_one():
    """Nine blocks: level 0.9 (1 + 1/9) = 1, the largest error; many blocks: the plain quantile."""
    errors = np.linspace(-2, 2, 900)
    assert interval_scale(np.split(errors, 9), 0.9, 1.6) == pytest.approx(2.0 / 1.6)
    assert interval_scale(np.split(errors, 900), 0.9, 1.6) == pytest.approx(1.802 / 1.6, rel=5e-3)
    assert interval_scale([], 0.9, 1.6) == 1.0


@pytest.mark.parametrize(
    "bad",
    [
        lambda: table([[0.0, 0.0]]),
        lambda: table([[np.nan, 1.0]]),
        lambda: table([[-1.0, 1.0]]),
        lambda: table([[1.0]], {"group": ["a", "b"]}),
        lambda: AdditiveModel(table([[1.0]]), kernel(term_sd={"engine": 0.1})),
        lambda: AdditiveModel(table([[1.0]]), kernel(width=(1.0, 2.0))),
    ],
)
def test_unusable_tables_are_refused(bad):
    with pytest.raises(CalibrationError):
        bad()
