"""Each format: what the file says, in SI units. Expected values are read off the files by hand or computed from them with numpy."""

import json
from pathlib import Path

import numpy as np
import pytest

from planner.importers import import_paths
from planner.records import Arrival, StepKind
from tests.planner.importers.support import one, write

DATA = Path(__file__).parents[2] / "data" / "results"


def test_vllm_serve_plain():
    run = one(DATA / "vllm_serve_plain.json")
    seen = run.serving[0]
    assert run.format == "vllm bench serve"
    assert seen.ttft["mean"] == pytest.approx(0.10048713833339207)
    assert seen.tpot["p99"] == pytest.approx(0.009812385150652519)
    assert seen.itl["p50"] == pytest.approx(0.009099459000253773)
    assert seen.output_tokens_per_s == pytest.approx(110.56517094552125)
    assert (run.workload.arrival, run.workload.rate, run.workload.concurrency) == (Arrival.OPEN, 8.0, 4)
    assert (run.workload.prompt_tokens, run.workload.output_tokens) == (304 / 12, 16.0)
    assert run.setup.tensor_parallel == 1  # --metadata tp=1
    assert run.missing == ("engine", "device")  # openai-chat says nothing about the engine


def test_vllm_serve_detail_gives_what_the_summary_lacks(tmp_path):
    raw = json.loads((DATA / "vllm_serve_detailed.json").read_text())
    plain = one(DATA / "vllm_serve_detailed.json")
    assert plain.serving[0].e2e["mean"] == pytest.approx(raw["mean_e2el_ms"] / 1e3)
    bare = {key: value for key, value in raw.items() if not key.endswith(("_e2el_ms", "_tpot_ms"))}
    run = one(write(tmp_path, "bare.json", bare))
    assert run.serving[0].e2e["mean"] == pytest.approx(raw["mean_e2el_ms"] / 1e3, rel=0.01)
    assert run.serving[0].tpot["mean"] == pytest.approx(raw["mean_tpot_ms"] / 1e3, rel=0.01)
    assert run.serving[0].e2e["max"] == pytest.approx(np.max([t + sum(gaps) for t, gaps in zip(raw["ttfts"], raw["itls"], strict=True)]))
    assert run.workload.prompt_lengths["max"] == max(raw["input_lens"])
    assert run.workload.arrival is Arrival.CLOSED
    assert run.setup.device == "mock"


def test_vllm_serve_appended_lines(tmp_path):
    raw = json.loads((DATA / "vllm_serve_plain.json").read_text())
    lines = [{**raw, "max_concurrency": 4 + i, "mean_ttft_ms": raw["mean_ttft_ms"] + i} for i in range(3)]
    report = import_paths([write(tmp_path, "all.json", "\n".join(json.dumps(line) for line in lines))])
    assert [run.source.line for run in report.imported] == [1, 2, 3]
    assert [run.workload.concurrency for run in report.imported] == [4, 5, 6]


def test_vllm_serve_speculation(tmp_path):
    raw = json.loads((DATA / "vllm_serve_plain.json").read_text())
    raw |= {"spec_decode_acceptance_rate": 62.5, "spec_decode_acceptance_length": 2.875, "spec_decode_num_drafts": 64,
            "spec_decode_per_position_acceptance_rates": [0.8, 0.6, 0.475]}  # fmt: skip
    seen = one(write(tmp_path, "s.json", raw)).serving[0]
    assert seen.acceptance_rate == pytest.approx(0.625)
    assert seen.acceptance_length == 2.875  # the bonus token included: 1 + 0.8 + 0.6 + 0.475
    assert seen.acceptance_length == pytest.approx(1 + sum(seen.acceptance_by_position))


