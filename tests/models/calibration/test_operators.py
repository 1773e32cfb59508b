"""Steps from per-operator profiles against the formula that the profiles were written from."""

import numpy as np
import pytest

from models.calibration.operator_fit import Served, fit_scales
from models.calibration.operators import Link, OperatorSteps, Scales, attention_grid, operator_steps
from models.catalog.devices import load_device
from models.errors import FileFormatError, InputError, NotCoveredError
from models.kernels.step import causal_pairs
from models.readers.load import load_architecture
from models.readers.operator_profile import choose_profile, read_operator_profile
from models.simulate import simulate
from models.simulation_types import AttentionGrid, EngineParameters, RequestArrays
from tests.oracles import operator_profiles as formula

DENSE, ROUTED = "Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B"
STEPS = np.array([[0, 0, 1, 100], [0, 0, 37, 900], [300, 0, 0, 0], [700, 1500, 0, 0], [100, 700, 20, 2000], [1500, 0, 200, 5000.0]])


def steps_of(folder, model, degree=1, budget=2048, **more):
    return operator_steps(read_operator_profile(folder, degree), load_architecture(model), budget=budget, **more)


def expected(layers, routed=None):
    return [formula.step(layers, *row, routed=routed) for row in STEPS.tolist()]


def test_a_dense_model_between_the_knots(tmp_path):
    steps = steps_of(formula.write(tmp_path), DENSE)
    assert steps.seconds(STEPS) == pytest.approx(expected(64), rel=1e-9)


def test_scales_and_constant(tmp_path):
    steps = steps_of(formula.write(tmp_path), DENSE)
    alone = np.array([[0, 0, 8, 1000.0]])
    one, eight = formula.step(64, 0, 0, 1, 0), formula.step(64, 0, 0, 8, 1000)
    attention, first = 64e-6 * formula.decode(8, 1000), one - 64e-6 * formula.decode(1, 0) - 1e-6 * formula.head(1)
    heads = 1e-6 * formula.head(8)
    more = eight - attention - heads - first
    scaled = 1.1 * first + 0.7 * more + heads + 1.1 * attention + 1e-3
    assert steps.seconds(alone, Scales(reads=1.1, compute=0.7, step_s=1e-3)) == pytest.approx([scaled], rel=1e-9)


def test_two_ranks_need_a_link_and_pay_for_it(tmp_path):
    folder = formula.write(tmp_path, degree=2)
    with pytest.raises(NotCoveredError, match="no all-reduce"):
        steps_of(folder, DENSE, 2)
    rate, latency, hidden, vocabulary = 16e9, 20e-6, 5120, 151936
    steps = steps_of(folder, DENSE, 2, link=Link(rate, latency))
    rows, sequences = STEPS[:, 0] + STEPS[:, 2], STEPS[:, 2] + (STEPS[:, 0] > 0)
    reduces = 128 * (2 * latency + rows * 2 * hidden / rate)  # two halves of 2 bytes x hidden cross the link one after the other
    gather = sequences * vocabulary / rate  # the other rank's half of the logits, 2 bytes each
    assert steps.seconds(STEPS) == pytest.approx(expected(64) + reduces + gather, rel=1e-9)
    assert steps.seconds(STEPS, Scales(link=2.0)) == pytest.approx(expected(64) + 2 * (reduces + gather), rel=1e-9)


def test_routed_experts_cost_by_those_that_the_rows_activate(tmp_path):
    steps = steps_of(formula.write(tmp_path, moe=True), ROUTED)
    assert steps.seconds(STEPS) == pytest.approx(expected(48, (128, 8)), rel=1e-9)


def test_expert_parallel_ranks_hold_a_share_of_the_experts(tmp_path):
    folder, link = formula.write(tmp_path, moe=True, degree=2), Link(1e30, 0.0)
    whole, shared = (steps_of(folder, ROUTED, 2, link=link, expert_parallel=on).seconds(STEPS) for on in (False, True))
    rows = STEPS[:, 0] + STEPS[:, 2]
    activated = 128 * (1 - (1 - 8 / 128) ** rows)
    fewer = np.array([formula.experts(n, a) - formula.experts(n, max(a / 2, 1.0)) for n, a in zip(rows, activated, strict=True)])
    assert whole - shared == pytest.approx(48e-6 * fewer, rel=1e-9)


