"""Runs of known physics are recovered within their intervals; what cannot be used is named; what beats the device is refused."""

import math

import pytest

from db.database import database_url, open_database
from models.calibration.document import from_document
from models.errors import CalibrationError, InputError, UnknownNameError
from planner.import_runs import import_runs
from planner.recalibrate import recalibrate
from planner.run_groups import Wanted, key_of
from planner.stored_calibrations import calibration_of
from tests.oracles import measured_steps as made

TODAY = "2026-11-29"


@pytest.fixture
def database(tmp_path):
    opened = open_database(database_url(tmp_path / "home"))
    yield opened
    opened.close()


def put(database, path, columns=None, **more):
    known = made.FACTS | {"engine": "vllm"} | more
    return import_runs([path], database.runs, database.calibrations, known=known, columns=columns)


def fit(database, **wanted):
    return recalibrate(database.runs, database.calibrations, Wanted(**wanted), today=TODAY)[0]


def inside(posterior, name, true, z=2.6):
    """Within a central 99 % interval of the posterior."""
    at = posterior.names.index(name)
    return abs(posterior.mean[at] - math.log(true)) <= z * math.sqrt(posterior.covariance[at, at])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_known_parameters_are_recovered_within_their_intervals(database, tmp_path, seed):
    put(database, made.step_table(tmp_path / "steps.csv", seed=seed), made.COLUMNS)
    stored, fitted = fit(database)
    for name, true in (("matmul_efficiency", 0.6), ("bandwidth_efficiency", 0.8), ("attention_efficiency", 0.4), ("host_s", 5e-3)):
        assert inside(fitted.posterior, name, true), name
    described = calibration_of(stored)
    assert described.decode.bandwidth_efficiency == pytest.approx(0.8, rel=0.15)
    assert described.uncertainty.decode_log_sd < 0.15
    assert (described.device, described.model, described.version) == (made.DEVICE, made.MODEL, "1")
    assert stored.run_ids == tuple(range(1, 8))
    assert "runs 1, 2, 3" in described.sources[0].what


def test_five_runs_suffice_and_predict_others(database, tmp_path):
    """Five steps calibrate; steps of other sizes are then predicted within 10 % (the specification alone is farther off)."""
    put(database, made.step_table(tmp_path / "steps.csv", made.SHAPES[:5]), made.COLUMNS)
    _, fitted = fit(database)
    assert len(fitted.points) == 5
    assert all(abs(math.expm1(r)) < 0.1 for *_, r in fitted.points)
    put(database, made.step_table(tmp_path / "others.csv", [[(1, 4000)] * 8, [(1, 1000)] * 64, [(1024, 0)]], seed=9), made.COLUMNS)
    seen = import_again_drift(database)
    assert not seen.drifted
    assert abs(seen.bias) < 0.1


def import_again_drift(database):
    from planner.recalibrate import drift_of

    (found,) = drift_of(tuple(database.runs.list()), tuple(database.calibrations.newest()))
    return found.found


def test_device_times_leave_the_host_to_the_prior(database, tmp_path):
    put(database, made.forward_file(tmp_path / "forward.json"))
    _, fitted = fit(database)
    assert inside(fitted.posterior, "bandwidth_efficiency", 0.8)
    assert fitted.posterior.value("host_s") == pytest.approx(2e-3)  # the specification's median: nothing was measured of it


def test_runs_that_beat_the_device_are_refused_with_the_reason(database, tmp_path):
    put(database, made.step_table(tmp_path / "steps.csv", factor=0.3), made.COLUMNS)
    with pytest.raises(CalibrationError, match=r"faster than the device can be; run \d+ beats the floor"):
        fit(database)
    assert list(database.calibrations.list()) == []


def test_an_outlier_is_named_and_may_be_left_out(database, tmp_path):
    put(database, made.step_table(tmp_path / "steps.csv", made.SHAPES * 2), made.COLUMNS)
    put(database, made.step_table(tmp_path / "slow.csv", [[(1, 3000)] * 16], factor=3.0), made.COLUMNS)
    last = max(run.id for run in database.runs.list())
    _, fitted = fit(database)
    assert fitted.posterior.outliers == (f"run {last}",)
    _, fitted = fit(database, excluded=frozenset({last}))
    assert fitted.posterior.outliers == ()
    assert last not in fitted.run_ids


