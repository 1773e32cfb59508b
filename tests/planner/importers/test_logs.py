"""Server logs and metric pages."""

from pathlib import Path

import pytest

from models.units import GIB
from planner.importers import import_paths
from planner.records import StepKind

DATA = Path(__file__).parents[2] / "data" / "results"


def one(path):
    report = import_paths([path])
    assert not report.refused, report.refused
    assert len(report.imported) == 1
    return report.imported[0]


def log(folder, text):
    path = Path(folder, "server.log")
    path.write_text(text)
    return path


def test_vllm_startup_memory_matches_the_architecture():
    run = one(DATA / "vllm_0.12.log")
    memory = run.memory[0]
    assert memory.kv_pool_tokens == 51456
    # Qwen3-8B: 36 layers, 8 KV heads of 128, keys and values, 2 bytes; the log rounds to 0.01 GiB
    assert memory.kv_pool_bytes / memory.kv_pool_tokens == pytest.approx(36 * 8 * 128 * 2 * 2, rel=0.005 / 7.07)
    assert memory.max_concurrency == pytest.approx(51456 / 4096, abs=0.005)
    assert memory.weights_bytes == round(5.9785 * GIB)
    assert (run.setup.engine_version, run.setup.model, run.setup.max_num_seqs) == ("0.12.0", "nvidia/Qwen3-8B-NVFP4", 64)
    assert (run.setup.tensor_parallel, run.setup.weight_format) == (1, "modelopt_fp4")
    assert run.missing == ("device",)


def test_vllm_load_lines_are_grouped_by_running_requests():
    run = one(DATA / "vllm_0.12.log")
    windows = {seen.running: seen for seen in run.serving}
    assert set(windows) == {5.0, 52.0, 64.0}  # the line with nothing running is no observation
    assert windows[64.0].windows == 6
    # six lines: 1276.7 1817.0 1807.2 1783.3 1887.1 1874.2
    assert windows[64.0].output_tokens_per_s == pytest.approx((1807.2 + 1817.0) / 2)


OLD_AND_NEW = (
    "INFO metrics.py:396] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 16.7 tokens/s, Running: 16 reqs, "
    "Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 92.1%, CPU KV cache usage: 0.0%.\n"
    "(APIServer pid=1) INFO loggers.py] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 100.0 tokens/s, "
    "Running: 4 reqs, Waiting: 1 reqs, Deferred: 2 reqs, Preemptions: 3, GPU KV cache usage: 50.0%, Prefix cache hit rate: 12.5%\n"
    "INFO worker.py:241] model weights take 7.51GiB; non_torch_memory takes 0.39GiB; PyTorch activation peak memory takes 2.53GiB; "
    "the rest of the memory reserved for KV Cache is 3.76GiB.\n"
    "INFO x] # GPU blocks: 3852, # CPU blocks: 4096\n"
)


def test_vllm_old_and_new_wording(tmp_path):
    run = one(log(tmp_path, OLD_AND_NEW))
    by_running = {seen.running: seen for seen in run.serving}
    assert by_running[16.0].kv_usage == pytest.approx(0.921)
    assert by_running[4.0].prefix_hit_rate == pytest.approx(0.125)
    assert run.memory[0].activation_bytes == round(2.53 * GIB)
    assert run.memory[0].kv_blocks == 3852
    assert "3 preemptions" in run.warnings


def test_vllm_before_its_second_engine(tmp_path):
    """Release 0.6.3: another opening line and another word for the weights, in GB that are GiB."""
    lines = (
        "INFO 10-15 10:00:00 api_server.py:528] vLLM API server version 0.6.3\n"
        "INFO 10-15 10:00:01 llm_engine.py:237] Initializing an LLM engine (v0.6.3) with config: model='Qwen/Qwen2-7B', "
        "speculative_config=None, tokenizer='Qwen/Qwen2-7B', dtype=torch.bfloat16, max_seq_len=4096, tensor_parallel_size=2, "
        "quantization=None, enforce_eager=True, kv_cache_dtype=auto, enable_prefix_caching=False)\n"
        "INFO 10-15 10:00:09 model_runner.py:1071] Loading model weights took 7.1500 GB\n"
        "INFO 10-15 10:00:20 gpu_executor.py:122] # GPU blocks: 3852, # CPU blocks: 4096\n"
    )
    run = one(log(tmp_path, lines))
    assert (run.setup.engine_version, run.setup.model, run.setup.tensor_parallel) == ("0.6.3", "Qwen/Qwen2-7B", 2)
    assert (run.setup.cuda_graphs, run.setup.max_model_len) == (False, 4096)
    assert (run.memory[0].weights_bytes, run.memory[0].kv_blocks) == (round(7.15 * GIB), 3852)


