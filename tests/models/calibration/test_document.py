"""A posterior survives its document; broken documents are refused; the calibration it becomes predicts the same steps."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from models.calibration.document import Scope, calibrated, from_document, to_document
from models.calibration.evidence import from_steps, step_of
from models.calibration.posterior import interval
from models.calibration.step_fit import fit_steps
from models.calibration.template import step_template
from models.catalog.calibrations_catalog import load_calibration
from models.catalog.devices import load_device
from models.catalog.step_prior import PARALLEL, step_prior
from models.describe.calibration import Calibration, Source
from models.errors import CalibrationError, NotCoveredError
from models.kernels.step import floor_seconds, step_seconds
from models.readers.load import load_architecture

ARCH, DEVICE = load_architecture("Qwen/Qwen3-8B"), load_device("rtx-pro-6000-ws")
KV = 147456


def steps():
    """A device at 0.6 of its compute and 0.8 of its bandwidth, 5 ms of host time."""
    model = step_template(ARCH, DEVICE)._replace(matmul_efficiency=0.6, bandwidth_efficiency=0.8, attention_efficiency=0.4, host_s=5e-3,
                                                 host_overlap=0.5, overlap=0.5)  # fmt: skip
    found = []
    for shape in ([(1, 100)], [(1, 2000)] * 16, [(1, 8000)] * 32, [(512, 0)], [(4096, 0)], [(2048, 4096)], [(16, 0)], [(1, 500)] * 128):
        o = step_of(shape, kv_bytes_per_token=KV, seconds=1.0)
        t = float(step_seconds(model, o.new_tokens, o.head_rows, o.pairs, o.kv_bytes, o.sequences))
        found.append(step_of(shape, kv_bytes_per_token=KV, seconds=t))
    return found


def posterior():
    return fit_steps(from_steps(steps()), step_template(ARCH, DEVICE), step_prior())


SCOPE = Scope("rtx-pro-6000-ws", "vllm", "0.23", "Qwen/Qwen3-8B", "bf16", 1, cuda_graphs=False, layers=36)
SOURCES = (Source(what="steps", reference="synthetic", date="2026-11-29"),)


def test_template_is_the_floor():
    """Qwen3-8B at batch 1: 2 bytes of each parameter that is read, over 1.792 TB/s (8.6 ms in the chapter)."""
    t = step_template(ARCH, DEVICE)
    assert step_seconds(t, 1.0, 1.0, 2048.0, 2048.0 * KV, 1.0) == floor_seconds(t, 1.0, 1.0, 2048.0, 2048.0 * KV)
    assert float(floor_seconds(t, 1.0, 1.0, 2048.0, 2048.0 * KV)) == pytest.approx(8.62e-3, rel=0.01)
    two = step_template(ARCH, DEVICE, tensor_parallel=2)
    assert two.peak_flops == 2 * t.peak_flops
    assert two.weight_bytes == pytest.approx(t.weight_bytes, rel=1e-3)


def test_document_round_trip_through_json():
    first = posterior()
    again = from_document(json.loads(json.dumps(to_document(first))))
    evidence, template = from_steps(steps()), step_template(ARCH, DEVICE)
    a, b = (interval(p, evidence, template) for p in (first, again))
    assert np.array_equal(a.low, b.low)
    assert np.array_equal(a.high, b.high)
    assert again.outliers == first.outliers


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"extra": 1},
        {"mean": [math.nan] * 8},
        {"mean": [0.5] * 8},  # exp(0.5): efficiencies above 1
        {"mean": [0.0]},
        {"covariance": [[-1.0]]},
        {"covariance": (-np.eye(8)).tolist()},
        {"noise_sd": 0.0},
        {"noise_sd": "much"},
        {"runs": -1},
    ],
)
def test_broken_documents_are_refused(change):
    with pytest.raises(CalibrationError):
        from_document(to_document(posterior()) | change)
    with pytest.raises(CalibrationError):
        from_document({})


def test_the_calibration_names_its_scope_and_holds_the_parameters():
    fitted = posterior()
    found = calibrated(fitted, load_calibration("none"), SCOPE, name="mine", version="3", sources=SOURCES)
    assert Calibration.model_validate(found.model_dump()) == found
    assert (found.name, found.version, found.device, found.model) == ("mine", "3", "rtx-pro-6000-ws", "Qwen/Qwen3-8B")
    assert found.decode.bandwidth_efficiency == pytest.approx(0.8, rel=0.15)
    assert found.decode.host_eager_s == fitted.value("host_s")
    assert found.uncertainty.decode_log_sd < load_calibration("none").uncertainty.decode_log_sd


def test_collective_time_becomes_latency_of_one_all_reduce():
    prior = step_prior(PARALLEL)
    fitted = fit_steps(from_steps([]), step_template(ARCH, DEVICE, tensor_parallel=2), prior)
    found = calibrated(fitted, load_calibration("none"), SCOPE, name="a", version="1", sources=SOURCES)
    assert found.decode.all_reduce_latency_s == pytest.approx(5e-4 / (2 * 36))


def test_only_physical_calibrations_can_be_fitted():
    with pytest.raises(NotCoveredError, match="physical"):
        calibrated(posterior(), load_calibration("chapter8"), SCOPE, name="a", version="1", sources=SOURCES)