def test_sweep_folder_recovers_flags_and_drops_the_summary_copy(tmp_path):
    raw = json.loads((DATA / "vllm_serve_plain.json").read_text()) | {"max_num_seqs": 64, "enable_prefix_caching": False, "run_number": 0}
    folder = tmp_path / "SERVE--max_num_seqs=64-enable_prefix_caching=False-BENCH--max_concurrency=4"
    folder.mkdir()
    write(folder, "run=0.json", {k: v for k, v in raw.items() if k not in {"max_num_seqs", "enable_prefix_caching", "run_number"}})
    write(folder, "summary.json", [raw])
    report = import_paths([tmp_path])
    assert len(report.imported) == 1
    setup = report.imported[0].setup
    assert (setup.engine, setup.max_num_seqs, setup.prefix_sharing) == ("vllm", 64, False)
    assert len(report.duplicates) == 1


def test_vllm_latency_asks_for_shapes(tmp_path):
    path = write(tmp_path, "l.json", {"avg_latency": 2.0, "latencies": [1.9, 2.1], "percentiles": {"10": 1.9, "90": 2.1}, "model_id": "m"})
    run = one(path)
    assert run.serving[0].e2e["mean"] == 2.0
    assert run.serving[0].e2e["p90"] == 2.1
    assert {"prompt_tokens", "output_tokens", "concurrency", "device"} <= set(run.missing)
    told = one(path, known={"device": "h100", "tp": "2", "input_len": "32", "output-len": "128", "batch_size": "8"})
    assert told.missing == ()
    assert (told.workload.prompt_tokens, told.workload.output_tokens, told.workload.concurrency) == (32, 128, 8)
    assert told.content_hash == run.content_hash  # what the user adds does not make it another run


def test_vllm_throughput(tmp_path):
    raw = {"elapsed_time": 10.0, "num_requests": 100, "total_num_tokens": 50000, "requests_per_second": 10.0, "tokens_per_second": 5000.0}
    run = one(write(tmp_path, "t.json", raw))
    assert run.serving[0].total_tokens_per_s == 5000.0
    assert run.workload.arrival is Arrival.OFFLINE


def test_vllm_forward(tmp_path):
    cases = [
        {"case": "decode", "requests": [{"query_len": 1, "context_len": 512}] * 8, "median_us": 5000.0,
         "ranks": [{"num_tokens": 8, "kv_blocks": 256, "routing": None, "latency_us": {"median": 5000.0, "sample_spread_pct": 2.0}},
                   {"num_tokens": 8, "kv_blocks": 256, "routing": None, "latency_us": {"median": 4900.0, "sample_spread_pct": 3.0}}]},
        {"case": "mixed", "requests": [{"query_len": 1, "context_len": 512}, {"query_len": 256, "context_len": 0}], "median_us": 9000.0,
         "ranks": []},
    ]  # fmt: skip
    first, second = (run.steps[0] for run in import_paths([write(tmp_path, "f.json", cases)]).imported)
    assert (first.kind, first.seconds, first.new_tokens, first.context_tokens) == (StepKind.DECODE, 0.005, 8, 4096)
    assert first.spread == pytest.approx(0.03)
    assert not first.includes_host
    assert second.kind is StepKind.MIXED
    assert second.causal_pairs == 1 * 512 + 1 + 256 * 257 / 2


def test_sglang_serving_reads_bare_infinity():
    online, second, offline = import_paths([DATA / "sglang_serving.jsonl"]).imported
    assert (online.workload.arrival, online.workload.rate, second.workload.rate) == (Arrival.OPEN, 1.0, 2.0)
    assert online.serving[0].e2e["mean"] == pytest.approx(7.840616212638561)
    assert online.workload.prompt_tokens == 152612 / 300
    assert offline.workload.arrival is Arrival.BURST
    assert offline.serving[0].ttft["p50"] == pytest.approx(10.014104524045251)


