"""The fit of the physical step model: truths recovered, priors kept, outliers named, impossible runs refused, drift seen."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from models.calibration.evidence import ServingObservation, from_serving, from_steps, joined, step_of
from models.calibration.posterior import Posterior, borrow, drift, interval, to_physical
from models.calibration.prior import Prior
from models.calibration.step_fit import bootstrap, fit_steps
from models.catalog.calibrations_catalog import load_calibration
from models.catalog.step_prior import SINGLE, step_prior
from models.describe.calibration import Physical
from models.errors import CalibrationError, UnknownNameError
from models.kernels.step import PHYSICAL, StepModel, step_seconds

# an 8-billion-parameter dense model on a device of 500 TFLOP/s and 1.8 TB/s
TEMPLATE = StepModel(PHYSICAL, 5e14, 1.8e12, 1.4e10, 1.2e9, 6e5, 1.6e10, 0.0, 0.0)
TRUTH = TEMPLATE._replace(matmul_efficiency=0.62, attention_efficiency=0.35, bandwidth_efficiency=0.81, half_rows=20.0, overlap=0.4,
                          host_s=3e-3, host_per_sequence_s=2e-5, host_overlap=0.7)  # fmt: skip
KV = 147456


def made(count, noise, seed=0, truth=TRUTH):
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        if i % 2:
            batch, context = int(2 ** rng.uniform(0, 7)), int(2 ** rng.uniform(7, 13))
            shape = [(1, context)] * batch
        else:
            shape = [(int(2 ** rng.uniform(5, 13)), int(rng.integers(0, 4096)))]
        o = step_of(shape, kv_bytes_per_token=KV, seconds=1.0)
        t = step_seconds(truth, o.new_tokens, o.head_rows, o.pairs, o.kv_bytes, o.sequences) * math.exp(rng.normal(0, noise))
        found.append(step_of(shape, kv_bytes_per_token=KV, seconds=float(t), source=f"s{i}"))
    return found


def errors(posterior, truth_steps):
    evidence = from_steps(truth_steps)
    return np.abs(np.exp(evidence.predict(posterior.step_model(TEMPLATE)) - evidence.measured) - 1)


def test_composition_of_a_step():
    """Two decodes at contexts 10 and 20 and a chunk of 4 after 6: pairs 11 + 21 + (4 x 6 + 4 x 5 / 2)."""
    o = step_of([(1, 10), (1, 20), (4, 6)], kv_bytes_per_token=100, seconds=1.0)
    assert (o.new_tokens, o.head_rows, o.sequences) == (6, 3, 3)
    assert o.pairs == 11 + 21 + 34
    assert o.kv_bytes == (11 + 21 + 10) * 100


def test_no_run_answers_with_the_prior():
    posterior = fit_steps(from_steps([]), TEMPLATE, step_prior())
    assert posterior.runs == 0
    assert posterior.value("matmul_efficiency") == pytest.approx(0.65)
    found = interval(posterior, from_steps(made(4, 0.0)), TEMPLATE)
    assert (found.low < found.median).all()
    assert (found.high / found.low > 1.2).all()


def test_truth_is_recovered_from_many_steps():
    posterior = fit_steps(from_steps(made(300, 0.02)), TEMPLATE, step_prior())
    for name in ("matmul_efficiency", "attention_efficiency", "bandwidth_efficiency"):
        assert posterior.value(name) == pytest.approx(getattr(TRUTH, name), rel=0.06), name
    assert posterior.noise_sd == pytest.approx(0.02, rel=0.25)
    assert np.median(errors(posterior, made(100, 0.0, seed=9))) < 0.01


def test_five_steps_already_help():
    test = made(100, 0.0, seed=9)
    before = np.median(errors(fit_steps(from_steps([]), TEMPLATE, step_prior()), test))
    after = np.median([np.median(errors(fit_steps(from_steps(made(5, 0.02, seed=s)), TEMPLATE, step_prior()), test)) for s in range(10)])
    assert after < 0.08
    assert after < before / 2


def test_intervals_cover_held_out_steps():
    inside = []
    for seed in range(8):
        posterior = fit_steps(from_steps(made(20, 0.05, seed=seed)), TEMPLATE, step_prior())
        new = from_steps(made(60, 0.05, seed=100 + seed))
        found = interval(posterior, new, TEMPLATE)
        inside.append((np.exp(new.measured) >= found.low) & (np.exp(new.measured) <= found.high))
    assert 0.85 <= np.mean(inside) <= 0.97


def test_covariance_agrees_with_the_bootstrap():
    steps = made(60, 0.05)
    target = from_steps(made(20, 0.0, seed=5))
    spread, posterior = bootstrap(from_steps(steps), TEMPLATE, step_prior(), target, draws=25, seed=0)
    linear = np.sqrt(interval(posterior, target, TEMPLATE).log_sd ** 2 - posterior.noise_sd**2)
    assert 0.5 < np.median(spread / linear) < 1.6


def test_outliers_are_named_and_do_not_pull():
    steps = made(40, 0.02)
    spoiled = [replace(s, seconds=s.seconds * (4 if s.source in {"s7", "s20"} else 1)) for s in steps]
    posterior = fit_steps(from_steps(spoiled), TEMPLATE, step_prior())
    assert set(posterior.outliers) == {"s7", "s20"}
    assert np.median(errors(posterior, made(100, 0.0, seed=9))) < 0.03


@pytest.mark.parametrize(("factor", "hint"), [(1e-3, "milliseconds"), (0.3, "wrong device")])
def test_runs_that_beat_the_floor_are_refused_by_name(factor, hint):
    steps = made(10, 0.0)
    fast = [replace(s, seconds=s.seconds * factor) for s in steps]
    with pytest.raises(CalibrationError, match="faster than the device can be") as caught:
        fit_steps(from_steps(fast), TEMPLATE, step_prior())
    assert hint in caught.value.way_out


def test_no_fit_can_beat_the_floor():
    ideal = TEMPLATE._replace(matmul_efficiency=1.0, attention_efficiency=1.0, bandwidth_efficiency=1.0, overlap=1.0)
    posterior = fit_steps(from_steps(made(60, 0.0, truth=ideal)), TEMPLATE, step_prior())
    for name in ("matmul_efficiency", "attention_efficiency", "bandwidth_efficiency", "overlap", "host_overlap"):
        assert posterior.value(name) <= 1.0
    evidence = from_steps(made(50, 0.0, seed=3))
    assert (evidence.predict(posterior.step_model(TEMPLATE)) >= evidence.floor(TEMPLATE) - 1e-12).all()


def test_drift_sees_a_slower_machine_and_not_the_same_one():
    posterior = fit_steps(from_steps(made(60, 0.03)), TEMPLATE, step_prior())
    same = drift(posterior, from_steps(made(30, 0.03, seed=50)), TEMPLATE)
    assert not same.drifted
    slower = made(30, 0.03, seed=51)
    slower = [replace(s, seconds=s.seconds * 1.15) for s in slower]
    found = drift(posterior, from_steps(slower), TEMPLATE)
    assert found.drifted
    assert found.bias == pytest.approx(0.15, abs=0.03)
    assert len(found.outside) > found.expected


def test_a_new_model_borrows_from_its_relatives():
    prior = step_prior()
    relatives = [fit_steps(from_steps(made(60, 0.02, seed=s)), TEMPLATE, prior) for s in range(4)]
    borrowed = borrow(relatives, prior)
    at = prior.names.index("bandwidth_efficiency")
    assert math.exp(borrowed.mean[at]) == pytest.approx(0.81, rel=0.02)
    assert borrowed.sd[at] < prior.sd[at]
    test = made(100, 0.0, seed=9)
    alone, helped = (np.median(errors(fit_steps(from_steps([]), TEMPLATE, p), test)) for p in (prior, borrowed))
    assert helped < alone / 2


def test_borrowing_by_hand():
    """Two relatives at 0 and 1 with variance 0.01: between them 0.49 (DerSimonian-Laird), pooled with the specification's 4."""
    relatives = [Posterior(("a",), np.array([v]), np.array([[0.01]]), np.array([np.inf]), 0.1, np.array([]), (), 9) for v in (0.0, 1.0)]
    found = borrow(relatives, Prior(("a",), (0.0,), (2.0,), (math.inf,), 0.1, 4))
    between = (2 * 0.49 + 4.0) / 3
    weight = 1 / (0.01 + between)
    total = 2 * weight + 1 / 4.0
    assert found.mean[0] == pytest.approx(weight / total)
    assert found.sd[0] == pytest.approx(math.sqrt(between + 1 / total))
    assert borrow([], Prior(("a",), (0.0,), (2.0,), (math.inf,), 0.1, 4)).sd == (2.0,)