def test_vllm_ranks_are_kept_apart(tmp_path):
    lines = (
        "(Worker_TP0 pid=5) INFO [gpu_model_runner.py] Model loading took 10.5 GiB and 3 seconds\n"
        "(Worker_TP1 pid=6) INFO [gpu_model_runner.py] Model loading took 10.25 GiB and 3 seconds\n"
        "(EngineCore pid=1) INFO GPU KV cache size: 464,848 tokens, Maximum concurrency for 16,384 tokens per request: 28.37x\n"
    )
    run = one(log(tmp_path, lines))
    assert [(m.rank, m.weights_bytes, m.kv_pool_tokens) for m in run.memory] == [
        (0, round(10.5 * GIB), 464848),
        (1, round(10.25 * GIB), 464848),
    ]


def test_vllm_refused_start_is_a_memory_observation(tmp_path):
    line = (
        "ValueError: To serve at least one request with the model's max seq len (40960), (5.63 GiB KV cache is needed, which is larger "
        "than the available KV cache memory (2.00 GiB). Based on the available memory, the estimated maximum model length is 14544."
    )
    run = one(log(tmp_path, line))
    assert not run.memory[0].fits
    assert run.memory[0].kv_pool_bytes == 2 * GIB


def test_vllm_iterations(tmp_path):
    lines = ["INFO GPU KV cache size: 1,000 tokens"]
    lines += [f"INFO Iteration({i}): 0 context requests, 0 context tokens, 8 generation requests, 8 generation tokens, "
              f"iteration elapsed time: {ms} ms, GPU KV cache usage: 40.0%" for i, ms in enumerate((10.0, 11.0, 12.0))]  # fmt: skip
    lines.append("INFO Iteration(9): 2 context requests, 512 context tokens, 8 generation requests, 8 generation tokens, iteration elapsed "
                 "time: 30.5 ms, GPU KV cache usage: 40.0%")  # fmt: skip
    lines.append("INFO Iteration(10): 0 context requests, 0 context tokens, 1 generation requests, 1 generation tokens, iteration elapsed "
                 "time: 5.0 ms (dummy), GPU KV cache usage: 0.0%")  # fmt: skip
    lines.append("INFO Iteration(11): 0 context requests, 0 context tokens, 2 generation requests, 8 generation tokens, iteration elapsed "
                 "time: -1 ms, GPU KV cache usage: 0.0%")  # fmt: skip
    run = one(log(tmp_path, "\n".join(lines)))
    decode, mixed = run.steps
    assert (decode.kind, decode.seconds, decode.repeats) == (StepKind.DECODE, pytest.approx(0.011), 3)
    assert decode.context_tokens == 400  # 40 % of 1,000
    assert (mixed.kind, mixed.new_tokens, mixed.sequences) == (StepKind.MIXED, 520, 10)
    assert any("1 load or step lines are not understood, the first on line 7" in warning for warning in run.warnings)


def test_vllm_speculation_lines(tmp_path):
    line = (
        "INFO SpecDecoding metrics: Mean acceptance length: 2.40, Accepted throughput: 14.0 tokens/s, Drafted throughput: 20.0 tokens/s, "
        "Accepted: 140 tokens, Drafted: 200 tokens, Per-position acceptance rate: 0.800, 0.600, Avg Draft acceptance rate: 70.0%"
    )
    run = one(log(tmp_path, line))
    assert run.serving[0].acceptance_length == pytest.approx(1 + 0.8 + 0.6)
    assert run.serving[0].acceptance_rate == pytest.approx(0.7)
    assert run.serving[0].acceptance_by_position == (0.8, 0.6)


def test_sglang_log(tmp_path):
    run = one(DATA / "sglang.log")
    by_running = {seen.running: seen for seen in run.serving}
    assert by_running[40.0].output_tokens_per_s == 155.34
    assert by_running[40.0].acceptance_length == 3.13
    assert by_running[4.0].kv_usage == 1.0  # full token usage, not that of the sliding window
    lines = (
        "[2026-01-01 00:00:00 TP1] KV Cache is allocated. #tokens: 1000, K size: 1.50 GB, V size: 1.50 GB\n"
        "[2026-01-01 00:00:00 TP1] Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail mem=60.00 GB, mem usage=15.25 GB.\n"
    )
    run = one(log(tmp_path, lines))
    assert run.memory[0].kv_pool_bytes == 3 * GIB  # GB of these logs is GiB
    assert run.memory[0].weights_bytes == round(15.25 * GIB)