def test_sglang_server_info_in_gib(tmp_path):
    raw = json.loads((DATA / "sglang_serving.jsonl").read_text().splitlines()[0])
    raw["server_info"] = {
        "model_path": "meta-llama/Llama-3.3-70B-Instruct", "version": "0.5.23", "tp_size": 4, "dp_size": 1, "chunked_prefill_size": 8192,
        "mem_fraction_static": 0.88, "kv_cache_dtype": "auto", "disable_radix_cache": True, "max_running_requests": None, "device": "cuda",
        "max_total_num_tokens": 800000, "internal_states": [{"memory_usage": {"weight": 32.5, "kvcache": 60.0, "graph": 1.5}}],
    }  # fmt: skip
    run = one(write(tmp_path, "s.jsonl", raw))
    assert (run.setup.model, run.setup.tensor_parallel, run.setup.engine_version) == ("meta-llama/Llama-3.3-70B-Instruct", 4, "0.5.23")
    assert (run.setup.prefix_sharing, run.setup.kv_format, run.setup.device) == (False, None, None)
    assert run.memory[0].weights_bytes == int(32.5 * 2**30)
    assert run.memory[0].kv_pool_tokens == 800000


def test_sglang_one_batch(tmp_path):
    rows = [
        {"run_name": "r", "batch_size": 16, "input_len": 256, "output_len": 32, "prefill_latency": 0.1, "median_decode_latency": 0.01,
         "total_latency": 0.41},
        {"run_name": "s", "batch_size": 8, "input_len": 64, "output_len": 11, "latency": 1.1, "last_ttft": 0.1, "acc_length": -1,
         "cache_hit_rate": 0.0, "output_throughput": 80.0},
    ]  # fmt: skip
    offline, server = import_paths([write(tmp_path, "b.jsonl", "\n".join(map(json.dumps, rows)))]).imported
    prefill, decode = offline.steps
    assert (prefill.new_tokens, prefill.context_tokens, prefill.seconds) == (16 * 256, 0, 0.1)
    # decode steps read 256 … 286 cached tokens; the middle one 271
    assert (decode.sequences, decode.context_tokens, decode.repeats) == (16, 16 * 271, 31)
    assert server.serving[0].tpot["mean"] == pytest.approx(0.1)
    assert server.serving[0].acceptance_length is None


def test_guidellm_tpot_is_the_one_without_the_first_token():
    run = one(DATA / "guidellm_v2.json")
    seen = run.serving[0]
    assert seen.tpot["mean"] == pytest.approx(0.0011508464813232422)  # inter_token_latency_ms, not time_per_output_token_ms
    assert seen.e2e["mean"] == pytest.approx(0.01978909969329834)  # seconds in the file
    assert seen.ttft["p50"] == pytest.approx(0.011276006698608398)
    assert (run.workload.arrival, run.workload.rate) == (Arrival.OPEN, 2.0)
    assert run.source.where == "benchmarks[0]"


def test_aiperf_units_and_the_line_file_agree():
    summary = one(DATA / "aiperf" / "profile_export_aiperf.json")
    lines = one(DATA / "aiperf" / "profile_export.jsonl")
    assert summary.serving[0].ttft["mean"] == pytest.approx(0.10191474)
    assert summary.serving[0].tpot["mean"] == pytest.approx(0.004509942658730158)
    assert summary.serving[0].itl["mean"] == pytest.approx(0.009165367338709677)
    for metric in ("ttft", "tpot", "e2e"):
        for statistic in ("mean", "std", "max"):
            assert getattr(lines.serving[0], metric)[statistic] == pytest.approx(getattr(summary.serving[0], metric)[statistic])
    assert summary.workload.concurrency == 4
    assert summary.serving[0].duration == pytest.approx(1.3014138880000001)


