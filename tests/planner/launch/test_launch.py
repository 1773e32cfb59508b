"""Commands: every variable appears, what an engine cannot do is said, shell and JSON are well formed."""

from __future__ import annotations

import json
import shlex

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from models.catalog.engines import engine_names, engine_versions, load_engine
from models.describe.configuration import Configuration
from planner.launch import REGISTRY, LaunchCommand, LaunchContext, launch, launch_all
from planner.launch.base import Request
from planner.launch.common import grouping

EVERY = [(name, version) for name in engine_names() for version in engine_versions(name)]
CONTEXT = LaunchContext(model="Qwen/Qwen3-8B", max_model_len=8448, layers=36, layer_bytes=400 << 20)
CHANGES = {
    "max_num_seqs": {"max_num_seqs": 37},
    "max_num_batched_tokens": {"max_num_batched_tokens": 4096},
    "prefill_chunk": {"prefill_chunk": 1024},
    "kv_format": {"kv_format": "q8_0"},
    "weight_format": {"weight_format": "awq_int4"},
    "prefix_sharing": {"prefix_sharing": True},
    "offload_layers": {"offload_layers": 9, "prefetch_buffers": 1},
    "prefetch_buffers": {"offload_layers": 9, "prefetch_buffers": 2},
    "draft": {"draft": "eagle", "draft_tokens": 3},
    "draft_tokens": {"draft": "lookup", "draft_tokens": 5},
    "admission_limit": {"admission_limit": 41},
    "tensor_parallel": {"tensor_parallel": 4},
    "cuda_graphs": {"cuda_graphs": False},
    "captured_sizes": {"captured_sizes": (1, 2, 16)},
}


def settings(**changed: object) -> Configuration:
    return Configuration.model_validate({"max_num_seqs": 16, "max_num_batched_tokens": 8192, **changed})


def value_of(command: LaunchCommand, flag: str) -> str:
    return command.arguments[command.arguments.index(flag) + 1]


def test_the_registry_covers_every_engine_and_every_variable():
    assert set(REGISTRY) == set(engine_names())
    for name, version in EVERY:
        assert set(REGISTRY[name].table(version)) == set(Configuration.model_fields), (name, version)


@pytest.mark.parametrize(("name", "version"), EVERY)
@pytest.mark.parametrize("variable", CHANGES)
def test_a_chosen_value_changes_the_command_or_is_said(name: str, version: str, variable: str):
    """Without the variable's renderer the command would read the same: a dropped variable cannot pass."""
    engine = load_engine(name, version)
    renderer = REGISTRY[name].table(version)[variable]
    before = renderer(Request(settings(), CONTEXT, engine))
    after = renderer(Request(settings(**CHANGES[variable]), CONTEXT, engine))
    assert before != after
    assert after.notes == () or variable in " ".join(after.notes) or after.arguments or after.config


def test_changes_name_every_variable():
    assert set(CHANGES) == set(Configuration.model_fields)


def test_all_engines_and_the_chosen_version():
    commands = launch_all(settings(), CONTEXT, load_engine("vllm", "0.23"))
    assert list(commands) == ["llama_cpp", "sglang", "trtllm", "vllm"]
    assert commands["vllm"].rules_version == "0.23.0"
    assert all(command.launchable for command in commands.values())


def test_the_chapters_d_on_vllm():
    """Configuration D: BF16, prefix shared, DFlash with 7 draft tokens, 16 running requests, graphs off."""
    chosen = settings(prefix_sharing=True, draft="dflash", draft_tokens=7, cuda_graphs=False, admission_limit=16)
    command = launch(
        chosen, LaunchContext(model="Qwen/Qwen3-8B", max_model_len=8448, draft_model="z-lab/Qwen3-8B-DFlash"), load_engine("vllm", "0.23")
    )
    assert command.launchable
    assert command.arguments[0] == "Qwen/Qwen3-8B"
    assert value_of(command, "--max-num-seqs") == "16"
    assert {"--enable-prefix-caching", "--enforce-eager"} <= set(command.arguments)
    assert json.loads(value_of(command, "--speculative-config")) == {
        "method": "dflash", "model": "z-lab/Qwen3-8B-DFlash", "num_speculative_tokens": 7,
    }  # fmt: skip
    assert any("503 beyond 16 requests in flight" in note for note in command.notes)


