"""Percentiles that never list the values, against sorted lists of all of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.kernels import gap_ranks, statistics
from models.kernels.scheduler_state import RESULT, GapLog
from models.kernels.step import LINEAR, StepModel
from models.simulate import simulate
from models.simulation_summary import nearest_rank, summarise
from models.simulation_types import Deadlines, EngineParameters, RequestArrays, Status
from tests.oracles.gap_log import listed


@st.composite
def logs(draw):
    """Ramps, points and ties, heavy and light, in narrow bands and far apart."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size, levels = draw(st.integers(1, 300) | st.just(1200)), draw(st.sampled_from([2, 5, 10**6]))
    start = rng.integers(1, levels + 1, size) * 1e-3 * draw(st.sampled_from([1.0, 1e-9])) + draw(st.sampled_from([0.0, 1.0]))
    slope = rng.choice(draw(st.sampled_from([[0.0], [0.0, 1e-3], [1e-6, 3e-5, 2e-3], [0.0, 1e-18, 0.25]])), size)
    length = rng.integers(1, draw(st.sampled_from([2, 40])), size).astype(np.int32)
    return GapLog(start, slope, length, rng.integers(1, 30, size).astype(np.int32))


@pytest.mark.parametrize(("sample", "margin", "again"), [(8192, 3.0, 256), (64, 1.0, 32), (16, 0.0, 4)])
@settings(max_examples=80, deadline=None)
@given(log=logs())
def test_gap_ranks_are_those_of_the_sorted_list(sample, margin, again, log):
    """Small samples without a margin make brackets miss their rank, so that every way through the selection is taken."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("SAMPLE", sample), ("MARGIN", margin), ("AGAIN", again)):
            patch.setattr(gap_ranks, name, value)
        told = listed(log)
        ranks = [1, *(nearest_rank(len(told), percent) for percent in (10, 50, 90, 99)), len(told)]
        np.testing.assert_allclose(gap_ranks.gap_ranks(log, ranks, len(told)), told[np.array(ranks) - 1], rtol=1e-13, atol=0)


def test_a_rank_beyond_the_log_has_no_value():
    log = GapLog(np.array([1.0]), np.array([0.0]), np.array([1], np.int32), np.array([3], np.int32))
    assert gap_ranks.gap_ranks(log, [3], 3) == [1.0]
    assert np.isnan(gap_ranks.gap_ranks(log, [4], 4)).all()


@given(values=st.lists(st.sampled_from([0.0, 1.0, 2.5]) | st.floats(0, 1e6), min_size=1, max_size=60), data=st.data())
def test_value_ranks_are_those_of_the_sorted_list(values, data):
    ranks = sorted(data.draw(st.lists(st.integers(1, len(values)), min_size=1, max_size=5)))
    assert statistics.value_ranks(np.array(values), ranks) == [sorted(values)[rank - 1] for rank in ranks]


def test_summary_of_two_classes_by_hand():
    """Each figure of the summary from the records, written out: delivery counts, refused and single-token requests do not everywhere."""
    rng = np.random.default_rng(5)
    count = 400
    requests = RequestArrays(
        np.sort(rng.random(count) * 20), rng.integers(1, 60, count), rng.integers(1, 4, count), rng.integers(0, 2, count), ("a", "b")
    )
    model = StepModel(LINEAR, 1e30, 1e30, 0, 0, 0, 0, 0, 0, fixed_s=0.02, per_token_s=2e-3)
    limits = Deadlines((0.8, 0.6), (0.9, float("inf")), (0.14, 0.15), (float("inf"), 0.13))
    engine = EngineParameters(max_num_seqs=8, token_budget=64, admission_limit=10, delivery_s=0.01)
    result = simulate(requests, engine, model, deadlines=limits)
    summary = summarise(result)
    assert 0 < (result.records["status"] == Status.OVER_LIMIT).sum() < count
    for place, name in enumerate(("a", "b")):
        one = summary.by_class[name]
        r, output = (values[requests.klass == place] for values in (result.records, requests.output))
        done, several = r["status"] == Status.FINISHED, (r["status"] == Status.FINISHED) & (output > 1)
        ttft, e2e = r["first"] - r["arrival"] + 0.01, r["last"] - r["arrival"] + 0.01
        tpot = (r["last"] - r["first"]) / np.maximum(output - 1, 1)
        good = done & (ttft <= limits.ttft[place]) & (e2e <= limits.e2e[place]) & (r["max_gap"] <= limits.itl[place])
        good &= tpot <= limits.tpot[place]
        assert 0 < good.sum() < done.sum()
        assert (one.requests, one.finished, one.good, one.refused) == (len(r), done.sum(), good.sum(), len(r) - done.sum())
        queue, gap = r["scheduled"] - r["arrival"], r["max_gap"]
        for told, values in (
            (one.ttft, ttft[done]), (one.e2e, e2e[done]), (one.queue, queue[done]), (one.tpot, tpot[several]), (one.max_itl, gap[several])
        ):  # fmt: skip
            ordered = np.sort(values)
            wanted = [ordered[nearest_rank(len(values), percent) - 1] for percent in (50, 90, 95, 99)]
            np.testing.assert_allclose([told.p50, told.p90, told.p95, told.p99, told.max, told.mean], [*wanted, ordered[-1], values.mean()])
    assert summary.overall.good == summary.by_class["a"].good + summary.by_class["b"].good


def test_those_not_yet_begun_are_waiting():
    """Two wait at half time, three at the end of the arrivals, 5 s later; refused ones and one never arrived do not count.

    Whom a full engine refuses is told at the end of the iteration in which they came, and has not waited.
    """
    records = np.zeros(8, RESULT)
    records["arrival"] = [0, 4, 5, 7, 10, -1, 4, 9]
    records["scheduled"] = [0, 11, 12, 13, -1, -1, -1, -1]
    records["last"] = [1, 14, 14, 15, 10, -1, 6, 11]
    records["status"][[4, 6, 7]] = Status.TOO_LARGE, Status.OVER_LIMIT, Status.OVER_LIMIT
    totals, everything = np.zeros(1, statistics.TOTALS), np.zeros(0, np.int64)
    metrics = np.empty((statistics.METRICS, 8))
    statistics.measure(records, np.ones(8, np.int64), everything, -1, np.zeros((0, 4)), 0.0, 5.0, 10.0, metrics, totals)
    assert totals[["waiting_half", "waiting_last"]].tolist() == [(2, 3)]


def test_the_gaps_of_few_long_answers_are_exact():
    """Random rounds make almost every gap an entry of its own: 3 requests, thousands of gaps."""
    model = StepModel(LINEAR, 1e30, 1e30, 0, 0, 0, 0, 1, 0, fixed_s=0.01, per_byte_s=1e-6)
    engine = EngineParameters(max_num_seqs=4, token_budget=128, kv_bytes_per_token=1.0, draft_tokens=1, acceptance=(0.1,))
    summary = summarise(simulate(RequestArrays(np.arange(3.0), np.full(3, 9), np.full(3, 3000)), engine, model, seed=1))
    assert summary.itl_resolution == 0.0
    assert summary.itl.count > 3 * 2000


def test_a_full_log_folds_into_bins_of_the_stated_width():
    """The same run with room for 200 entries and with room for all: percentiles agree within the resolution, the rest exactly."""
    rng = np.random.default_rng(3)
    requests = RequestArrays(np.sort(rng.random(300) * 60), rng.integers(1, 300, 300), rng.integers(1, 50, 300))
    model = StepModel(LINEAR, 1e30, 1e30, 0, 0, 0, 0, 1, 0, fixed_s=0.01, per_token_s=1e-4, per_byte_s=1e-6)
    engine = EngineParameters(max_num_seqs=32, token_budget=128, kv_bytes_per_token=1.0)
    exact = summarise(simulate(requests, engine, model))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("models.simulate.GAP_LOG", 200)
        binned = summarise(simulate(requests, engine, model))
    assert (exact.itl_resolution, binned.itl_resolution) == (0.0, 2.0**-14)
    assert (exact.itl.count, exact.itl.mean, exact.itl.max) == (binned.itl.count, binned.itl.mean, binned.itl.max)
    for name in ("p50", "p90", "p95", "p99"):
        assert getattr(binned.itl, name) == pytest.approx(getattr(exact.itl, name), rel=2.0**-14)
