"""Runs that list every request, and printouts of load generators."""

import json
from pathlib import Path

import pytest

from planner.importers import import_paths
from planner.records import Arrival, StepKind
from tests.planner.importers.support import one, write

REQUESTS = [
    {"arr": 0.0, "start": 0.0, "inp": 100, "out": 3, "ttft": 0.1, "e2e": 0.3, "itl": [0.1, 0.1], "timings": {}},
    {"arr": 1.0, "start": 1.0, "inp": 200, "out": 5, "ttft": 0.2, "e2e": 1.0, "itl": [0.2, 0.2, 0.2, 0.2], "timings": {}},
]


def test_request_list(tmp_path):
    arguments = {"np": 8, "ub": 512, "ctk": "q8_0", "rate": 2.0, "conc": 0}
    run = one(write(tmp_path, "r.jsonl", {"name": "a", "args": arguments, "requests": REQUESTS}))
    seen = run.serving[0]
    assert seen.ttft["mean"] == pytest.approx(0.15)
    assert (seen.tpot["min"], seen.tpot["max"]) == (pytest.approx(0.1), pytest.approx(0.2))
    assert seen.itl == pytest.approx({"mean": 1.0 / 6, "max": 0.2})
    assert (seen.duration, seen.output_tokens_per_s) == (pytest.approx(2.0), pytest.approx(4.0))
    assert (run.workload.arrival, run.workload.rate, run.workload.prompt_tokens) == (Arrival.OPEN, 2.0, 150)
    assert (run.setup.engine, run.setup.max_num_seqs, run.setup.kv_format) == ("llama.cpp", 8, "q8_0")


def test_clients_of_a_closed_loop_started_over_the_ramp(tmp_path):
    """Two clients, half a second apart; the third request follows the first one's answer."""
    rows = [REQUESTS[0] | {"start": start} for start in (3.0, 3.5, 3.9)]
    run = one(write(tmp_path, "r.json", {"args": {"np": 2, "b": 128, "conc": 2}, "requests": rows}))
    assert (run.workload.arrival, run.workload.concurrency, run.workload.ramp) == (Arrival.CLOSED, 2, pytest.approx(0.5))
    assert run.setup.max_num_batched_tokens == 128


def test_a_request_that_ends_before_its_first_token_is_refused(tmp_path):
    bad = [REQUESTS[0] | {"e2e": 0.05}]
    assert "shorter than the time to the first token" in import_paths([write(tmp_path, "r.json", {"requests": bad})]).refused[0].reason


def test_time_stamps_and_their_companion(tmp_path):
    rows = [
        {"input_toks": 10, "output_toks": 3, "queued_ts": 5.0, "first_token_ts": 5.5, "last_token_ts": 5.9},
        {"input_toks": 30, "output_toks": 11, "queued_ts": 6.0, "first_token_ts": 6.25, "last_token_ts": 8.25},
        {"input_toks": 30, "output_toks": 0, "queued_ts": 6.5, "first_token_ts": None, "last_token_ts": None},
    ]
    write(tmp_path, "meta.json", {"model": "m", "vllm_version": "0.19.0", "engine_kwargs": {"tensor_parallel_size": 2, "max_num_seqs": 64},
                                  "hardware": {"device_name": "RTX 4090"}})  # fmt: skip
    run = one(write(tmp_path, "requests.jsonl", "\n".join(map(json.dumps, rows))))
    assert run.missing == ()
    assert (run.setup.tensor_parallel, run.setup.device, run.setup.engine_version) == (2, "RTX 4090", "0.19.0")
    assert run.serving[0].tpot["mean"] == pytest.approx(0.2)
    assert run.serving[0].duration == pytest.approx(3.25)
    assert (run.workload.arrival, run.serving[0].failed, run.workload.requests) == (Arrival.TRACE, 1, 3)


VLLM = """
Traffic request rate: inf
Maximum request concurrency: 32
============ Serving Benchmark Result ============
Successful requests:                     32
Benchmark duration (s):                  150.87
Total input tokens:                      65536
Total generated tokens:                  32768
Request throughput (req/s):              0.21
Output token throughput (tok/s):         217.20
---------------Time to First Token----------------
Mean TTFT (ms):                          7279.56
Median TTFT (ms):                        7099.88
P99 TTFT (ms):                           10999.46
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          70.14
Median TPOT (ms):                        70.23
P99 TPOT (ms):                           72.63
==================================================
"""


def test_printed_result(tmp_path):
    run = one(write(tmp_path, "bench.log", VLLM))
    assert run.serving[0].ttft == pytest.approx({"mean": 7.27956, "p50": 7.09988, "p99": 10.99946})
    assert run.serving[0].tpot["mean"] == pytest.approx(0.07014)
    assert (run.workload.prompt_tokens, run.workload.output_tokens) == (2048, 1024)
    assert run.serving[0].completed == 32
    assert (run.workload.arrival, run.workload.concurrency) == (Arrival.CLOSED, 32)
    failed = VLLM.replace("requests:                     32", "requests:                     0")
    report = import_paths([write(tmp_path, "x.log", VLLM + failed)])
    assert len(report.imported) == 1
    assert "all requests failed" in report.refused[0].reason


