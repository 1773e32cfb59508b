"""What the law tests share: how many examples to draw, scenarios as a strategy, and a scenario made ready to search.

GOODPUT_LAWS=long draws thirty times as many examples, at random; without it the examples are always the same few.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st

from models.errors import InputError
from planner.resolve import resolve
from planner.scenario_file import parse_scenario
from solvers.grid import Grid
from solvers.space import build_space
from tests.laws.scenarios import random_scenario

LONG = os.environ.get("GOODPUT_LAWS") == "long"


def examples(count: int) -> Callable[[Any], Any]:
    """So many examples, or thirty times as many in a long run."""
    return settings(
        max_examples=count * (30 if LONG else 1), deadline=None, derandomize=not LONG, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )  # fmt: skip


def scenarios(**options: bool) -> st.SearchStrategy[dict[str, Any]]:
    """Raw random scenarios, from the same generator that benches use."""
    return st.integers(0, 2**48).map(lambda seed: random_scenario(Random(seed), **options))


def grid_of(raw: dict[str, Any]) -> Grid:
    """The scenario's space as a grid; scenarios that the planner refuses with an input error are skipped."""
    try:
        case = resolve(parse_scenario(raw))
        space = build_space(case)
        assume(space.size > 0)
        return Grid.of(case, space)
    except InputError:
        assume(condition=False)
        raise
