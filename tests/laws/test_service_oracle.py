"""The closed form of a burst against a loop that serves its requests wave by wave, and retries against every outcome."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.kernels.burst import phases, prefix_phase, with_copies
from models.quality import probability_after_retries, retry_counts
from models.units import ceil_to, format_bytes, parse_bandwidth, parse_bytes, parse_seconds
from solvers import exhaustive
from tests.laws.support import examples, grid_of, scenarios

NEVER = 1 << 50
ONE = np.ones(1, dtype=np.int64)


def served(grid, cell) -> tuple[list[dict[str, int]], int]:
    """One record a request in order of service, and when the last first attempt ends."""
    k = grid.columns.take(np.array([cell.branch]))
    left, waiting = min(cell.a, grid.case.requests), []
    resident = max(cell.b // grid.case.request.samples, 1)
    time, steps = prefix_phase(grid.case.calibration, k, ONE * cell.c)
    clock = int(with_copies(time, steps, k, ONE * cell.o)[0])
    gaps = max(grid.case.request.output_tokens - 1, 1)
    while left > 0:
        x = min(resident, left)
        p = phases(grid.case.calibration, k, ONE * x, ONE * cell.c)
        prefill = int(with_copies(p.prefill_us, p.prefill_steps, k, ONE * cell.o)[0])
        decode = int(with_copies(p.decode_us, k.rounds, k, ONE * cell.o)[0])
        gap = int(with_copies(p.round_us, np.minimum(k.rounds, 1), k, ONE * cell.o)[0])
        one = {"ttft": clock + prefill, "e2e": clock + prefill + decode, "itl": gap, "tpot": -(-decode // gaps)}
        waiting += [one] * x
        clock, left = clock + prefill + decode, left - x
    return waiting, clock


def ranked(values: list[int], percentile: float, count: int) -> int:
    """Nearest rank over ``count`` requests; those without a value come last and never."""
    full = sorted(values) + [NEVER] * (count - len(values))
    return full[max(1, math.ceil(percentile * count / 100 - 1e-9)) - 1]


@examples(80)
@given(scenarios(), st.integers(0, 2**30))
def test_metrics_and_good_answers_of_a_burst(raw, seed):
    quality = raw["workload"]["traffic"]["quality"]
    if quality:
        quality.pop("retries", None)
    grid = replace(grid_of(raw), exact=True)  # a search counts nobody late where a late request drops the cell anyway
    random = np.random.default_rng(seed)
    branch = int(random.integers(len(grid.columns.buffers)))
    offloads = grid.o[grid.o > 0] if grid.columns.buffers[branch] else grid.o[grid.o == 0]
    if not len(offloads):
        return
    cell = exhaustive.Cell(branch, *(int(random.choice(axis)) for axis in (grid.b, grid.a, grid.c, offloads)))
    k = grid.columns.take(np.array([branch]))
    outcome = grid.point(k, ONE * cell.b, ONE * cell.a, ONE * cell.c, ONE * cell.o).outcome
    waiting, end = served(grid, cell)
    assert int(outcome.makespan_us[0]) == end
    deadlines, n = grid.case.request.slo.deadlines(), grid.case.requests
    for name in ("e2e", "ttft", "itl", "tpot"):
        percentile = deadlines[name].percentile if name in deadlines else 100.0
        expected = ranked([one[name] for one in waiting], percentile, n)
        if expected < NEVER:
            assert int(np.asarray(getattr(outcome, f"{name}_us")).flat[0]) == expected
        elif name in ("e2e", "ttft"):
            assert int(np.asarray(getattr(outcome, f"{name}_us")).flat[0]) == NEVER
    limits = {name: math.floor(d.limit * 1e6 + 1e-3) for name, d in deadlines.items()}
    on_time = sum(all(one[name] <= limit for name, limit in limits.items()) for one in waiting)
    assert float(np.asarray(outcome.good).flat[0]) == pytest.approx(on_time * float(k.probability_correct[0]))


@examples(60)
@given(scenarios(), st.integers(1, 3), st.sampled_from([0.5, 0.875, 0.1, 1.0]))
def test_retries_follow_all_first_attempts(raw, retries, correct):
    """Wrong answers are served again, a whole request each, wave by wave, without the prefix that is cached by then."""
    raw["workload"]["traffic"]["quality"] = {"correct": correct, "retries": retries}
    grid = grid_of(raw)
    branch = len(grid.columns.buffers) // 2
    if grid.columns.buffers[branch] and not np.any(grid.o > 0):
        return
    o = int(grid.o[-1]) if grid.columns.buffers[branch] else 0
    cell = exhaustive.Cell(branch, int(grid.b[0]), int(grid.a[-1]), int(grid.c[-1]), o)
    k = grid.columns.take(np.array([branch]))
    outcome = grid.point(k, ONE * cell.b, ONE * cell.a, ONE * cell.c, ONE * cell.o).outcome
    _, end = served(grid, cell)
    prefix = int(np.asarray(outcome.times.prefix).flat[0])
    resident = min(max(cell.b // grid.case.request.samples, 1), cell.a, grid.case.requests)
    for count in retry_counts(min(cell.a, grid.case.requests), correct, retries):
        again = exhaustive.Cell(branch, resident * grid.case.request.samples, count, cell.c, o)
        end += served(grid, again)[1] - prefix
    assert int(outcome.makespan_us[0]) == end


@pytest.mark.parametrize("retries", [0, 1, 2, 3])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.875, 1.0])
def test_right_after_retries_against_every_outcome(p, retries):
    total = sum(
        math.prod(p if right else 1 - p for right in outcome)
        for outcome in itertools.product([True, False], repeat=retries + 1) if any(outcome)
    )  # fmt: skip
    assert probability_after_retries(p, retries) == pytest.approx(total)


@given(st.integers(1, 10**6), st.sampled_from(["B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"]))
def test_bytes_are_exact_and_decimal_is_not_binary(count, unit):
    letters = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
    base = 1024 if "i" in unit else 1000
    expected = count * base ** letters.get(unit[0], 0)
    assert parse_bytes(f"{count} {unit}") == expected
    assert parse_bytes(f"{count}{unit}") == expected
    assert parse_bytes(f"{expected} B") == expected
    if unit != "B":
        assert parse_bandwidth(f"{count} {unit}/s") == expected


@given(st.integers(1, 1 << 50))
def test_printed_bytes_read_back_within_the_last_digit(count):
    unit = 1 << (10 * min(3, (count.bit_length() - 1) // 10)) if count >= 1024 else 1
    assert abs(parse_bytes(format_bytes(count)) - count) <= max(0.005 * unit + 1, count * 1e-15)


@given(st.integers(0, 10**12), st.integers(0, 4))
def test_rounding_up_never_rounds_down(value, decimals):
    exact = value / 1000
    up = ceil_to(exact, decimals)
    assert up >= exact
    assert up - exact < 10.0**-decimals * (1 + 1e-6)
    assert parse_seconds(f"{up} s") == up


def test_a_gigabyte_is_not_a_gibibyte():
    assert parse_bytes("12 GiB") - parse_bytes("12 GB") == 12 * (2**30 - 10**9)
