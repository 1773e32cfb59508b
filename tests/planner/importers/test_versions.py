"""The same tools in other releases, as their own code writes them: fields that came, went and moved."""

import json
import math
from pathlib import Path

import pytest

from planner.importers import import_paths
from planner.records import Arrival, StepKind
from tests.planner.importers.support import one, write

DATA = Path(__file__).parents[2] / "data" / "results"
PLAIN = json.loads((DATA / "vllm_serve_plain.json").read_text())


class TestVllmServe:
    def test_release_0_6_without_the_later_fields(self, tmp_path):
        """benchmark_serving.py: ``request_goodput:`` with a colon, metadata, always with detail; no ``failed``, no total throughput."""
        new = {"endpoint_type", "label", "failed", "max_concurrency", "burstiness", "total_token_throughput", "request_goodput", "tp"}
        old = {key: value for key, value in PLAIN.items() if key not in new} | {"backend": "vllm", "best_of": 1, "use_beam_search": False}
        run = one(write(tmp_path, "r.json", old | {"request_goodput:": 3.5, "num_prompts": 15, "request_rate": "inf"}))
        assert (run.setup.engine, run.setup.flags) == ("vllm", {})
        assert run.serving[0].good_requests_per_s == 3.5
        assert run.workload.arrival is Arrival.BURST
        assert (run.workload.requests, run.serving[0].completed) == (15, 12)
        assert "3 of 15 requests failed" in run.warnings

    def test_measurements_that_came_later_are_no_server_flags(self, tmp_path):
        later = {"mean_client_queue_time_ms": 3.0, "p99_e2el_including_client_queue_ms": 4.0, "probe_completed": 3, "rtfx": 0.0,
                 "probe_median_e2el_ms": 5.0, "diffusion_committed_throughput": 4.0, "dataset_name": "random"}  # fmt: skip
        run = one(write(tmp_path, "r.json", PLAIN | later))
        assert run.setup.flags == {}
        assert run.serving[0].e2e == {}
        assert run.workload.dataset == "random"

    def test_a_rate_that_grows_is_neither_a_burst_nor_poisson(self, tmp_path):
        ramp = {"request_rate": "inf", "ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 9, "max_concurrency": None}
        run = one(write(tmp_path, "r.json", PLAIN | ramp))
        assert (run.workload.arrival, run.workload.rate, run.setup.flags) == (Arrival.UNKNOWN, None, {})
        assert any("1 to 9 requests a second" in warning for warning in run.warnings)


class TestVllmSweep:
    @pytest.mark.parametrize("last", ["BENCH--random_input_len=64-WL--request_rate=5", "WL--request_rate=5", "SLA--max_concurrency=8"])
    def test_names_of_workload_and_sla_sweeps(self, tmp_path, last):
        bare = {key: value for key, value in PLAIN.items() if key != "tp"}
        run = one(write(tmp_path, f"SERVE--max_num_seqs=64-tensor_parallel_size=2-{last}/run=0.json", bare))
        assert (run.setup.max_num_seqs, run.setup.tensor_parallel) == (64, 2)
        assert "request_rate" not in run.setup.flags

    def test_every_combination_once_with_its_flags(self, tmp_path):
        """Two server settings, two loads, two runs each; ``summary.json`` and ``summary.csv`` say the same again."""
        rows = []
        for seqs in (32, 64):
            for load in (4, 8):
                folder = f"SERVE--max_num_seqs={seqs}-BENCH--max_concurrency={load}"
                runs = []
                for number in range(2):
                    made = PLAIN | {"max_num_seqs": seqs, "max_concurrency": load, "run_number": number, "duration": 2.0 + len(rows) / 100}
                    made |= {"request_goodput": None, "spec_decode_per_position_acceptance_rates": [0.5, 0.25]}
                    made |= {"request_throughput": 12 / made["duration"], "output_throughput": 192 / made["duration"]}
                    write(tmp_path, f"{folder}/run={number}.json", made)
                    runs.append(made)
                    rows.append(made)
                write(tmp_path, f"{folder}/summary.json", runs)
                write(tmp_path, f"{folder}/warmup.json", PLAIN | {"run_number": -1, "duration": 1.9, "output_throughput": 100.0})
        write(tmp_path, "summary.csv", _as_pandas_writes(rows))
        write(tmp_path, f"{folder}/run=0.pytorch.json", [{"benchmark": {}, "model": {}, "metric": {}}])
        report = import_paths([tmp_path])
        assert [(run.setup.max_num_seqs, run.workload.concurrency, run.setup.engine) for run in report.imported] == [
            (seqs, load, "vllm") for seqs in (32, 64) for load in (4, 8) for _ in range(2)
        ]
        assert len(report.duplicates) == 16
        assert ["warm-up" in found.reason for found in report.refused] == [True] * 4


def _as_pandas_writes(rows):
    """``DataFrame.to_csv``: an unnamed index, full precision, nothing for None."""

    def cell(value):
        return "" if value is None else '"' + str(value).replace('"', '""') + '"' if isinstance(value, list) else str(value)

    keys = list(rows[0])
    lines = [",".join(["", *keys])] + [",".join([str(n), *(cell(row[key]) for key in keys)]) for n, row in enumerate(rows)]
    return "\n".join(lines) + "\n"


def test_vllm_forward_verifies_drafts(tmp_path):
    """``kv_len`` counts the new tokens in, ``verify=16*4@4096:3`` is no prefill."""
    verify = {"query_len": 4, "kv_len": 4096, "num_draft_tokens": 3, "chunked": False}
    decode = {"query_len": 1, "kv_len": 513, "num_draft_tokens": 0, "chunked": False}
    prefill = {"query_len": 256, "kv_len": 256, "num_draft_tokens": 0, "chunked": False}
    latency = {"median": 5000.0, "sample_spread_pct": 0.2, "count": 60, "samples_us": [5000.0] * 60}
    rank = {"num_tokens": 64, "kv_blocks": 256, "routing": "balanced", "latency_us": latency}
    cases = [{"case": str(n), "requests": batch, "median_us": 5000.0, "ranks": [rank]}
             for n, batch in enumerate(([verify] * 16, [decode] * 8 + [verify], [prefill, verify], [decode] * 2))]  # fmt: skip
    runs = import_paths([write(tmp_path, "f.json", cases)]).imported
    assert [run.steps[0].kind for run in runs] == [StepKind.VERIFY, StepKind.VERIFY, StepKind.MIXED, StepKind.DECODE]
    assert (runs[0].steps[0].new_tokens, runs[0].steps[0].context_tokens, runs[0].steps[0].repeats) == (64, 16 * 4092, 60)
    assert runs[3].steps[0].context_tokens == 2 * 512


class TestSglang:
    SERVING = json.loads((DATA / "sglang_serving.jsonl").read_text().splitlines()[0])

    def test_release_0_5_23(self, tmp_path):
        new = {"request_rate": "trace", "total_throughput": 1500.5, "cache_report": {"cache_hit_rate_pct": 25.0}, "max_concurrency": None,
               "server_info": {"tp_size": 8, "device": "cuda", "version": "0.5.23"}}  # fmt: skip
        run = one(write(tmp_path, "s.jsonl", self.SERVING | new))
        assert (run.serving[0].total_tokens_per_s, run.serving[0].prefix_hit_rate) == (1500.5, 0.25)
        assert (run.workload.arrival, run.setup.tensor_parallel, run.setup.device) == (Arrival.TRACE, 8, None)

    def test_failed_requests_are_those_of_the_detail_that_did_not_complete(self, tmp_path):
        count = self.SERVING["completed"]
        detail = {"input_lens": [500] * (count + 7), "output_lens": [100] * count + [0] * 7, "errors": [""] * (count + 7)}
        run = one(write(tmp_path, "s.jsonl", self.SERVING | detail))
        assert run.workload.requests == count + 7
        assert f"7 of {count + 7} requests failed" in run.warnings

    def test_one_batch_server_of_release_0_4_6(self, tmp_path):
        old = {"run_name": "default", "batch_size": 16, "input_len": 1024, "output_len": 8, "latency": 0.5, "output_throughput": 256.0,
               "overall_throughput": 33024.0}  # fmt: skip
        run = one(write(tmp_path, "b.jsonl", old))
        assert (run.serving[0].e2e, run.serving[0].ttft, run.serving[0].output_tokens_per_s) == ({"max": 0.5}, {}, 256.0)


def _distribution(mean, **percentiles):
    return {"mean": mean, "median": mean, "std_dev": 0.0, "min": mean, "max": mean, "count": 4, "total_sum": 4 * mean,
            "percentiles": {"p001": mean, "p50": mean, "p99": mean, "p999": mean, **percentiles}}  # fmt: skip


def _by_status(mean):
    return {"successful": _distribution(mean), "errored": _distribution(0.0), "incomplete": _distribution(0.0), "total": _distribution(9e9)}


METRICS = {"requests_per_second": 2.0, "request_concurrency": 1.0, "request_latency": 0.5, "prompt_token_count": 100.0,
           "output_token_count": 41.0, "time_to_first_token_ms": 100.0, "time_per_output_token_ms": 12.2, "inter_token_latency_ms": 10.0,
           "output_tokens_per_second": 82.0, "tokens_per_second": 282.0}  # fmt: skip


class TestGuideLLM:
    @staticmethod
    def benchmark(**changes):
        metrics = {key: _by_status(mean) for key, mean in METRICS.items()}
        return {"metrics": metrics, "request_totals": {"successful": 4, "incomplete": 1, "errored": 1, "total": 6},
                "start_time": 10.0, "end_time": 12.0} | changes  # fmt: skip

    def test_releases_0_2_and_0_3(self, tmp_path):
        strategy = {"type_": "concurrent", "streams": 3}
        report = {"benchmarks": [self.benchmark(args={"strategy": strategy}, worker={"backend_model": "m"}, duration=2.0)]}
        run = one(write(tmp_path, "benchmarks.json", report))
        seen = run.serving[0]
        assert (run.setup.model, run.workload.arrival, run.workload.concurrency) == ("m", Arrival.CLOSED, 3)
        assert (seen.ttft["p99.9"], seen.tpot["mean"], seen.e2e["mean"], seen.duration) == (0.1, 0.01, 0.5, 2.0)
        assert (seen.completed, seen.failed, run.workload.requests) == (4, 1, 6)

    def test_release_0_4(self, tmp_path):
        """``args`` of the whole report, ``request_totals`` among the metrics, ``config`` beside them."""
        made = self.benchmark(config={"strategy": {"type_": "poisson", "rate": 2.0, "max_concurrency": 64}, "backend": {"target": "x"}})
        made["metrics"]["request_totals"] = made.pop("request_totals")
        run = one(write(tmp_path, "b.json", {"args": {"model": "m", "backend": "openai_http"}, "benchmarks": [made]}))
        assert (run.setup.model, run.workload.arrival, run.workload.rate, run.workload.burstiness) == ("m", Arrival.OPEN, 2.0, 1.0)

    def test_a_benchmark_without_success_costs_only_itself(self, tmp_path):
        totals = {"successful": 0, "incomplete": 0, "errored": 5, "total": 5}
        parts = [self.benchmark(args={"strategy": {"type_": "constant", "rate": rate}}) for rate in (1.0, 2.0, 3.0)]
        parts[1]["request_totals"] = totals
        report = import_paths([write(tmp_path, "b.json", {"benchmarks": parts})])
        assert [run.workload.rate for run in report.imported] == [1.0, 3.0]
        assert [(found.where, "all 5 requests failed" in found.reason) for found in report.refused] == [("benchmarks[1]", True)]

    def test_release_0_1_lists_its_requests(self, tmp_path):
        rows = [{"prompt": "x", "prompt_token_count": 50 * (n + 1), "output": "y", "output_token_count": 11, "start_time": 100.0 + n,
                 "end_time": 100.0 + n + 0.2 + 0.1 * (n + 1), "first_token_time": 0.2, "first_token_set": True,
                 "decode_times": {"data": [0.01 * (n + 1)] * 10}} for n in range(2)]  # fmt: skip
        parts = [{"mode": "asynchronous", "rate": 1.0, "results": rows, "errors": [{"message": "timeout"}], "concurrencies": []},
                 {"mode": "synchronous", "rate": None, "results": rows[:1], "errors": [], "concurrencies": []}]  # fmt: skip
        report = {"benchmarks": [{"benchmarks": parts, "args": {"model": "m", "mode": "poisson", "rate": [1.0]}}]}
        open_load, single = import_paths([write(tmp_path, "guidance_report.json", report)]).imported
        seen = open_load.serving[0]
        assert (open_load.setup.model, open_load.workload.arrival, open_load.workload.rate) == ("m", Arrival.OPEN, 1.0)
        assert (open_load.workload.requests, seen.completed, seen.failed) == (3, 2, 1)
        assert seen.tpot == pytest.approx(
            {"mean": 0.015, "std": 0.005, "p50": 0.01, "p90": 0.02, "p95": 0.02, "p99": 0.02, "min": 0.01, "max": 0.02}
        )
        assert seen.itl == pytest.approx({"mean": 0.015, "max": 0.02})
        assert (seen.ttft["mean"], seen.e2e["max"], seen.duration) == (pytest.approx(0.2), pytest.approx(0.4), pytest.approx(1.4))
        assert (single.workload.arrival, single.workload.concurrency) == (Arrival.CLOSED, 1)


class TestAiperf:
    def test_release_0_1_keeps_its_metrics_in_records(self, tmp_path):
        records = {"ttft": {"tag": "ttft", "unit": "ms", "header": "Time to First Token", "avg": 200.0, "p50": 190.0},
                   "request_latency": {"unit": "ms", "avg": 1.2e3}, "inter_token_latency": {"unit": "ms", "avg": 10.0},
                   "request_count": {"unit": "requests", "avg": 50}, "error_request_count": {"unit": "requests", "avg": 2},
                   "output_sequence_length": {"unit": "tokens", "avg": 101.0},
                   "output_token_throughput": {"unit": "tokens/sec", "avg": 404.0}}  # fmt: skip
        config = {"endpoint": {"model_names": ["m"]}, "loadgen": {"concurrency": 5}}
        run = one(write(tmp_path, "profile_export_aiperf.json", {"records": records, "input_config": config, "was_cancelled": False}))
        assert run.serving[0].ttft == pytest.approx({"mean": 0.2, "p50": 0.19})
        assert (run.serving[0].tpot["mean"], run.serving[0].completed, run.serving[0].failed) == (pytest.approx(0.01), 50, 2)
        assert (run.setup.model, run.workload.concurrency, run.workload.output_tokens) == ("m", 5, 101.0)

    CSV = (
        "Metric,avg,min,max,p99,p95,p90,p75,p50,p25,p10,p5,p1\n"
        'Time To First Token (ms),"1,200.50","1,000.00","2,000.00",N/A,N/A,N/A,N/A,"1,100.00",N/A,N/A,N/A,N/A\n'
        "Request Latency (ms),2200.50,2000,3000,,,,,2100,,,,\n"
        "Inter Token Latency (ms),10.00,9.00,11.00,11.00,11.00,11.00,10.00,10.00,9.00,9.00,9.00,9.00\n"
        "Output Sequence Length (tokens),101.00,101,101,,,,,101,,,,\n"
        "\nMetric,Value\n"
        "Request Throughput (per sec),2.50\nOutput Token Throughput (tokens/sec),252.50\nRequest Count (count),50.00\n"
        "\nEndpoint,GPU_Index,GPU_Name\nhttp://x,0,NVIDIA H100\n"
    )

    def test_the_csv_of_either_tool(self, tmp_path):
        run = one(write(tmp_path, "profile_export_genai_perf.csv", self.CSV))
        assert run.serving[0].ttft == pytest.approx({"mean": 1.2005, "min": 1.0, "max": 2.0, "p50": 1.1})
        assert (run.serving[0].tpot["mean"], run.serving[0].requests_per_s, run.serving[0].completed) == (pytest.approx(0.01), 2.5, 50)
        assert run.workload.output_tokens == 101
        assert run.missing == ("model", "engine", "device", "tensor_parallel")

    def test_one_run_is_stored_once_however_many_files_say_it(self, tmp_path):
        write(tmp_path, "profile_export_aiperf.json", (DATA / "aiperf" / "profile_export_aiperf.json").read_text())
        write(tmp_path, "profile_export_aiperf.csv", self.CSV)
        write(tmp_path, "profile_export.jsonl", (DATA / "aiperf" / "profile_export.jsonl").read_text())
        write(tmp_path, "profile_export_aiperf_timeslices.csv", self.CSV)
        report = import_paths([tmp_path])
        assert (len(report.imported), len(report.refused), len(report.ignored)) == (1, 0, 3)


def test_inference_perf_takes_the_client_s_view_alone(tmp_path):
    """What the server's metrics say of a stage (``rate`` instead of latencies) is no second run of it."""
    stage = json.loads((DATA / "inference_perf" / "results" / "stage_6_lifecycle_metrics.json").read_text())
    server = {"load_summary": {}, "failures": {}, "successes": {"count": 9, "rate": 1.0, "request_latency": {"mean": 1.0, "p50": 1.0}}}
    write(tmp_path, "stage_6_lifecycle_metrics.json", stage)
    for name in (
        "stage_6_prometheus_metrics",
        "summary_prometheus_metrics",
        "summary_lifecycle_metrics",
        "stage_6_session_lifecycle_metrics",
    ):
        write(tmp_path, f"{name}.json", server)
    report = import_paths([tmp_path])
    assert (len(report.imported), len(report.refused), len(report.ignored)) == (1, 0, 4)
    assert "no known result format" in import_paths([write(tmp_path / "alone", "server.json", server)]).refused[0].reason


def test_inferencex_names_card_and_engine_its_own_way(tmp_path):
    """Before lengths were written: they are asked for; rates are those of one GPU times eight."""
    made = {"hw": "h200-trt", "tp": 8, "ep": 1, "dp_attention": "false", "conc": 64, "model": "m", "framework": "dynamo-trt",
            "tput_per_gpu": 1000.0, "output_tput_per_gpu": 500.0, "median_ttft": 1.0, "mean_ttft": 1.2, "mean_tpot": 0.02,
            "median_tpot": 0.02, "p99_tpot": 0.03, "p99_intvty": 33.3}  # fmt: skip
    path = write(tmp_path, "agg.json", made)
    run = one(path)
    assert (run.setup.device, run.setup.engine, run.serving[0].output_tokens_per_s) == ("h200", "trtllm", 4000.0)
    assert run.missing == ("prompt_tokens", "output_tokens")
    assert one(path, known={"isl": "1024", "osl": "128"}).missing == ()


LLAMA_BENCH = """ggml_cuda_init: found 1 CUDA devices:
  Device 0: NVIDIA GeForce RTX 4090, compute capability 8.9, VMM: yes
| model                          |       size |     params | backend    | ngl | n_ubatch | fa |            test |                  t/s |
| ------------------------------ | ---------: | ---------: | ---------- | --: | -------: | -: | --------------: | -------------------: |
| qwen3 8B Q4_K - Medium         |   4.68 GiB |     8.19 B | CUDA       |  99 |      512 |  1 |           pp512 |      5120.00 ± 12.34 |
| qwen3 8B Q4_K - Medium         |   4.68 GiB |     8.19 B | CUDA       |  99 |      512 |  1 |           tg128 |        100.00 ± 0.10 |
| qwen3 8B Q4_K - Medium         |   4.68 GiB |     8.19 B | CUDA       |  99 |      512 |  1 |  pp1024 @ d4096 |      4096.00 ± 12.34 |
| qwen3 8B Q4_K - Medium         |   4.68 GiB |     8.19 B | CUDA       |  99 |      512 |  1 |   tg128 @ d4096 |                  nan |
| qwen3 8B Q4_K - Medium         |   4.68 GiB |     8.19 B | CUDA       |  99 |      512 |  1 |     pp512+tg128 |        400.00 ± 1.00 |

build: 1c1409e1 (6865)
"""


def test_llama_bench_prints_a_table(tmp_path):
    report = import_paths([write(tmp_path, "bench.txt", LLAMA_BENCH)])
    prefill, decode, deep, both = report.imported
    assert (prefill.setup.device, prefill.setup.engine_version) == ("NVIDIA GeForce RTX 4090", "b6865")
    assert (prefill.setup.model, prefill.setup.flags["flash_attn"]) == ("qwen3 8B Q4_K - Medium", "1")
    assert (prefill.steps[0].kind, prefill.steps[0].seconds) == (StepKind.PREFILL, pytest.approx(0.1))
    assert (decode.steps[0].kind, decode.steps[0].seconds, decode.steps[0].context_tokens) == (StepKind.DECODE, pytest.approx(0.01), 63.5)
    assert (deep.steps[0].seconds, deep.steps[0].context_tokens, deep.steps[0].parts) == (pytest.approx(0.25), 4096, 2)
    assert both.serving[0].e2e["mean"] == pytest.approx(1.6)
    assert [found.line for found in report.refused] == [8]


def test_llama_bench_before_depths(tmp_path):
    row = {"build_commit": "c", "build_number": 4000, "gpu_info": "L4", "model_type": "m", "n_ubatch": 512, "type_k": "f16",
           "n_gpu_layers": 99, "n_prompt": 0, "n_gen": 128, "avg_ns": 128 * 10**7, "stddev_ns": 5, "avg_ts": 100.0}  # fmt: skip
    assert one(write(tmp_path, "b.json", [row])).steps[0].context_tokens == 63.5


def test_rates_that_are_infinite_stay_out_of_the_record(tmp_path):
    run = one(write(tmp_path, "r.json", PLAIN | {"request_rate": math.inf, "max_concurrency": None}))
    assert (run.workload.arrival, run.workload.rate) == (Arrival.BURST, None)
