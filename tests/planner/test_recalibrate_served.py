"""Result files of load tests, made by an independent simulator: imported, fitted, other loads foretold, a slower engine flagged."""

import json
import math

import numpy as np
import pytest

from db.database import database_url, open_database
from models.calibration.template import step_template
from models.simulation_types import EngineParameters, Policy, RequestArrays
from planner.import_runs import import_runs
from planner.recalibrate import recalibrate
from planner.run_groups import Wanted
from planner.stored_calibrations import calibration_of
from tests.oracles import measured_steps as made
from tests.oracles.scheduler_oracle import Oracle

TRUTH = step_template(made.ARCH, made.CARD)._replace(
    matmul_efficiency=0.6, attention_efficiency=0.4, bandwidth_efficiency=0.8, half_rows=20.0, overlap=0.5, host_s=5e-3, host_overlap=0.5
)  # fmt: skip
LOADS = [(rate, prompt, output) for rate in (0.5, 2.0, 4.0) for prompt, output in ((256, 64), (1500, 32))]
FRONT_S = 0.02  # of a request outside the engine


@pytest.fixture
def database(tmp_path):
    opened = open_database(database_url(tmp_path / "home"))
    yield opened
    opened.close()


def line(rate, prompt, output, seed, *, slower=1.0, count=80):
    """One line as SGLang's benchmark writes it: Poisson arrivals of fixed lengths, three per cent of noise."""
    rng = np.random.default_rng(seed)
    requests = RequestArrays(np.cumsum(rng.exponential(1 / rate, count)), np.full(count, prompt), np.full(count, output))
    engine = EngineParameters(policy=Policy.PREFILL_FIRST, max_num_seqs=64, token_budget=8192, kv_bytes_per_token=made.KV, block_tokens=1)
    truth = TRUTH._replace(matmul_efficiency=0.6 / slower, bandwidth_efficiency=0.8 / slower, host_s=5e-3 * slower)
    done = Oracle(requests, engine, truth).run().requests
    noise = np.exp(0.03 * rng.standard_normal(2))
    ttft = (np.mean([r.times[0] - r.arrival for r in done]) + FRONT_S) * noise[0]
    tpot = np.mean([(r.end - r.times[0]) / (output - 1) for r in done]) * noise[1]
    span = max(r.end for r in done) - min(r.arrival for r in done)
    return json.dumps({
        "backend": "sglang", "dataset_name": "random", "random_input_len": prompt, "random_range_ratio": 1.0,
        "request_rate": rate, "max_concurrency": None, "completed": count, "duration": span,
        "total_input_tokens": prompt * count, "total_output_tokens": output * count, "request_throughput": count / span,
        "output_throughput": output * count / span, "mean_ttft_ms": ttft * 1e3, "mean_tpot_ms": tpot * 1e3,
        "mean_e2e_latency_ms": (ttft + (output - 1) * tpot) * 1e3,
    })  # fmt: skip


def put(database, path, lines):
    path.write_text("\n".join(lines))
    return import_runs([path], database.runs, database.calibrations, known=made.FACTS | {"max_num_seqs": "64"})


def test_rates_calibrate_a_step_model_and_drift_sees_a_slower_engine(database, tmp_path):
    found = put(database, tmp_path / "rates.jsonl", [line(*load, seed=i) for i, load in enumerate(LOADS)])
    assert len(found.stored) == len(LOADS)
    stored, fitted = recalibrate(database.runs, database.calibrations, Wanted(), today="2026-11-29")[0]
    assert {name.split(" ", 2)[2] for name, *_ in fitted.points} == {"ttft mean", "tpot mean"}
    assert np.median([abs(math.expm1(r)) for *_, r in fitted.points]) < 0.05
    described = calibration_of(stored)
    assert described.decode.bandwidth_efficiency == pytest.approx(0.8, rel=0.12)
    assert described.request_s == pytest.approx(FRONT_S, rel=0.5)
    assert any("CUDA graphs" in note and "taken as on" in note for note in described.notes)
    same = put(database, tmp_path / "same.jsonl", [line(1.0, 800, 48, seed=20), line(3.0, 400, 64, seed=21)])
    assert [d.found.drifted for d in same.drifted] == [False]
    assert abs(same.drifted[0].found.bias) < 0.1  # two loads that the fit has not seen
    slow = put(database, tmp_path / "slow.jsonl", [line(r, 500, 48, seed=30 + i, slower=1.5) for i, r in enumerate((0.5, 1.0, 2.0))])
    assert [d.found.drifted for d in slow.drifted] == [True]
    assert slow.drifted[0].found.bias > 0.2


def test_what_a_load_test_leaves_open_is_named(database, tmp_path):
    known = json.loads(line(1.0, 300, 32, seed=1))
    drafted = known | {"request_rate": 2.0}
    path = tmp_path / "drafted.jsonl"
    path.write_text(json.dumps(drafted))
    import_runs([path], database.runs, database.calibrations, known=made.FACTS | {"draft": "eagle", "draft_tokens": "3"})
    put(database, tmp_path / "plain.jsonl", [json.dumps(known)])
    _, fitted = recalibrate(database.runs, database.calibrations, Wanted(), today="2026-11-29")[0]
    assert [u.reason for u in fitted.unused] == ["run 1: how many draft tokens were accepted is not stated (got eagle)"]
