"""Borrowing along the hierarchy of devices: against devices drawn from a known one, and through the store."""

import math

import numpy as np
import pytest

from db.database import database_url, open_database
from models.calibration.posterior import Posterior
from models.calibration.prior import Prior
from planner.ports import StoredCalibration
from planner.recalibrate import recalibrate
from planner.relatives import CIRCLES, Relative, borrowed, relatives_of
from planner.run_groups import Key, Wanted
from tests.oracles import measured_steps as made
from tests.planner.test_recalibrate import put

PARAMETERS = 400  # independent draws of the whole hierarchy
NAMES = tuple(f"p{i}" for i in range(PARAMETERS))
SPREADS = (0.25, 0.15, 0.1, 0.06)
"""Between families, between chips of a family, between devices of a chip, between models on a device: log standard deviations."""
MEASURED = 0.03


def hierarchy(members, seed):
    """The true values of a new model on a new device, and fits of ``members`` of each circle around it."""
    rng = np.random.default_rng(seed)

    def around(center, level):
        return center + SPREADS[level] * rng.standard_normal(PARAMETERS)

    world = 0.3 * rng.standard_normal(PARAMETERS)
    family = around(world, 0)
    chip = around(family, 1)
    device = around(chip, 2)
    truth = around(device, 3)

    def fit(circle):
        above = {CIRCLES[0]: (world, 0), CIRCLES[1]: (family, 1), CIRCLES[2]: (chip, 2), CIRCLES[3]: (device, 3)}
        value, level = above[circle]
        for at in range(level, 4):
            value = around(value, at)
        seen = value + MEASURED * rng.standard_normal(PARAMETERS)
        covariance = MEASURED**2 * np.eye(PARAMETERS)
        posterior = Posterior(NAMES, seen, covariance, np.full(PARAMETERS, np.inf), 0.05, np.array([]), (), 9)
        return Relative("other", 1, circle, "device", posterior)

    return truth, [fit(circle) for circle, count in zip(CIRCLES, members, strict=True) for _ in range(count)]


@pytest.mark.parametrize("members", [(4, 0, 0, 0), (4, 3, 0, 0), (4, 3, 3, 0), (4, 3, 3, 3), (0, 0, 3, 0), (0, 0, 0, 1), (1, 1, 1, 1)])
def test_a_new_member_is_predicted_better_than_the_specification_and_covered(members):
    """Central 90 % intervals of 400 true values hold at least that many, less sampling; with few members they are wider than needed."""
    whole = math.sqrt(0.3**2 + sum(s**2 for s in SPREADS))
    specification = Prior(NAMES, (0.0,) * PARAMETERS, (whole,) * PARAMETERS, (math.inf,) * PARAMETERS, 0.05, 4)
    truth, relatives = hierarchy(members, seed=sum(members))
    found = borrowed(relatives, specification)
    error, alone = np.abs(truth - np.array(found.mean)), np.abs(truth)
    assert np.median(error) < 0.9 * np.median(alone)
    assert np.mean(error <= 1.645 * np.array(found.sd)) >= 0.9 - 2 * math.sqrt(0.09 / PARAMETERS)
    assert np.mean(found.sd) < whole


def test_each_nearer_circle_sharpens_the_prediction():
    specification = Prior(NAMES, (0.0,) * PARAMETERS, (0.5,) * PARAMETERS, (math.inf,) * PARAMETERS, 0.05, 4)
    truth, relatives = hierarchy((4, 4, 4, 4), seed=3)
    errors, widths = [], []
    for nearest in range(4):
        known = [r for r in relatives if CIRCLES.index(r.circle) <= nearest]
        found = borrowed(known, specification)
        errors.append(np.median(np.abs(truth - np.array(found.mean))))
        widths.append(np.mean(found.sd))
    assert errors == sorted(errors, reverse=True)
    assert widths == sorted(widths, reverse=True)


def stored(name, device, model="Qwen/Qwen3-8B", *, engine="vllm", tensor_parallel=1, version=1):
    described = {"device": device, "model": model, "engine": engine, "cuda_graphs": True, "weight_format": "bf16",
                 "tensor_parallel": tensor_parallel}  # fmt: skip
    fit = {"schema": 1, "names": ["a"], "mean": [0.0], "covariance": [[1.0]], "most": [None], "noise_sd": 0.1, "residuals": [],
           "outliers": [], "runs": 1}  # fmt: skip
    return StoredCalibration(
        number=version, name=name, version=version, created_at="2026-11-29", document={"calibration": described, "fit": fit}, run_ids=()
    )