@pytest.mark.parametrize(("unit", "factor"), [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("sec", 1.0)])
def test_genai_perf_reads_the_unit(tmp_path, unit, factor):
    raw = {"request_throughput": {"unit": "requests/sec", "avg": 10.0},
           "time_to_first_token": {"unit": unit, "avg": str(0.2 / factor), "p99": 0.3 / factor},
           "output_token_throughput": {"unit": "tokens per sec", "avg": "217.1"},
           "num_output_token": {"unit": "tokens", "avg": "17.5"}, "input_config": {"model": ["m"], "concurrency": 2}}  # fmt: skip
    run = one(write(tmp_path, "g.json", raw))
    assert run.format == "genai-perf"
    assert run.serving[0].ttft == pytest.approx({"mean": 0.2, "p99": 0.3})
    assert run.serving[0].output_tokens_per_s == 217.1
    assert (run.setup.model, run.workload.concurrency, run.workload.output_tokens) == ("m", 2, 17.5)


def test_inference_perf_takes_model_and_flags_from_the_manifest():
    report = import_paths([DATA / "inference_perf"])
    run = report.imported[0]
    assert (run.setup.model, run.setup.device) == ("meta-llama/Llama-3.1-8B-Instruct", "nvidia-h100-80gb")
    assert (run.setup.engine_version, run.setup.max_num_seqs, run.setup.max_model_len) == ("0.11.0", 128, 512)
    assert (run.setup.draft, run.setup.draft_tokens) == ("eagle3", 4)
    assert run.serving[0].tpot["mean"] == pytest.approx(0.0159754735907797)
    assert run.workload.rate == 103.98
    assert any("bursts" in warning for warning in run.warnings)
    assert any("72.6" in warning for warning in run.warnings)  # the generator's achieved rate


def test_trtllm_report(tmp_path):
    percentiles = {"p50": 900.0, "p90": 1000.0, "p95": 1050.0, "p99": 1100.0, "minimum": 700.0, "maximum": 1200.0, "average": 910.0}
    raw = {
        "engine": {"model": "meta-llama/Llama-3.1-8B", "version": "1.2.0", "backend": "Pytorch", "dtype": "bfloat16",
                   "kv_cache_dtype": "FP8", "quantization": "FP8"},
        "machine": {"name": "NVIDIA H100 80GB HBM3", "memory.total": 79.1, "clocks.mem": 2.6},
        "world_info": {"tp_size": 2, "pp_size": 1, "ep_size": None, "world_size": 2, "max_batch_size": 256, "max_num_tokens": 8192,
                       "scheduling_policy": "GUARANTEED_NO_EVICT", "kv_cache_percentage": 0.9, "issue_rate": 9e16},
        "request_info": {"num_requests": 100, "avg_num_concurrent_requests": 9.1, "avg_input_length": 128.0, "avg_output_length": 101.0},
        "performance": {"total_latency_ms": 10000.0, "avg_request_latency_ms": 910.0, "request_throughput_req_s": 10.0,
                        "system_output_throughput_tok_s": 1010.0, "request_latency_percentiles_ms": percentiles},
        "streaming_metrics": {"avg_ttft_ms": 110.0, "avg_tpot_ms": 8.0, "tpot_percentiles": {"p50": 7.9, "average": 8.0},
                              "ttft_percentiles": {"p50": 100.0, "average": 110.0}, "token_output_speed_tok_s": 125.0},
        "decoding_stats": None, "dataset": {},
    }  # fmt: skip
    run = one(write(tmp_path, "r.json", raw))
    assert run.missing == ()
    assert (run.setup.tensor_parallel, run.setup.kv_format, run.setup.precision) == (2, "fp8_e4m3", "fp8")
    assert run.serving[0].tpot["mean"] == 0.008
    assert run.serving[0].e2e["p99"] == pytest.approx(1.1)
    assert run.serving[0].in_flight == pytest.approx(0.91 * 10.0)  # Little's law holds in the sample
    assert run.workload.arrival is Arrival.UNKNOWN  # submitted over 9 s of 10 s: 9e16 / 1e9 ns x 100 requests
    raw["world_info"]["issue_rate"] = 1e15  # within 0.1 s
    assert one(write(tmp_path, "b.json", raw)).workload.arrival is Arrival.BURST