def test_llama_server_log():
    run = one(DATA / "llama_server.log")
    first_prefill, first_decode, _, verify = run.steps
    assert first_prefill.context_tokens == 0  # n_past 51 when the prompt of 51 was done
    assert first_decode.seconds == pytest.approx(23.03887 / 274)
    assert verify.kind is StepKind.VERIFY
    assert verify.repeats == 191 - 118
    assert any(seen.acceptance_length == 4.30 for seen in run.serving)


METRICS = """# HELP vllm:num_requests_running x
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 250.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",gpu_memory_utilization="0.9",num_gpu_blocks="2048"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 50.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.2",model_name="m"} 100.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 100.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 100.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 11.0
vllm:request_prompt_tokens_sum{engine="0",model_name="m"} 51200.0
vllm:request_prompt_tokens_count{engine="0",model_name="m"} 100.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 40.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 20.0
"""


def test_prometheus(tmp_path):
    run = one(log(tmp_path, METRICS))
    seen = run.serving[0]
    assert seen.ttft["mean"] == pytest.approx(0.11)
    assert seen.ttft["p50"] == pytest.approx(0.1)
    assert seen.ttft["p90"] == pytest.approx(0.18)  # 40 of 50 through the bucket from 0.1 to 0.2
    assert (seen.prefix_hit_rate, seen.kv_usage, seen.acceptance_length) == (0.25, 0.25, 3.0)
    assert run.memory[0].kv_pool_tokens == 2048 * 16
    assert run.workload.prompt_tokens == 512
    assert run.setup.model == "m"


def test_prometheus_with_a_broken_line_names_it(tmp_path):
    report = import_paths([log(tmp_path, METRICS.replace("} 11.0", "} eleven"))])
    assert not report.imported
    assert "eleven" in METRICS.replace("} 11.0", "} eleven").splitlines()[report.refused[0].line - 1]


def test_a_flag_that_is_not_understood_costs_only_a_warning(tmp_path):
    run = one(log(tmp_path, (DATA / "vllm_0.12.log").read_text().replace("tensor_parallel_size=1", "tensor_parallel_size=many")))
    assert run.memory[0].kv_pool_tokens == 51456
    assert any("tensor_parallel_size" in warning for warning in run.warnings)
    assert "tensor_parallel" in run.missing


def test_prometheus_idle_server_still_tells_its_pool(tmp_path):
    idle = "\n".join(line for line in METRICS.splitlines() if "seconds" not in line and "request_prompt" not in line)
    run = one(log(tmp_path, idle))
    assert run.serving == ()
    assert run.memory[0].utilization == 0.9


def test_prometheus_of_the_first_engine(tmp_path):
    """V0 names: ``gpu_cache_usage_perc`` is a fraction, ``time_per_output_token_seconds`` is one value a gap, aborted is not completed."""
    lines = [
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.25',
        'vllm:gpu_prefix_cache_hit_rate{model_name="m"} -1.0',
        'vllm:num_preemptions_total{model_name="m"} 2.0',
        'vllm:request_success_total{finished_reason="stop",model_name="m"} 7.0',
        'vllm:request_success_total{finished_reason="abort",model_name="m"} 1.0',
        'vllm:time_per_output_token_seconds_bucket{le="0.01",model_name="m"} 0.0',
        'vllm:time_per_output_token_seconds_bucket{le="0.025",model_name="m"} 990.0',
        'vllm:time_per_output_token_seconds_bucket{le="+Inf",model_name="m"} 990.0',
        'vllm:time_per_output_token_seconds_count{model_name="m"} 990.0',
        'vllm:time_per_output_token_seconds_sum{model_name="m"} 19.8',
        'vllm:cache_config_info{block_size="16",cache_dtype="auto",gpu_memory_utilization="0.9",num_gpu_blocks="27901"} 1.0',
    ]
    run = one(log(tmp_path, "\n".join(lines)))
    seen = run.serving[0]
    assert (seen.itl["mean"], seen.itl["p50"]) == (pytest.approx(0.02), pytest.approx(0.0175))
    assert (seen.completed, seen.failed, seen.preemptions, seen.kv_usage, seen.prefix_hit_rate) == (7, 1, 2, 0.25, None)
    assert run.memory[0].kv_pool_tokens == 27901 * 16