def test_drift_is_flagged_at_import(database, tmp_path):
    put(database, made.step_table(tmp_path / "steps.csv"), made.COLUMNS)
    fit(database)
    same = put(database, made.step_table(tmp_path / "same.csv", seed=5), made.COLUMNS)
    assert [d.found.drifted for d in same.drifted] == [False]
    slow = put(database, made.step_table(tmp_path / "slow.csv", seed=6, factor=1.6), made.COLUMNS)
    assert [d.found.drifted for d in slow.drifted] == [True]
    assert slow.drifted[0].found.bias == pytest.approx(0.6, abs=0.15)


def test_a_prefill_in_parts_is_the_sum_of_its_steps(database, tmp_path):
    """llama-bench adds up its micro-batches: 2048 tokens in four steps of 512 read the weights four times."""
    import json

    rows = []
    for prompt, generated, depth in ((512, 0, 0), (2048, 0, 0), (0, 32, 0), (0, 32, 4096), (0, 32, 16384), (2048, 0, 4096)):
        chunks = [[(512, depth + start)] for start in range(0, prompt, 512)] or [[(1, depth + 15.5)]] * generated
        total = sum(made.seconds(chunk, host=True) for chunk in chunks)
        rows.append({"build_commit": "abc", "build_number": 6000, "model_type": "qwen3 8B", "n_prompt": prompt, "n_gen": generated,
                     "n_depth": depth, "n_ubatch": 512, "n_batch": 2048, "type_k": "f16", "gpu_info": "RTX", "n_gpu_layers": 99,
                     "avg_ns": round(total * 1e9), "test_time": "2026-11-29T00:00:00Z"})  # fmt: skip
    path = tmp_path / "bench.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found = import_runs([path], database.runs, database.calibrations, known=made.FACTS)
    assert len(found.stored) == 6
    _, fitted = fit(database)
    assert fitted.key.engine == "llama_cpp"
    assert max(abs(math.expm1(r)) for *_, r in fitted.points) < 0.05
    assert inside(fitted.posterior, "bandwidth_efficiency", 0.8)


def test_what_is_incomplete_or_unknown_is_not_stored(database, tmp_path):
    path = made.forward_file(tmp_path / "forward.json")
    found = import_runs([path], database.runs, database.calibrations)
    assert (len(found.stored), [a.option for a in found.asks]) == (0, ["--model", "--device", "--tp"])
    with pytest.raises(UnknownNameError, match="rtx-pro-6000-ws"):
        put(database, path, device="rtx-pro-6000-w")
    assert list(database.runs.list()) == []
    assert len(put(database, path).stored) == 7
    assert len(put(database, path).duplicates) == 7


def test_no_run_and_ambiguous_names_are_clear_errors(database, tmp_path):
    with pytest.raises(InputError, match="no stored run fits"):
        fit(database)
    put(database, made.forward_file(tmp_path / "a.json"))
    put(database, made.forward_file(tmp_path / "b.json", seed=2), cuda_graphs="false")
    with pytest.raises(InputError, match="2 groups of runs fit"):
        recalibrate(database.runs, database.calibrations, Wanted(), name="mine", today=TODAY)
    assert len(recalibrate(database.runs, database.calibrations, Wanted(), today=TODAY)) == 2


def test_another_model_borrows_from_the_device(database, tmp_path):
    """A second model with nothing but one step starts from what the first one taught of the card."""
    put(database, made.step_table(tmp_path / "steps.csv"), made.COLUMNS)
    _, first = fit(database)
    assert first.borrowed == ()
    table = "kind,batch,new,context,ms\ndecode,1,1,1000,22.0\n"
    (tmp_path / "other.csv").write_text(table)
    put(database, tmp_path / "other.csv", made.COLUMNS, model="Qwen/Qwen3-14B")
    _, second = fit(database, model="Qwen/Qwen3-14B")
    assert second.borrowed == (f"{first.calibration.name}@1 (same device)",)
    at = second.posterior.names.index("matmul_efficiency")  # one decode step says nothing of it
    alone = 0.25  # the specification's width
    assert math.sqrt(second.posterior.covariance[at, at]) < alone
    assert from_document(second.document["fit"]).runs == 1


def test_formats_and_ranks_that_no_model_covers_are_refused(database, tmp_path):
    put(database, made.forward_file(tmp_path / "a.json"))
    setup = next(database.runs.list()).record.setup
    assert key_of(setup)[0].weight_format == "bf16"
    assert key_of(setup.model_copy(update={"precision": "fp8"}))[0].weight_format.startswith("fp8")
    for change, word in (({"pipeline_parallel": 2}, "pipeline"), ({"precision": "int3"}, "int3"), ({"device": None}, "--device"),
                         ({"tensor_parallel": 3}, "3")):  # fmt: skip
        with pytest.raises(InputError, match=word):
            key_of(setup.model_copy(update=change))
