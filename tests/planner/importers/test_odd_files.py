"""Every importer against damaged and contradictory files: each is answered in one line, none crashes."""

import copy
import json
import random
import re
from pathlib import Path

import pytest

from planner.importers import import_paths

DATA = Path(__file__).parents[2] / "data" / "results"
PERCENTILES = {"p50": 900.0, "p99": 1000.0, "average": 910.0, "minimum": 800.0, "maximum": 1100.0}
SAMPLES = {
    "vllm serve": json.loads((DATA / "vllm_serve_plain.json").read_text()),
    "vllm detailed": json.loads((DATA / "vllm_serve_detailed.json").read_text()),
    "guidellm": json.loads((DATA / "guidellm_v2.json").read_text()),
    "aiperf": json.loads((DATA / "aiperf" / "profile_export_aiperf.json").read_text()),
    "aiperf request": json.loads((DATA / "aiperf" / "profile_export.jsonl").read_text().splitlines()[0]),
    "inference-perf": json.loads((DATA / "inference_perf" / "results" / "stage_6_lifecycle_metrics.json").read_text()),
    "inferencex": json.loads((DATA / "inferencex.json").read_text()),
    "sglang serving": json.loads((DATA / "sglang_serving.jsonl").read_text().splitlines()[0])
    | {"server_info": {"tp_size": 4, "version": "1", "internal_states": [{"memory_usage": {"weight": 1.0, "kvcache": 2.0}}]}},
    "sglang one batch": {"batch_size": 16, "input_len": 256, "output_len": 32, "prefill_latency": 0.1, "median_decode_latency": 0.01,
                         "prefill_throughput": 40960.0, "median_decode_throughput": 1600.0},
    "sglang server": {"batch_size": 8, "input_len": 64, "output_len": 11, "latency": 1.1, "last_ttft": 0.1, "acc_length": -1,
                      "output_throughput": 88.0},
    "llama-bench": {"build_commit": "c", "gpu_info": "G", "model_type": "m", "n_gpu_layers": 99, "n_ubatch": 512, "type_k": "f16",
                    "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ns": 10**9, "avg_ts": 512.0, "samples_ns": [10**9]},
    "llama-server": {"timings": {"cache_n": 0, "prompt_n": 420, "prompt_ms": 236.4, "prompt_per_second": 1776.6, "predicted_n": 16,
                                 "predicted_ms": 75.2, "predicted_per_second": 212.7, "draft_n": 10, "draft_n_accepted": 5}},
    "vllm forward": {"case": "d", "requests": [{"query_len": 1, "context_len": 512}], "median_us": 5000.0,
                     "ranks": [{"num_tokens": 1, "kv_blocks": 32, "latency_us": {"median": 5000.0, "sample_spread_pct": 2.0}}]},
    "vllm latency": {"avg_latency": 2.0, "latencies": [1.9, 2.1], "percentiles": {"10": 1.9}, "model_id": "m"},
    "vllm throughput": {"elapsed_time": 10.0, "num_requests": 100, "total_num_tokens": 5000, "requests_per_second": 10.0},
    "trtllm": {"engine": {"model": "m", "version": "1", "dtype": "bfloat16", "kv_cache_dtype": "FP8", "quantization": None},
               "machine": {"name": "H", "memory.total": 79.1}, "world_info": {"tp_size": 2, "pp_size": 1, "max_batch_size": 256},
               "request_info": {"num_requests": 100, "avg_input_length": 128.0, "avg_output_length": 101.0},
               "performance": {"total_latency_ms": 10000.0, "avg_request_latency_ms": 910.0, "request_throughput_req_s": 10.0,
                               "request_latency_percentiles_ms": PERCENTILES},
               "streaming_metrics": {"avg_ttft_ms": 110.0, "tpot_percentiles": {"p50": 7.9, "average": 8.0}}},
}  # fmt: skip
TIMES = {"vllm serve": r"_ms$", "vllm detailed": r"_ms$", "guidellm": r"_ms$|^request_latency$", "aiperf": r"latency$|^time_to_first",
         "inference-perf": r"^latency$", "inferencex": r"^(median|p99)_", "sglang serving": r"_ms$", "sglang one batch": r"latency$",
         "sglang server": r"latency|ttft", "llama-bench": r"_ns$", "llama-server": r"_ms$", "vllm forward": r"^median_us$",
         "vllm throughput": r"^elapsed", "trtllm": r"_ms$|percentiles$"}  # fmt: skip
ODD = [None, [], {}, "", "x", [[]], [1, 2], True, -1, 0, 1e308, 2**80, float("nan"), float("inf"), "nan", "1e5", {"a": 1}, 1e-320, "remove"]


def places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(min(len(value), 2)):
            yield from places(value[index], (*path, index))


def replaced(value, path, odd):
    if not path:
        return odd
    changed = copy.deepcopy(value)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    if odd == "remove":
        del inner[path[-1]]
    else:
        inner[path[-1]] = odd
    return changed


def answer(path, value):
    path.write_text(json.dumps(value))
    return import_paths([path])


@pytest.mark.parametrize("name", SAMPLES)
def test_the_sample_itself_is_good(tmp_path, name):
    report = answer(tmp_path / "r.json", SAMPLES[name])
    assert not report.refused
    assert report.imported


@pytest.mark.parametrize("name", SAMPLES)
def test_an_odd_value_anywhere_is_answered(tmp_path, name):
    draw = random.Random(name)
    everywhere = [(path, odd) for path in places(SAMPLES[name]) for odd in ODD]
    for path, odd in draw.sample(everywhere, min(120, len(everywhere))):
        report = answer(tmp_path / "r.json", replaced(SAMPLES[name], path, odd))
        assert report.imported or report.refused, (path, odd)
        assert not any("not understood" in found.reason for found in report.refused), (path, odd, report.refused)


def scaled(value, pattern, factor, *, on=False):
    if isinstance(value, dict):
        return {key: scaled(inner, pattern, factor, on=on or bool(re.search(pattern, key))) for key, inner in value.items()}
    if isinstance(value, list):
        return [scaled(inner, pattern, factor, on=on) for inner in value]
    return value * factor if on and isinstance(value, int | float) and not isinstance(value, bool) else value


@pytest.mark.parametrize("factor", [1e3, 1e-3])
@pytest.mark.parametrize("name", TIMES)
def test_a_wrong_unit_of_all_times_is_named(tmp_path, name, factor):
    report = answer(tmp_path / "r.json", scaled(SAMPLES[name], TIMES[name], factor))
    assert not report.imported
    assert all("unit" in found.reason for found in report.refused), report.refused


@pytest.mark.parametrize("name", ["vllm_0.12.log", "sglang.log", "llama_server.log"])
def test_damaged_logs(tmp_path, name):
    data = (DATA / name).read_bytes()
    draw = random.Random(name)
    path = tmp_path / name
    for _ in range(60):
        damaged = bytearray(data)
        for _ in range(draw.randint(1, 40)):
            damaged[draw.randrange(len(damaged))] = draw.choice(b"0123456789.,-()%\n x\xff")
        path.write_bytes(bytes(damaged))
        report = import_paths([path])
        assert report.imported or report.refused
        assert not any("not understood" in found.reason for found in report.refused), report.refused