def test_llama_bench_rows(tmp_path):
    base = {"build_commit": "1c1409e1", "build_number": 6865, "cpu_info": "EPYC", "gpu_info": "L4", "model_type": "gpt-oss 20B F16",
            "model_size": 13779630336, "model_n_params": 20914757184, "n_ubatch": 512, "type_k": "f16", "type_v": "f16", "n_gpu_layers": 99,
            "flash_attn": 1}  # fmt: skip
    rows = [
        base | {"n_prompt": 2048, "n_gen": 0, "n_depth": 1024, "avg_ns": 10**9, "samples_ns": [9 * 10**8, 10**9, 11 * 10**8]},
        base | {"n_prompt": 0, "n_gen": 128, "n_depth": 1024, "avg_ns": 128 * 10**7},
        base | {"n_prompt": 512, "n_gen": 128, "n_depth": 0, "avg_ns": 10**9},
    ]
    prefill, decode, both = import_paths([write(tmp_path, "b.json", rows)]).imported
    assert (prefill.steps[0].new_tokens, prefill.steps[0].context_tokens, prefill.steps[0].parts) == (2048, 1024, 4)
    assert prefill.steps[0].spread == pytest.approx(0.2)
    assert decode.steps[0].seconds == pytest.approx(0.01)
    assert decode.steps[0].context_tokens == 1024 + 63.5  # the mean of 1024 … 1151
    assert both.steps == ()
    assert both.serving[0].e2e["mean"] == 1.0
    assert decode.missing == ()


def test_llama_server_timings(tmp_path):
    timings = {"cache_n": 100, "prompt_n": 420, "prompt_ms": 236.423, "predicted_n": 16, "predicted_ms": 75.255}
    run = one(write(tmp_path, "t.json", {"model": "m", "content": "x", "timings": timings}))
    prefill, decode = run.steps
    assert (prefill.new_tokens, prefill.context_tokens) == (420, 100)
    assert decode.seconds == pytest.approx(0.075255 / 15)  # the first token comes with the prompt
    assert decode.context_tokens == 520 + 7
    drafted = timings | {"predicted_n": 192, "predicted_ms": 7300.0, "draft_n": 144, "draft_n_accepted": 118}
    verify = one(write(tmp_path, "d.json", {"timings": drafted})).steps[1]
    assert (verify.kind, verify.repeats) == (StepKind.VERIFY, 191 - 118)
    assert verify.seconds == pytest.approx(0.1)


def test_inferencex_is_seconds(tmp_path):
    run = one(DATA / "inferencex.json")
    assert run.serving[0].tpot["p99"] == pytest.approx(0.026454948791720733)
    assert run.workload.concurrency == 4
    agg = {"hw": "h200", "conc": 64, "image": "vllm/vllm-openai:v0.11.2", "model": "openai/gpt-oss-120b", "framework": "vllm",
           "precision": "fp4", "spec_decoding": "none", "disagg": False, "isl": 1024, "osl": 8192, "tp": 4, "dp_attention": "false",
           "tput_per_gpu": 1000.0, "output_tput_per_gpu": 800.0, "median_ttft": 0.2, "mean_ttft": 0.25, "median_tpot": 0.012,
           "p99_tpot": 0.02, "p99_intvty": 50.0}  # fmt: skip
    run = one(write(tmp_path, "agg.json", agg))
    assert run.missing == ()
    assert (run.setup.device, run.setup.engine_version, run.setup.attention_data_parallel) == ("h200", "0.11.2", False)
    assert run.serving[0].output_tokens_per_s == 3200.0
    assert run.workload.prompt_tokens == 1024


def test_wrapped_results_are_found(tmp_path):
    raw = json.loads((DATA / "inferencex.json").read_text())
    run = one(write(tmp_path, "w.json", {"created": "today", "results": [raw]}))
    assert run.source.where == "results[0]"
