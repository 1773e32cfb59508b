"""Intervals of plans after calibration, on engines of known parameters: drawn anew each time, measured with noise, fitted, planned, run."""

import math

import numpy as np
import pytest

from db.database import database_url, open_database
from models.catalog.calibrations_catalog import load_calibration
from planner.options import Options
from planner.plan import plan
from planner.recalibrate import recalibrate
from planner.run_groups import Wanted
from planner.stored_calibrations import CalibrationsUpTo
from tests.oracles import measured_steps as made
from tests.planner.test_recalibrate import put

DRAWS = 16
NOISE = 0.07  # about what the prior believes of one measurement; the caps below keep noisy runs above the floor
SHAPES = ([(1, 500)] * 8, [(1, 4000)] * 8, [(1, 4000)] * 32, [(1024, 0)], [(4096, 0)], [(8192, 0)])
SCENARIO = {
    "model": made.MODEL, "hardware": {"device": made.DEVICE}, "engine": {"name": "vllm", "version": "0.23"},
    "workload": {"long": {"prompt_tokens": 2048, "output_tokens": 128, "arrivals": {"burst": 16}, "slo": {"e2e": "60 s"}}},
    "candidates": {"all": {"max_num_seqs": 16, "max_num_batched_tokens": 8192}, "half": {"max_num_seqs": 8}},
}  # fmt: skip
OPTIONS = Options(explain=False, launch=False)


class Known:
    """A lookup of one calibration, which holds the true parameters."""

    def __init__(self, true):
        base = load_calibration("none")
        change = {"matmul_efficiency": true["matmul"], "attention_efficiency": true["attention"], "bandwidth_efficiency": true["bandwidth"],
                  "overlap": true["overlap"], "half_rows": 0.0, "host_eager_s": true["host"], "host_graph_s": true["host"],
                  "host_overlap": true["host_overlap"], "host_per_sequence_s": 0.0}  # fmt: skip
        forms = {phase: getattr(base, phase).model_copy(update=change) for phase in ("prefill", "decode")}
        self.calibration = base.model_copy(update=forms | {"name": "true"})

    def named(self, _name, /):
        return self.calibration

    def newest(self):
        return (self.calibration,)

    def posterior(self, _calibration, /):
        return None


def drawn(rng):
    """An engine from the spread that engineers expect of engines."""
    return {
        "matmul": min(0.65 * math.exp(0.2 * rng.standard_normal()), 0.78),
        "attention": min(0.4 * math.exp(0.3 * rng.standard_normal()), 0.9),
        "bandwidth": min(0.75 * math.exp(0.15 * rng.standard_normal()), 0.78), "host": 2e-3 * math.exp(0.7 * rng.standard_normal()),
        "overlap": rng.uniform(0.2, 1.0), "host_overlap": rng.uniform(0.2, 1.0),
    }  # fmt: skip


@pytest.fixture(scope="module")
def covered(tmp_path_factory):
    """Whether each interval of a calibrated plan holds what one run of the true engine takes, and its width in log."""
    inside, width = [], []
    for seed in range(DRAWS):
        rng, home = np.random.default_rng(seed), tmp_path_factory.mktemp("home")
        true = drawn(rng)
        opened = open_database(database_url(home))
        put(opened, made.step_table(home / "steps.csv", SHAPES, noise=NOISE, seed=seed, true=true), made.COLUMNS)
        recalibrate(opened.runs, opened.calibrations, Wanted(), today="2026-11-29")
        lookup = CalibrationsUpTo(opened.calibrations, opened.calibrations.horizon())
        answer = plan(SCENARIO | {"calibration": "latest"}, Options(explain=False, launch=False, stored=lookup))
        opened.close()
        assert answer.calibration.name != "none"
        truth = plan(SCENARIO | {"calibration": "true"}, Options(explain=False, launch=False, stored=Known(true)))
        times = {one.id: one.time for one in truth.configurations}
        for one in answer.configurations:
            assert set(one.intervals) == {"e2e_s", "ttft_s", "itl_s", "tpot_s"}
            for name, (low, high) in one.intervals.items():
                run = getattr(times[one.id], name).max * math.exp(NOISE * rng.standard_normal())
                inside.append(low <= run <= high)
                width.append(math.log(high / low))
    return np.array(inside), np.array(width)


def test_nine_of_ten_runs_lie_within_their_interval(covered):
    """Intervals of one engine move together, so the count of engines decides how exact the share can be."""
    inside, _ = covered
    assert inside.mean() >= 0.9 - 2 * math.sqrt(0.09 / DRAWS)


def test_measured_intervals_are_narrower_than_the_specification_s(covered):
    _, width = covered
    alone = plan(SCENARIO | {"calibration": "none"}, OPTIONS)
    wide = [math.log(high / low) for one in alone.configurations for low, high in one.intervals.values()]
    assert np.median(width) < np.median(wide) / 2
