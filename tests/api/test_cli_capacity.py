"""``goodput capacity`` from outside: JSON under fixed keys, lines as the engine words them, bad input in one line."""

import json

import pytest

from api.cli import run

GIB = 1 << 30
QWEN = ["capacity", "--model", "Qwen/Qwen2.5-7B-Instruct", "--engine-version", "0.28", "--max-model-len", "8192"]
V0_LOG = """INFO 12-01 10:00:00 api_server.py:585] vLLM API server version 0.6.4.post1
INFO 12-01 10:00:40 worker.py:232] Memory profiling results: total_gpu_memory=23.58GiB
INFO 12-01 10:00:40 worker.py:240] model weights take 14.99GiB; non_torch_memory takes 0.35GiB; PyTorch activation peak memory takes \
2.07GiB; the rest of the memory reserved for KV Cache is 3.81GiB.
INFO 12-01 10:00:41 gpu_executor.py:76] # GPU blocks: 1952, # CPU blocks: 2048
"""


def answer(arguments, capsysbinary):
    assert run([*arguments, "--json"]) == 0
    out, err = capsysbinary.readouterr()
    assert err == b""
    return json.loads(out)


def test_json_holds_the_pool_of_a_given_size(capsysbinary):
    found = answer([*QWEN, "--available-kv", "16GiB"], capsysbinary)
    assert found["available_kv_bytes"] == 16 * GIB
    assert found["kv_tokens"] == 16 * GIB // (57344 * 16) * 16
    assert found["blocks"] * found["block_size"] == found["kv_tokens"]
    assert found["fits"] is True
    assert found["refusal"] is None
    assert found["interval"]["kv_tokens"] == [found["kv_tokens"]] * 2


def test_a_rounded_size_opens_an_interval_and_a_refusal_names_both_sides(capsysbinary):
    found = answer([*QWEN[:-2], "--max-model-len", "32768", "--available-kv", "1.50GiB"], capsysbinary)
    low, high = found["interval"]["available_kv_bytes"]
    assert high - low == pytest.approx(0.01 * GIB, abs=2)
    assert found["refusal"]["needed_bytes"] == 32768 * 57344
    assert found["refusal"]["available_bytes"] == round(1.5 * GIB)
    assert found["refusal"]["estimated_max_model_len"] == round(1.5 * GIB) // (57344 * 16) * 16


def test_the_parts_add_up_and_a_log_replaces_them(capsysbinary, tmp_path):
    log = tmp_path / "server.log"
    log.write_text(V0_LOG)
    asked = ["capacity", "--model", "meta-llama/Llama-3.1-8B-Instruct", "--device", "rtx3090", "--engine-version", "0.6.4"]
    asked += ["--max-model-len", "20000"]
    guessed, told = answer(asked, capsysbinary), answer([*asked, "--log", str(log)], capsysbinary)
    for found in (guessed, told):
        parts = {name: part["bytes"] for name, part in found["breakdown"].items()}
        assert parts["available"] == parts["requested"] - parts["weights"] - parts["non_torch"] - parts["activation"]
        assert parts["available"] == found["available_kv_bytes"]
    assert told["breakdown"]["activation"] == {"bytes": round(2.07 * GIB), "sd": 0.0, "source": "measured"}
    assert told["available_kv_bytes"] / GIB == pytest.approx(3.81, abs=0.02)
    assert told["breakdown"]["available"]["sd"] < guessed["breakdown"]["available"]["sd"]


def test_a_backend_s_workspace_and_served_adapters_are_told_by_flags(capsysbinary):
    # logged with the backend: 1,669,816 tokens (SGLang on an MI355X), with adapters: 3,852 blocks (vLLM on two V100)
    sglang = ["capacity", "--model", "Qwen/Qwen3-30B-A3B-Instruct-2507", "--engine", "sglang", "--engine-version", "0.5.23"]
    sglang += ["--device", "mi355x", "--gpu-memory-utilization", "0.911", "--attention-backend", "aiter"]
    assert answer(sglang, capsysbinary)["kv_tokens"] == pytest.approx(1_669_816, rel=0.05)
    vllm = ["capacity", "--model", "meta-llama/Llama-3.1-8B-Instruct", "--engine-version", "0.6.4.post1", "--device", "v100-sxm2-16"]
    vllm += ["--tp", "2", "--max-model-len", "40000", "--gpu-memory-utilization", "0.9", "--enable-lora"]
    assert answer(vllm, capsysbinary)["blocks"] == pytest.approx(3_852, rel=0.05)
    assert run([*sglang[:-1], "aitre"]) == 2
    assert b"attention_backend" in capsysbinary.readouterr().err


def test_the_table_prints_the_engine_s_own_lines(capsys):
    assert run([*QWEN, "--available-kv", "16GiB"]) == 0
    out = capsys.readouterr().out
    assert "GPU KV cache size: 299,584 tokens" in out
    assert "Maximum concurrency for 8,192 tokens per request: 36.57x" in out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--tp", "3", "--device", "h100"], "28 attention heads do not divide"),
        ([], "name a device, or give available_kv"),
        (["--available-kv", "16"], "missing unit"),
        (["--available-kv", "-1GiB"], "must not be negative"),
        (["--device", "h100", "--gpu-memory-utilization", "1.5"], "must lie in (0, 1]"),
        (["--device", "h100", "--max-num-batched-tokens", "0"], "must be between 1"),
        (["--device", "h100", "--max-num-seqs", "512", "--max-num-batched-tokens", "64"], "is below max_num_seqs 512"),
        (["--device", "h100", "--kv-cache-dtype", "fp9"], "unknown KV format"),
        (["--device", "h100", "--engine", "vllmm"], "did you mean vllm"),
        (["--device", "h100", "--pp", "99"], "more stages than 28 layers"),
        (["--device", "h100", "--draft", "eagle"], "a draft and its tokens go together"),
        (["--device", "h100", "--log", "/nonexistent.log"], "memory line"),
    ],
)
def test_bad_input_is_one_clear_line(more, words, capsys):
    assert run([*QWEN, *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_the_rank_with_the_least_memory_decides(capsysbinary):
    found = answer([*QWEN, "--available-kv", "16GiB", "--available-kv", "12GiB"], capsysbinary)
    assert found["available_kv_bytes"] == 12 * GIB


def test_an_engine_that_starts_with_too_small_a_pool_is_warned_about(capsysbinary):
    asked = ["capacity", "--model", "Qwen/Qwen3-8B", "--engine", "sglang", "--available-kv", "1GiB", "--max-model-len", "40960"]
    found = answer(asked, capsysbinary)
    assert found["fits"] is True
    assert found["kv_tokens"] == GIB // (36 * 8 * 128 * 2 * 2)
    assert any("does not fit its pool" in warning for warning in found["warnings"])


@pytest.mark.parametrize("flag", [["--parallel", "4"], ["--micro-batch", "77"], ["--attention-backend", "aiter"]])
def test_a_flag_of_another_engine_is_refused(flag, capsys):
    assert run(["capacity", "--model", "Qwen/Qwen3-8B", "--device", "h100", "--engine", "vllm", *flag]) == 2
    assert f"error: {flag[0]}: is a setting of" in capsys.readouterr().err