def test_the_chapters_c_is_not_launchable_on_vllm_but_on_llama():
    commands = launch_all(settings(kv_format="q8_0"), CONTEXT)
    assert not commands["vllm"].launchable
    assert "no q8_0 KV cache" in commands["vllm"].shell
    assert commands["llama_cpp"].launchable
    assert value_of(commands["llama_cpp"], "--cache-type-v") == "q8_0"
    assert value_of(commands["llama_cpp"], "--flash-attn") == "on"


@pytest.mark.parametrize(("version", "expected"), [("0.33", "--max-num-queued-reqs"), ("0.23", None), ("0.11", None)])
def test_vllm_admission_limit_is_a_flag_or_a_note(version: str, expected: str | None):
    command = launch(settings(admission_limit=24), CONTEXT, load_engine("vllm", version))
    if expected:
        assert value_of(command, expected) == "24"
    else:
        assert "--max-num-queued-reqs" not in command.arguments
        assert "# admission_limit 24" in command.shell


@pytest.mark.parametrize(("limit", "running", "waiting"), [(24, "16", "8"), (16, "16", "1"), (10, "10", "1")])
def test_sglang_splits_the_limit_into_running_and_waiting(limit: int, running: str, waiting: str):
    """SGLang refuses a request when the waiting queue with it would exceed the number: 0 would refuse all."""
    command = launch(settings(admission_limit=limit), CONTEXT, load_engine("sglang"))
    assert (value_of(command, "--max-running-requests"), value_of(command, "--max-queued-requests")) == (running, waiting)
    assert (limit > 16) is not any("proxy in front" in note for note in command.notes)


def test_sglang_counts_the_verified_window_and_whole_requests():
    command = launch(settings(draft="eagle", draft_tokens=3, captured_sizes=(4, 8, 64)), CONTEXT, load_engine("sglang"))
    assert value_of(command, "--speculative-num-steps") == "3"
    assert value_of(command, "--speculative-num-draft-tokens") == "4"
    start = command.arguments.index("--cuda-graph-bs-decode") + 1
    assert command.arguments[start : start + 3] == ("1", "2", "16")


def test_sizes_that_are_no_whole_requests_are_left_out_and_named():
    command = launch(settings(draft="eagle", draft_tokens=3, captured_sizes=(1, 4, 8, 10)), CONTEXT, load_engine("sglang"))
    start = command.arguments.index("--cuda-graph-bs-decode") + 1
    assert command.arguments[start : start + 2] == ("1", "2")
    assert any("no multiples: 1, 10" in note for note in command.notes)


def test_older_versions_have_their_own_flags():
    off = settings(cuda_graphs=False)
    assert "--disable-cuda-graph" in launch(off, CONTEXT, load_engine("sglang", "0.5.10")).arguments
    assert value_of(launch(off, CONTEXT, load_engine("sglang", "0.5.23")), "--cuda-graph-backend-decode") == "disabled"
    sized = launch(settings(captured_sizes=(4,)), CONTEXT, load_engine("vllm", "0.11"))
    assert json.loads(value_of(sized, "--compilation-config")) == {"cudagraph_capture_sizes": [4]}
    drafted = settings(draft="model", draft_tokens=6)
    assert value_of(launch(drafted, CONTEXT, load_engine("llama.cpp", "8672")), "--draft-max") == "6"
    assert value_of(launch(drafted, CONTEXT, load_engine("llama.cpp", "11549")), "--spec-draft-n-max") == "6"


def test_offload_by_version():
    chosen = settings(offload_layers=9, prefetch_buffers=2)
    new, old = (launch(chosen, CONTEXT, load_engine("vllm", version)) for version in ("0.33", "0.11"))
    assert [value_of(new, f"--offload-{part}") for part in ("group-size", "num-in-group", "prefetch-step")] == ["4", "1", "2"]
    assert value_of(old, "--cpu-offload-gb") == f"{9 * (400 << 20) / (1 << 30):.4f}"
    assert not old.launchable
    assert value_of(new, "--offload-params") == "mlp"
    unknown = launch(chosen, LaunchContext(model="m", max_model_len=1), load_engine("vllm"))
    assert any("layer count is not known" in note for note in unknown.notes)


@given(st.integers(1, 130), st.data())
def test_groups_offload_exactly_the_wanted_layers(layers: int, data: st.DataObject):
    """Counted layer by layer, as the offloader decides: i mod group >= group - offloaded."""
    wanted = data.draw(st.integers(1, layers))
    group, offloaded = grouping(layers, wanted)
    assert 1 <= offloaded <= group
    assert sum(i % group >= group - offloaded for i in range(layers)) == wanted


