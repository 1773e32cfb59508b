"""The held-out loop of the small sets: an exact law is predicted exactly, a broken one is not, and rows never see themselves."""

from __future__ import annotations

import numpy as np
import pytest

from bench.held_out import Case, per_group, score


def case(measured, terms):
    rows = len(measured)
    return Case("law", terms, {"a": 1.0, "b": 1.0}, measured, np.zeros((rows, 1)), {"g": ["x", "y"] * (rows // 2)}, {})


def test_an_exact_law_is_predicted_and_noise_is_not():
    rng = np.random.default_rng(0)
    terms = [{"a": float(x), "b": float(y)} for x, y in np.exp(rng.uniform(-2, 2, (60, 2)))]
    law = np.array([1.4 * t["a"] + 0.7 * t["b"] for t in terms])
    split = per_group(["x", "y"] * 30, 10)
    found = score(case(law, terms), split, 3)
    assert found.rows == 3 * 40
    assert found.median < 0.01
    shuffled = score(case(rng.permutation(law), terms), split, 3)
    assert shuffled.median > 0.2


def test_a_split_draws_so_many_of_each_label():
    drawn = per_group(["x"] * 5 + ["y"] * 9, 3)(np.random.default_rng(1))
    assert len(set(drawn.tolist())) == 6
    assert sum(drawn < 5) == 3
    assert per_group(["x"] * 2, 5)(np.random.default_rng(1)) == pytest.approx([0, 1], abs=1)