def test_expert_times_without_their_number_are_taken_as_measured(tmp_path):
    folder = formula.write(tmp_path)
    formula.table(folder / "moe.csv", ("tokens", "latency_ns"), [(1, 5000), (1, 7000), (2048, 100_000)])
    with_it = steps_of(folder, ROUTED).rows
    (folder / "moe.csv").unlink()
    with pytest.raises(NotCoveredError, match=r"no moe\.csv"):
        steps_of(folder, ROUTED)
    dense = 1e-6 * (48 * 4 + 2) * np.array([formula.operator(1), formula.operator(2048)])
    assert with_it[[1, 2048]] - dense == pytest.approx(48 * np.array([6e-6, 100e-6]), rel=1e-9)


def test_no_step_beats_the_device(tmp_path):
    device = load_device("h100-sxm-80")
    steps = steps_of(formula.write(tmp_path), DENSE, device=device)
    floor = 2 * 31.98e9 * 2048 / device.peak("bf16")  # 32.76 G parameters, 0.78 G of them looked up, their head apart
    assert steps.rows[2048] < floor < 1.03 * steps.seconds(np.array([[2048, 0, 0, 0.0]]))[0]


def test_points_on_no_lattice():
    def bilinear(c, h):
        return 1.0 + 0.1 * c + 0.2 * h + 0.01 * c * h

    rows = [(c, h, 0, 0, bilinear(c, h)) for c, hs in ((10, (0, 30, 50)), (20, (0, 5)), (40, (0, 50))) for h in hs]
    grid = attention_grid(np.array([*rows, (0, 0, 1, 10, 1.0), (0, 0, 3, 20, 3.0)], float))
    want = [[bilinear(c, h) for h in grid.axes[1]] for c in grid.axes[0][1:]]
    assert grid.seconds[1:, :, 0, 0] == pytest.approx(np.array(want))


def test_beyond_the_grid_attention_is_linear_but_never_below_the_nearest_point():
    """3 ms for many decoders, for long contexts and for both: the last pieces alone would give 9 + 9 - 27 = -9 ms three times as far."""
    seconds = np.broadcast_to([[0.0, 3e-3], [3e-3, 3e-3]], (2, 2, 2, 2)).copy()
    grid = AttentionGrid((np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.array([0.0, 4.0]), np.array([0.0, 100.0])), seconds)
    costs = OperatorSteps(np.zeros(20), grid, 0.0, 0.0, (0.0, 0.0, 0.0), np.zeros(20))
    asked = np.array([[0.0, 0.0, 12.0, 300.0], [0.0, 0.0, 6.0, 50.0], [0.0, 0.0, 4.0, 50.0]])
    np.testing.assert_allclose(costs.seconds(asked), [3e-3, 3.75e-3, 3e-3])


def test_uneven_contexts_cost_towards_the_longest(tmp_path):
    folder = formula.write(tmp_path)
    (tmp_path / "meta.yaml").write_text("skew_fit: {enabled: true, per_tp: {1: {alpha_default: 0.25}}}")
    profile = read_operator_profile(folder)
    assert profile.skew == 0.25
    contexts = np.array([500.0] * 6 + [3000.0, 3000.0])  # mean 1125, of seven at a time the longest is 3000
    uneven = operator_steps(profile, load_architecture(DENSE), budget=512).for_contexts(contexts, 7, profile.skew)
    longer = 1125 + 0.25 * (3000 - 1125)
    assert uneven.seconds(np.array([[0, 0, 7, 1125.0]])) == pytest.approx([formula.step(64, 0, 0, 7, longer)], rel=1e-9)


