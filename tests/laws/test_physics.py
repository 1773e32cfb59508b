"""No prediction beats the device, memory and time grow with what they hold and do, and offload behaves like its events."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import facts
from models.catalog.calibrations_catalog import load_calibration
from models.catalog.devices import device_ids, load_device
from models.kernels.burst import footprint, with_copies
from models.lower import lower
from models.offload import step_seconds
from models.readers.load import load_architecture
from models.service import evaluate
from models.step_time import prefill_seconds, prefill_steps, round_seconds
from planner.resolve import main_precision, resolve
from planner.scenario_file import parse_scenario
from solvers.space import build_space
from tests.laws.support import examples, grid_of, scenarios

MODELS = ("Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V2-Lite", "Qwen/Qwen3-Next-80B-A3B-Instruct")
CALIBRATIONS = ("none", "chapter8", "chapter8-table", "chapter8-scheduler")
BATCHES = np.array([1, 2, 16, 100, 512])
BUDGETS = np.array([16, 512, 8192, 1 << 20])
ONE = np.ones(1, dtype=np.int64)
PREFIX = 1000 // 16 * 16  # full blocks of the shared prefix


@pytest.fixture(scope="module")
def plain_case():
    """A case that other tests replace model, device and calibration of."""
    raw = {
        "model": MODELS[0], "hardware": {"device": "rtx-pro-6000-ws"}, "engine": {"name": "vllm", "version": "0.33"},
        "calibration": "none", "search": {"kv_format": ["bf16", "fp8_e4m3"], "draft": ["none", "lookup"], "prefix_sharing": [False, True]},
        "workload": {"traffic": {
            "prompt_tokens": 4096, "output_tokens": 64, "shared_prefix_tokens": 1000, "arrivals": {"burst": 512},
            "speculation": {"lookup": {"acceptance": [0.5, 0.5, 0.5]}},
        }},
    }  # fmt: skip
    return resolve(parse_scenario(raw))


@pytest.mark.parametrize("calibration", CALIBRATIONS)
@pytest.mark.parametrize("model", MODELS)
def test_no_step_beats_any_device(plain_case, model, calibration):
    """The floor is worked out here from sizes alone: parameters, stored bytes, peaks; a shared prefix read once, a state read once."""
    arch = load_architecture(model)
    case = replace(
        plain_case, weights={main_precision(arch): arch}, stored_format=main_precision(arch), calibration=load_calibration(calibration),
        scenario=plain_case.scenario,
    )  # fmt: skip
    case = replace(case, calibration=case.calibration.model_copy(update={"weight_format": None, "cuda_graphs": None}))
    sizes = _Sizes(arch)
    for device in map(load_device, device_ids()):
        if "bf16" not in device.peaks and "fp16" not in device.peaks:
            continue
        here = replace(case, device=device)
        peak = max(device.peaks.get("bf16", 0.0), device.peaks.get("fp16", 0.0))
        axes = build_space(here).axes
        k = lower(here, axes).shaped(-1, 1)
        seconds = round_seconds(here.calibration, k, BATCHES)
        for i, branch in enumerate(axes.branches()):
            floor = sizes.round_floor(device.memory_bandwidth_bytes_per_s, peak, branch)
            assert np.all(seconds[i] >= floor * (1 - 1e-12)), (device.id, branch)
        _check_prefill(here, k, axes, sizes, peak)


class _Sizes:
    """What a model stores and computes, worked out once."""

    def __init__(self, arch) -> None:
        self.read = facts.weight_read(arch)
        self.flops_a_row = 2 * (facts.linear_parameters(arch) + arch.hidden * arch.vocabulary)
        self.kv = {(t, f): facts.kv_bytes(arch, t, f) for t in (4096, PREFIX) for f in ("bf16", "fp8_e4m3")}
        self.prefill = {cached: facts.prefill_flops(arch, 4096 - cached, cached) for cached in (0, PREFIX)}

    def weights(self, rows):
        return self.read.fixed + self.read.experts * (1 - (1 - self.read.expert_fraction) ** rows)

    def round_floor(self, bandwidth: float, peak: float, branch) -> np.ndarray:
        rows = BATCHES * (branch.speculation[1] + 1)
        once = self.kv[PREFIX, branch.kv_format] if branch.prefix_sharing else 0
        kv = BATCHES * self.kv[4096, branch.kv_format] - (BATCHES - 1) * once
        return np.maximum((self.weights(rows) + kv) / bandwidth, rows * self.flops_a_row / peak)


def _check_prefill(case, k, axes, sizes: _Sizes, peak: float) -> None:
    bandwidth = case.device.memory_bandwidth_bytes_per_s
    for c in BUDGETS.tolist():
        seconds, steps = prefill_seconds(case.calibration, k, BATCHES, ONE * c), prefill_steps(k, BATCHES, ONE * c)
        for i, branch in enumerate(axes.branches()):
            cached = PREFIX if branch.prefix_sharing else 0
            total, n = BATCHES * (4096 - cached), steps[i]
            full = np.minimum(c, -(-total // n))
            reads = (n - 1) * sizes.weights(full) + sizes.weights(total - (n - 1) * full)
            floor = np.maximum(reads / bandwidth, BATCHES * sizes.prefill[cached] / peak)
            assert np.all(seconds[i] >= floor * (1 - 1e-9)), (case.device.id, branch, c)


@examples(60)
@given(scenarios())
def test_memory_and_time_grow_with_the_batch(raw):
    grid = grid_of(raw)
    k = grid.columns.shaped(-1, 1)
    b = np.arange(1, 65).reshape(1, -1)
    rows = lower_rows(k)
    held = footprint(k, b, ONE * 8192, ONE * 0)
    assert held.total.dtype == held.pool.dtype == held.kv.dtype == np.int64
    for part in (held.kv, held.draft, held.activation, held.total, held.pool):
        assert np.all(np.diff(np.broadcast_to(part, (len(rows), 64)), axis=1) >= 0)
    parts = held.weights + held.kv + held.draft + held.prefetch + held.activation + held.graphs
    assert np.array_equal(np.broadcast_to(held.total, parts.shape), parts)
    seconds = np.broadcast_to(round_seconds(grid.case.calibration, k, b), (len(rows), 64))
    assert np.all(np.isfinite(seconds))
    assert np.all(np.diff(seconds, axis=1) >= -1e-12)


def lower_rows(k) -> np.ndarray:
    return np.asarray(k.rows_per_sequence).ravel()


@examples(40)
@given(scenarios(), st.integers(1, 200))
def test_a_longer_answer_never_needs_less(raw, more):
    short = grid_of(raw)
    traffic = raw["workload"]["traffic"]
    longer = grid_of(raw | {"workload": {"traffic": traffic | {"output_tokens": traffic["output_tokens"] + more}}})
    args = (short.b.reshape(1, -1), ONE * short.case.requests, short.c[-1:], ONE * 0)
    low, high = (evaluate(g.case, g.columns.shaped(-1, 1), *args) for g in (short, longer))
    for part in ("kv", "draft", "pool", "total"):
        assert np.all(getattr(low.memory, part) <= getattr(high.memory, part))
    form = short.case.calibration.decode
    if getattr(form, "context", "prompt") == "prompt" and short.case.calibration.name != "none":
        assert np.all(low.makespan_us <= high.makespan_us)


@examples(60)
@given(st.integers(1, 12), st.integers(1, 9), st.floats(0.0, 0.02), st.floats(0.0, 0.02), st.sampled_from([1, 2]), st.integers(1, 30))
def test_offload_against_its_events(groups, apart, layer_s, copy_s, buffers, steps):
    """One copy engine, one compute stream, ``buffers`` slots; each offloaded layer is the first of its group of ``apart`` layers.

    In the long run a step takes exactly the formula's time; a cold start adds at most the first copies.
    """
    layers = groups * apart
    slots = [0.0] * buffers  # when each buffer is free again
    engine = compute = 0.0
    for n in range(steps * layers):
        if n % apart == 0:
            slot = (n // apart) % buffers
            engine = max(engine, slots[slot]) + copy_s
            compute = max(compute, engine) + layer_s
            slots[slot] = compute
        else:
            compute += layer_s
    formula = steps * step_seconds(layers * layer_s, groups, layers, groups * copy_s, buffers)
    assert compute >= formula - (apart - 1) * layer_s - 1e-9  # the last group ends before the next copy is due
    assert compute <= formula + copy_s + layer_s + 1e-9


@examples(60)
@given(scenarios(), st.integers(0, 2**30))
def test_integer_phases_are_the_offload_formula_rounded_up(raw, seed):
    grid = grid_of(raw)
    random = Random(seed)
    k = grid.columns
    compute, steps = np.full(len(k.buffers), random.randint(1, 10**7)), np.full(len(k.buffers), random.randint(1, 300))
    o = np.where(k.buffers > 0, random.randint(1, 24), 0)
    found = with_copies(compute, steps, k, o)
    for i in range(len(found)):
        copies = int(steps[i]) * int(o[i]) * int(k.copy_us_per_layer[i]) if o[i] else 0
        exact = step_seconds(int(compute[i]), int(o[i]), int(k.model_layers[i]), copies, int(k.buffers[i]))
        assert exact - 1e-6 * exact <= found[i] <= exact + 1