def test_a_printed_value_that_is_no_measurement_costs_only_its_run(tmp_path):
    report = import_paths([write(tmp_path, "b.log", VLLM.replace("7279.56", "nan") + VLLM)])
    assert len(report.imported) == 1
    assert "not finite" in report.refused[0].reason
    assert "nan" in Path(report.refused[0].file).read_text().splitlines()[report.refused[0].line - 1]


def test_several_printed_results(tmp_path):
    report = import_paths([write(tmp_path, "b.log", VLLM + VLLM.replace("7279.56", "7279.57"))])
    assert len(report.imported) == 2
    assert report.imported[1].source.line > report.imported[0].source.line


TRT = """
===========================================================
= PYTORCH BACKEND
===========================================================
Model:\t\t\tmeta-llama/Llama-3.1-8B
TensorRT LLM Version:\t1.2.0
KV Cache Dtype:\t\tFP8
Quantization:\t\tFP8

TP Size:                2
Max Runtime Batch Size: 256
Number of requests:             100
Average Input Length (tokens):  128.0000
Average Output Length (tokens): 101.0000
Request Throughput (req/sec):                     10.0000
Total Output Throughput (tokens/sec):             1010.0000
Total Latency (ms):                               10000.0000
Average time-to-first-token [TTFT] (ms):          110.0000
[TPOT] MINIMUM: 7.0000
[TPOT] AVERAGE: 8.0000
[TPOT] P50    : 7.9000
[Latency] P99    : 1100.0000
"""


def test_printed_trtllm_report(tmp_path):
    run = one(write(tmp_path, "t.txt", TRT))
    assert run.setup.tensor_parallel == 2
    assert (run.setup.model, run.setup.kv_format, run.setup.engine) == ("meta-llama/Llama-3.1-8B", "fp8_e4m3", "trtllm")
    assert run.serving[0].tpot == pytest.approx({"min": 0.007, "mean": 0.008, "p50": 0.0079})
    assert run.serving[0].e2e == pytest.approx({"p99": 1.1})
    assert run.workload.output_tokens == 101


def test_steps_with_their_composition(tmp_path):
    path = write(tmp_path, "s.csv", "wall_s,composition\n0.01,0:1:100;1:1:100;2:64:0\n0.02,0:4:10 1:4:10\n0.03,0:1\n")
    report = import_paths([path], columns={"step.seconds": "wall_s", "step.composition": "composition"})
    mixed, several = (run.steps[0] for run in report.imported)
    assert (mixed.kind, mixed.new_tokens, mixed.context_tokens) == (StepKind.MIXED, 66, 200)
    assert several.causal_pairs == 2 * (4 * 10 + 4 * 5 / 2)
    assert [found.line for found in report.refused] == [4]


OLDER = """
===========================================================
= ENGINE DETAILS
===========================================================
Model:                  meta-llama/Llama-3.1-8B
TensorRT-LLM Version:   0.17.0
Dtype:                  bfloat16
KV Cache Dtype:         FP8
Quantization:           FP8

= WORLD + RUNTIME INFORMATION
TP Size:                1
Max Runtime Batch Size: 4096
Issue Rate (req/sec):   {issue}

= PERFORMANCE OVERVIEW
Number of requests:             3000
Average Input Length (tokens):  128.0000
Average Output Length (tokens): 128.0000
Token Throughput (tokens/sec):  28390.4265
Request Throughput (req/sec):   221.8002
Total Latency (ms):             13525.6862
"""


@pytest.mark.parametrize(("issue", "arrival"), [
    ("5.0689E+14", Arrival.BURST),  # 3,000 submissions in 1.52 of 13.5 s
    ("2.2000E+15", Arrival.UNKNOWN),  # the last after 6.6 s: a limit held them back
    ("3.6803E+18", Arrival.UNKNOWN),  # release 0.12 wrote more than the run lasted
])  # fmt: skip
def test_printed_trtllm_report_of_an_older_release(tmp_path, issue, arrival):
    """Figures of the documentation of 0.17: a token throughput counts output tokens, 28390 = 221.8 x 128."""
    run = one(write(tmp_path, "t.txt", OLDER.format(issue=issue)))
    assert (run.setup.engine_version, run.setup.max_num_seqs, run.workload.arrival) == ("0.17.0", 4096, arrival)
    assert (run.serving[0].output_tokens_per_s, run.serving[0].duration) == (28390.4265, pytest.approx(13.5256862))


def test_printed_trtllm_report_names_its_card(tmp_path):
    text = TRT.replace("TP Size:", "= MACHINE DETAILS\nNVIDIA H100 80GB HBM3, memory 79.11 GB, 2.62 GHz\n\nTP Size:")
    assert one(write(tmp_path, "t.txt", text)).setup.device == "NVIDIA H100 80GB HBM3"