def loop(concurrency, prompt, output, **measured):
    return ServingObservation(concurrency, prompt, output, KV, **measured)


def test_closed_loop_of_one_client_is_prefill_plus_steps():
    evidence = from_serving([loop(1, 1000, 100, ttft_s=1.0, tpot_s=1.0, output_tokens_per_s=1.0)])
    ttft, tpot, inverse = np.exp(evidence.predict(TRUTH))
    step = step_seconds(TRUTH, 1.0, 1.0, 1050.0, 1050.0 * KV, 1.0)
    prefill = step_seconds(TRUTH, 1000.0, 1.0, 1000 * 1001 / 2, 1000.0 * KV, 1.0)
    assert tpot == pytest.approx(step)  # nobody interferes
    assert ttft == pytest.approx(prefill)
    assert 1 / inverse == pytest.approx(100 / (ttft + 99 * tpot))


def test_requests_beyond_the_slots_wait_for_whole_ones():
    few, many = (from_serving([loop(c, 500, 50, ttft_s=1.0, tpot_s=1.0, slots=8)]) for c in (8, 32))
    (short, tpot_few), (long, tpot_many) = np.exp(few.predict(TRUTH)), np.exp(many.predict(TRUTH))
    assert tpot_few == pytest.approx(tpot_many)
    assert long == pytest.approx(short + 3 * (short + 49 * tpot_few))


