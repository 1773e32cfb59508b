"""What a fit reads of a load test: expected figures worked out by hand from Little's law and the file's own statistics."""

import json

import pytest

from models.catalog.devices import load_device
from planner.importers import import_paths
from planner.observations import material
from planner.ports import StoredRun
from planner.run_groups import Group, key_of

FACTS = {"device": "h100-sxm-80", "tp": "1"}


def read(tmp_path, **changed):
    """The material of one plain result of ``vllm bench serve``: 40 requests of 1,000 and 101 tokens in 20 s."""
    result = {
        "backend": "vllm", "endpoint_type": "vllm", "model_id": "Qwen/Qwen3-8B", "tokenizer_id": "Qwen/Qwen3-8B", "num_prompts": 40,
        "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 8, "duration": 20.0, "completed": 40, "total_input_tokens": 40_000,
        "total_output_tokens": 4_040, "output_throughput": 202.0, "request_throughput": 2.0, "total_token_throughput": 2202.0,
    }  # fmt: skip
    path = tmp_path / "run.json"
    path.write_text(json.dumps(result | changed))
    report = import_paths([path], known=FACTS)
    assert not report.refused, report.refused
    record = report.imported[0]
    key, architecture = key_of(record.setup)
    run = StoredRun(1, "2026-11-29T00:00:00Z", record)
    return material(Group(key, architecture, load_device("h100-sxm-80"), (run,)))


def test_a_tail_of_the_token_time_does_not_hide_the_median_gap(tmp_path):
    found = read(tmp_path, p99_tpot_ms=30.0, median_itl_ms=20.0, p95_ttft_ms=900.0)
    assert found.runs[0].figures == {"itl p50": pytest.approx(0.020)}
    assert [u.reason for u in found.unused] == ["run 1: TTFT, TPOT not used: neither mean nor median is stated"]


def test_tails_alone_say_nothing_that_a_fit_reads(tmp_path):
    found = read(tmp_path, p99_tpot_ms=30.0, p95_ttft_ms=900.0, output_throughput=None)
    assert not found.runs
    assert "TTFT, TPOT not used: neither mean nor median is stated" in found.unused[0].reason


@pytest.mark.parametrize("times", [{"mean_e2el_ms": 20_000.0}, {}])
def test_who_waits_does_not_run(tmp_path, times):
    """A rate under a limit: the queue is long, but 2 requests/s x 100 tokens x 20 ms = 4 decode together (e2e x rate would be 40)."""
    load = {"request_rate": 2.0, "max_concurrency": 100, "mean_ttft_ms": 18_000.0, "mean_tpot_ms": 20.0}
    assert read(tmp_path, **load, **times).loops[0].concurrency == pytest.approx(4.0)


def test_a_median_gap_stands_for_the_token_time_of_unknown_arrivals(tmp_path):
    found = read(tmp_path, request_rate="trace", mean_ttft_ms=500.0, p99_tpot_ms=30.0, median_itl_ms=20.0)
    assert (found.loops[0].tpot_s, found.loops[0].concurrency) == (pytest.approx(0.020), pytest.approx(4.0))


@pytest.mark.parametrize("name", ["ngram", "NGRAM", "[ngram] lookup"])
def test_engines_call_the_lookup_of_n_grams_by_its_own_name(tmp_path, name):
    """Two tokens a round as measured; the search takes 0.1 ms a round (section 8.5.2), no weights are read."""
    drafted = {"draft": name, "draft_tokens": 3, "spec_decode_acceptance_length": 2.0, "mean_tpot_ms": 20.0, "mean_ttft_ms": 500.0}
    engine = read(tmp_path, **drafted).runs[0].engine
    assert (engine.draft_tokens, engine.tokens_per_round, engine.seconds_by_rows) == (3, 2.0, (0.0, pytest.approx(1e-4)))
