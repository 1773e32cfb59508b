"""A search that the clock ends says so: it never passes as optimal, and one that knows nothing yet is an error with a way out."""

import pytest

from models.errors import OutOfTimeError
from planner.plan import Options, plan
from planner.scenario_file import read_raw, with_value
from solvers import full_resolution

SCENARIO = "scenarios/chapter8-search.yaml"


def test_no_time_at_all_is_an_error_that_names_the_way_out():
    with pytest.raises(OutOfTimeError, match="raise the time limit"):
        plan(read_raw(SCENARIO), Options(time_limit_s=0.0))


def test_a_search_ended_by_the_clock_has_status_time_limit_and_a_bound(monkeypatch):
    real, calls = full_resolution._visit, []

    def stopping(grid, *rest):
        calls.append(grid)
        object.__setattr__(grid, "until", 0.0)  # the clock runs out after the first batch of cells
        return real(grid, *rest)

    monkeypatch.setattr(full_resolution, "_visit", stopping)
    raw = with_value(read_raw(SCENARIO), "calibration", "none")
    answer = plan(raw, Options(explain=False, launch=False))
    assert len(calls) == 1
    assert answer.status == "time_limit"
    assert answer.bound is not None
    assert answer.bound <= answer.configurations[0].objective
    assert answer.gap >= 0