def test_circles_from_the_device_outwards():
    """H200 and H100 are one chip, an L40S and a 4090 one family, and a card that the catalogue lost is any device."""
    key = Key("h100-sxm-80", "vllm", "Qwen/Qwen3-14B", "bf16", 1, True)
    known = [
        stored("own", "h100-sxm-80", "Qwen/Qwen3-14B"), stored("tp2", "h100-sxm-80", "Qwen/Qwen3-14B", tensor_parallel=2),
        stored("here", "h100-sxm-80"), stored("chip", "h200-sxm-141"), stored("chip-same-model", "h200-sxm-141", "Qwen/Qwen3-14B"),
        stored("far", "l40s"), stored("lost", "a-card-of-old"), stored("sglang", "h200-sxm-141", engine="sglang"),
    ]  # fmt: skip
    found = [(r.name, r.circle) for r in relatives_of(key, known)]
    assert found == [("tp2", "same device"), ("here", "same device"), ("chip-same-model", "same chip"), ("far", "another device"),
                     ("lost", "another device")]  # fmt: skip
    ada = Key("rtx4090", "vllm", "Qwen/Qwen3-8B", "bf16", 1, True)
    assert [r.circle for r in relatives_of(ada, [stored("l4", "l4"), stored("l40s", "l40s")])] == ["same chip", "same family"]
    assert str(relatives_of(ada, [stored("l40s", "l40s")])[0]) == "l40s@1 (same chip: l40s)"


def test_a_new_device_borrows_from_its_class_through_the_store(tmp_path):
    """One step on a second card of the chip: what it does not measure comes from the first card, not from the specification."""
    opened = open_database(database_url(tmp_path / "home"))
    put(opened, made.step_table(tmp_path / "steps.csv"), made.COLUMNS)
    recalibrate(opened.runs, opened.calibrations, Wanted(), today="2026-11-29")
    (tmp_path / "one.csv").write_text("kind,batch,new,context,ms\ndecode,1,1,1000,14.0\n")
    put(opened, tmp_path / "one.csv", made.COLUMNS, device="rtx5090")
    _, fitted = recalibrate(opened.runs, opened.calibrations, Wanted(device="rtx5090"), today="2026-11-29")[0]
    assert fitted.borrowed == ("rtx-pro-6000-ws-vllm-Qwen3-8B-bf16@1 (same chip: rtx-pro-6000-ws)",)
    at = fitted.posterior.names.index("matmul_efficiency")  # one decode step says nothing of it
    assert math.sqrt(fitted.posterior.covariance[at, at]) < 0.25  # the specification's width
    assert abs(fitted.posterior.mean[at] - math.log(made.TRUE["matmul"])) < abs(math.log(0.65) - math.log(made.TRUE["matmul"]))
    opened.close()


def test_unchanged_runs_make_no_new_version(tmp_path):
    """Two groups that may borrow from each other settle; the day alone is no news, a further run is."""
    opened = open_database(database_url(tmp_path / "home"))

    def versions(day):
        return [(stored.name, stored.version) for stored, _ in recalibrate(opened.runs, opened.calibrations, Wanted(), today=day)]

    put(opened, made.step_table(tmp_path / "steps.csv"), made.COLUMNS)
    put(opened, made.step_table(tmp_path / "eager.csv", seed=3), made.COLUMNS, tensor_parallel="2")
    assert [v for _, v in versions("2026-11-29")] == [1, 1]
    assert [v for _, v in versions("2026-11-29")] == [2, 2]  # each now has the other to borrow from
    assert [v for _, v in versions("2026-11-30")] == [2, 2]
    assert len(list(opened.calibrations.list())) == 4
    put(opened, made.step_table(tmp_path / "more.csv", [[(1, 700)] * 4], seed=4), made.COLUMNS, tensor_parallel="2")
    changed = dict(versions("2026-11-30"))
    assert changed.pop(next(name for name in changed if name.endswith("tp2"))) == 3
    assert list(versions("2026-11-30")) == list(versions("2026-12-01"))
    opened.close()