@pytest.mark.parametrize(
    ("name", "header", "row", "match"),
    [
        ("attention.csv", "prefill_chunk,kv_prefill,n_decode,time_us", "16,0,0,3", "no column of contexts"),
        ("attention.csv", "prefill_chunk,kv_prefill,n_decode,kv_decode,time", "16,0,0,0,3", "no column of times with a unit"),
        ("dense.csv", "layer,tokens,time_us", "qkv_proj,16,nan", "times above 0"),
        ("dense.csv", "layer,tokens,time_us", "qkv_proj,16", "lacks a number"),
        ("per_sequence.csv", "layer,sequences,time_us", "", "holds no row"),
    ],
)
def test_damaged_tables_are_named(tmp_path, name, header, row, match):
    folder = formula.write(tmp_path)
    (folder / name).write_text(f"{header}\n{row}\n")
    with pytest.raises(FileFormatError, match=match):
        read_operator_profile(folder)


def test_the_profile_of_the_degree_and_the_model(tmp_path):
    for model in ("A", "B"):
        for degree in (1, 2):
            formula.write(tmp_path / model, degree=degree)
    assert choose_profile(tmp_path, 2, ("b",)) == tmp_path / "B" / "tp2"
    assert choose_profile(tmp_path / "A" / "tp1" / "attention.csv", 1) == tmp_path / "A" / "tp1"
    with pytest.raises(InputError, match="several profiles fit"):
        choose_profile(tmp_path, 1)
    with pytest.raises(InputError, match="there are those of 1, 2"):
        choose_profile(tmp_path, 4)
    with pytest.raises(FileFormatError, match="no such folder"):
        choose_profile(tmp_path / "C", 1)


def test_other_names_and_units(tmp_path):
    folder = formula.write(tmp_path)
    plain = read_operator_profile(folder)
    lines = (folder / "attention.csv").read_text().splitlines()[1:]
    renamed = [f"{','.join(line.split(',')[:4])},{float(line.split(',')[4]) * 1e3}" for line in lines]
    (folder / "attention.csv").write_text("\n".join(["chunk,prefill_kv,num_decode,decode_kv,latency(ns)", *renamed]))
    assert read_operator_profile(folder).attention == pytest.approx(plain.attention)


def test_the_link_is_found_from_the_first_requests(tmp_path):
    """A run simulated with a slower link than stated: the scales predict the rest of it."""
    steps = steps_of(formula.write(tmp_path, degree=2), DENSE, 2, link=Link(30e9, 10e-6))
    rng = np.random.default_rng(0)
    requests = RequestArrays(np.sort(rng.uniform(0, 20, 60)), rng.integers(50, 1500, 60), rng.integers(2, 200, 60))

    def times(scales):
        engine, model = steps.lowered(EngineParameters(max_num_seqs=16, token_budget=2048), scales)
        records = simulate(requests, engine, model).records
        return records["first"], records["last"]

    first, last = times(Scales(link=1.6))
    served = Served(requests.arrival, requests.output, first, last)
    found = fit_scales(served, times, 30, linked=True)
    assert found.link == pytest.approx(1.6, rel=0.1)
    rest = np.arange(30, 60)
    ours, real = served.quantities(*times(found), rest), served.measured(rest)
    for name in real:
        assert np.median(ours[name]) == pytest.approx(np.median(real[name]), rel=0.05)


def test_causal_pairs_of_a_chunk_enter_as_cached_tokens(tmp_path):
    """Two unequal chunks of one step cost as two equal ones of as many pairs, with one launch."""
    steps = steps_of(formula.write(tmp_path), DENSE)
    engine, model = steps.lowered(EngineParameters(max_num_seqs=4, token_budget=2048))
    run = simulate(RequestArrays(np.zeros(2), np.array([400, 200]), np.ones(2, np.int64)), engine, model)
    cached = (causal_pairs(400, 0) + causal_pairs(200, 0)) / 600 - 301 / 2
    attention = 2 * formula.prefill(300, cached) - formula.prefill(16, 0)
    rest = formula.step(64, 600, 0, 0, 0) - 64e-6 * formula.prefill(600, 0) + 0.5e-6  # one sequence more
    assert run.makespan == pytest.approx(rest + 64e-6 * attention, rel=1e-9)