def test_no_smaller_group_would_do():
    for layers, wanted in [(36, 9), (36, 10), (48, 5), (7, 3)]:
        group, _ = grouping(layers, wanted)
        for smaller in range(1, group):
            counts = {sum(i % smaller >= smaller - n for i in range(layers)) for n in range(1, smaller + 1)}
            assert wanted not in counts


@pytest.mark.parametrize("name", engine_names())
def test_shell_survives_spaces_and_quotes(name: str):
    context = LaunchContext(model='/models/it\'s a "model"; rm -rf x.gguf', max_model_len=100, draft_model="$HOME/draft `x`")
    command = launch(settings(draft="eagle", draft_tokens=2, cuda_graphs=False), context, load_engine(name))
    words = shlex.split(command.command)
    assignments = len(command.environment)
    assert tuple(words[assignments:]) == command.program + command.arguments
    assert command.shell.splitlines()[-1] == command.command


def test_trtllm_configuration_is_yaml_with_the_same_content():
    command = launch(settings(cuda_graphs=False, draft="mtp", draft_tokens=2, tensor_parallel=2), CONTEXT, load_engine("trtllm"))
    config = yaml.safe_load(command.config_text)
    assert config == command.as_json()["config"]
    assert config["cuda_graph_config"] is None
    assert config["speculative_config"] == {"decoding_type": "MTP", "max_draft_len": 2}
    assert config["max_batch_size"] == 16
    assert f"\n{command.config_text}YAML\n" in command.shell


def test_as_json_is_plain():
    for command in launch_all(settings(captured_sizes=(1, 2)), CONTEXT).values():
        assert json.loads(json.dumps(command.as_json())) == command.as_json()


def test_llama_context_is_for_all_slots_together():
    engine = load_engine("llama.cpp")
    assert value_of(launch(settings(), CONTEXT, engine), "--ctx-size") == str(16 * 8448)
    pooled = launch(settings(), LaunchContext(model="m.gguf", max_model_len=8448, kv_pool_tokens=87_381), engine)
    assert value_of(pooled, "--ctx-size") == "87381"
    assert "--kv-unified" in pooled.arguments


def test_graphs_off_is_an_environment_variable_for_llama():
    command = launch(settings(cuda_graphs=False), CONTEXT, load_engine("llama.cpp"))
    assert command.command.startswith("GGML_CUDA_DISABLE_GRAPHS=1 llama-server ")


def test_memory_is_given_once():
    engine = load_engine("vllm")
    pool = launch(settings(), LaunchContext(model="m", max_model_len=1, kv_pool_bytes=12 << 30, gpu_memory_utilization=0.8), engine)
    assert value_of(pool, "--kv-cache-memory-bytes") == str(12 << 30)
    assert "--gpu-memory-utilization" not in pool.arguments
    share = launch(settings(), LaunchContext(model="m", max_model_len=1, gpu_memory_utilization=0.8, block_tokens=32), engine)
    assert value_of(share, "--gpu-memory-utilization") == "0.8"
    assert value_of(share, "--block-size") == "32"


def test_weights_convert_at_load_or_ask_for_a_checkpoint():
    engine = load_engine("vllm", "0.23")
    assert value_of(launch(settings(weight_format="fp8"), CONTEXT, engine), "--quantization") == "fp8_per_tensor"
    missing = launch(settings(weight_format="awq_int4"), CONTEXT, engine)
    assert any("give a checkpoint stored in awq_int4" in note for note in missing.notes)
    stored = LaunchContext(model="org/model-FP8", max_model_len=1, stored_format="fp8")
    assert "--quantization" not in launch(settings(weight_format="fp8"), stored, engine).arguments
    named = LaunchContext(model="m", max_model_len=1, checkpoints={"awq_int4": "org/model-AWQ"})
    assert launch(settings(weight_format="awq_int4"), named, engine).arguments[0] == "org/model-AWQ"


def test_a_version_between_says_whose_rules_are_used():
    command = launch(settings(), CONTEXT, load_engine("vllm", "0.30.1"))
    assert command.version == "0.30.1"
    assert command.notes[0] == "vLLM 0.30.1: no rules of its own; those of 0.28.0 are used"