def test_serving_results_alone_calibrate_the_step_model():
    loads = [(c, i, o) for c in (1, 8, 32, 128) for i, o in ((512, 128), (4096, 256))]
    blank = from_serving([loop(*x, ttft_s=1.0, tpot_s=1.0) for x in loads])
    times = np.exp(blank.predict(TRUTH)).reshape(-1, 2)
    runs = [loop(*x, ttft_s=float(t[0]), tpot_s=float(t[1]), source=str(x)) for x, t in zip(loads, times, strict=True)]
    posterior = fit_steps(joined([from_serving(runs)]), TEMPLATE, step_prior())
    assert np.median(errors(posterior, made(60, 0.0, seed=9))) < 0.03


def test_the_posterior_becomes_a_description():
    base = load_calibration("none").decode
    assert isinstance(base, Physical)
    posterior = fit_steps(from_steps(made(60, 0.02)), TEMPLATE, step_prior())
    eager, graphs = (to_physical(posterior, base, cuda_graphs=g) for g in (False, True))
    assert eager.bandwidth_efficiency == posterior.value("bandwidth_efficiency")
    assert eager.host_eager_s == graphs.host_graph_s == posterior.value("host_s")
    assert eager.host_graph_s == base.host_graph_s


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_times_that_are_no_times_are_refused(bad):
    with pytest.raises(CalibrationError):
        step_of([(1, 10)], kv_bytes_per_token=KV, seconds=bad)
    with pytest.raises(CalibrationError):
        loop(4, 100, 100, tpot_s=bad)
    with pytest.raises(CalibrationError, match="at least one"):
        loop(4, 100, 100)


def test_unknown_parameters_and_bad_priors_are_refused():
    with pytest.raises(UnknownNameError, match="host_overlap"):
        step_prior([*SINGLE, "host_overlp"])
    with pytest.raises(CalibrationError):
        Prior(("a",), (0.5,), (1.0,), (0.0,), 0.1, 4)  # median above the bound
    with pytest.raises(CalibrationError):
        Prior(("a", "a"), (0.0, 0.0), (1.0, 1.0), (1.0, 1.0), 0.1, 4)


def test_two_attention_kernels_and_a_conversion_are_told_apart():
    """A 16-bit cache has a kernel for few rows, 14 times dearer a pair; an 8-bit one is converted while read: one fit finds both."""
    slow = TRUTH._replace(short_pair_cost=14.0)
    rng = np.random.default_rng(4)
    shapes = [[(1, int(2 ** rng.uniform(7, 13)))] * int(2 ** rng.uniform(0, 6)) for _ in range(20)]
    shapes += [[(int(2 ** rng.uniform(4, 11)), int(rng.integers(0, 4096)))] for _ in range(40)]
    plain, packed = [], []
    for shape in shapes:
        tiled = shape[0][0] >= 64
        n, s = sum(new for new, _ in shape), len(shape)
        pairs = sum(new * cached + new * (new + 1) / 2 for new, cached in shape)
        read = sum(new + cached for new, cached in shape) * KV
        one = float(step_seconds(slow, n, s, pairs * (1 if tiled else 14), read, s))
        plain.append(step_of(shape, kv_bytes_per_token=KV, seconds=one * math.exp(rng.normal(0, 0.01)), tiled_from=64))
        two = float(step_seconds(TRUTH, n, s, pairs, read / 2, s)) + 4e-13 * read / 2
        packed.append(step_of(shape, kv_bytes_per_token=KV / 2, seconds=two * math.exp(rng.normal(0, 0.01))))
    names = (*SINGLE, "short_pair_cost@bf16", "conversion_s_per_byte@fp8_e4m3")
    evidence = joined([from_steps(plain), from_steps(packed, "fp8_e4m3")])
    posterior = fit_steps(evidence, TEMPLATE, step_prior(names, peak_bytes_per_s=TEMPLATE.peak_bytes_per_s))
    assert posterior.value("short_pair_cost@bf16") == pytest.approx(14, rel=0.1)
    assert posterior.value("conversion_s_per_byte@fp8_e4m3") == pytest.approx(4e-13, rel=0.15)
    assert posterior.value("attention_efficiency") == pytest.approx(TRUTH.attention_efficiency, rel=0.06)
    base = load_calibration("none").decode
    assert isinstance(base, Physical)
    described = to_physical(posterior, base, cuda_graphs=True)
    assert set(described.short_pair_cost) == {"bf16"}
    assert described.kv_conversion_s_per_byte["fp8_e4m3"] == posterior.value("conversion_s_per_byte@fp8_e4m3")
