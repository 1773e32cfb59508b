"""The engines' catalogue: names, versions, rules from released packages, and what an engine cannot run."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import ValidationError

from models.catalog.engines import engine_names, engine_versions, load_engine
from models.describe.configuration import Configuration, DraftSource, KvFormat
from models.describe.engine import Admission, Engine, not_launchable
from models.errors import InputError, UnknownNameError
from models.facts.formats import WEIGHT_FORMATS
from models.units import GIB

EVERY = [(name, version) for name in engine_names() for version in engine_versions(name)]


def plain(**settings: object) -> Configuration:
    return Configuration.model_validate({"max_num_seqs": 16, "max_num_batched_tokens": 8192, **settings})


def test_names_and_aliases():
    assert engine_names() == ("llama_cpp", "sglang", "trtllm", "vllm")
    for alias, name in {"llama.cpp": "llama_cpp", "llama-server": "llama_cpp", "tensorrt-llm": "trtllm", " vLLM ": "vllm"}.items():
        assert load_engine(alias).name == name


def test_unknown_name_suggests():
    with pytest.raises(UnknownNameError, match=r"engine\.name: unknown engine \(got vlm\); did you mean vllm"):
        load_engine("vlm")


@pytest.mark.parametrize("version", ["0.5.3", "0.34", "9.9"])
def test_unknown_version_lists_the_known(version: str):
    with pytest.raises(UnknownNameError, match=r"known: 0\.11\.0, 0\.17\.0, 0\.23\.0, 0\.28\.0, 0\.33\.0"):
        load_engine("vllm", version)


@pytest.mark.parametrize("version", ["", "latest", "x" * 100])
def test_not_a_version(version: str):
    with pytest.raises(InputError):
        load_engine("vllm", version)


@pytest.mark.parametrize(
    ("asked", "rules", "exact"),
    [
        ("0.23", "0.23.0", True),
        ("v0.23.0", "0.23.0", True),
        ("0.23.1", "0.23.0", False),
        ("0.32.0", "0.28.0", False),
        ("0.33.4", "0.33.0", False),
    ],
)
def test_nearest_rules_that_are_not_newer(asked: str, rules: str, exact: bool):
    engine = load_engine("vllm", asked)
    assert (engine.rules_version, engine.exact) == (rules, exact)
    assert (engine.version_note == "") is exact
    assert exact or rules in engine.version_note


def test_llama_builds_are_ordered_as_numbers():
    assert load_engine("llama.cpp", "b9000").rules_version == "8672"
    assert load_engine("llama.cpp", "b12000").rules_version == "11549"


@pytest.mark.parametrize(("name", "version"), EVERY)
def test_every_value_has_its_source_and_a_known_name(name: str, version: str):
    engine = load_engine(name, version)
    own = {"name", "title", "program", "version", "rules_version", "exact", "date", "package", "sources"}
    assert set(engine.sources) == set(Engine.model_fields) - own
    assert all(len(source) > 10 for source in engine.sources.values())
    assert set(engine.weight_formats) <= set(WEIGHT_FORMATS)
    assert engine.package
    assert engine.date


def test_frozen():
    with pytest.raises(ValidationError):
        load_engine("vllm").block_tokens = 32  # type: ignore[misc]


def test_block_sizes_and_defaults_of_the_engines():
    """Table of the engines' defaults: vLLM 16 and 0.92, TensorRT-LLM 32 and 0.9, SGLang page 1."""
    assert [load_engine(name).block_tokens for name in ("vllm", "trtllm", "sglang")] == [16, 32, 1]
    assert load_engine("vllm", "0.23").gpu_memory_utilization == 0.92
    assert load_engine("vllm", "0.11").gpu_memory_utilization == 0.9


def test_default_sizes_by_device_memory():
    engine = load_engine("vllm", "0.33")
    cards = [(32, "rtx-5090"), (80, "h100-sxm-80"), (80, "a100-sxm-80"), (80, "NVIDIA A100 80GB"), (180, "b200")]
    chosen = [engine.default_sizes(memory * GIB, device) for memory, device in cards]
    assert [(tier.max_num_seqs, tier.max_num_batched_tokens) for tier in chosen] == [
        (256, 2048), (1024, 8192), (256, 2048), (256, 2048), (1024, 16384),
    ]  # fmt: skip


def test_capture_sizes_of_a_real_start():
    """A start-up log of vLLM 0.12 with max_num_seqs 64 and 8192 tokens lists 1, 2, 4 and 8 to 128 in steps of 8."""
    logged = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128)
    for version in ("0.12.0", "0.23.0", "0.33.0"):
        assert load_engine("vllm", version).captured_sizes(plain(max_num_seqs=64)) == logged


@pytest.mark.parametrize(
    ("seqs", "draft_tokens", "blackwell", "largest"),
    [(16, 0, False, 32), (64, 3, False, 512), (1024, 0, False, 512), (1024, 0, True, 1024), (256, 7, True, 1024)],
)
def test_vllm_ceiling(seqs: int, draft_tokens: int, blackwell: bool, largest: int):
    """min(max_num_seqs x decode_query_len x 2, 512; 1024 on Blackwell data-centre parts)."""
    draft = {"draft": "eagle", "draft_tokens": draft_tokens} if draft_tokens else {}
    sizes = load_engine("vllm", "0.33").captured_sizes(plain(max_num_seqs=seqs, **draft), datacentre_blackwell=blackwell)
    assert sizes[-1] == largest


def test_steps_of_sixteen_above_256():
    sizes = load_engine("vllm", "0.33").captured_sizes(plain(max_num_seqs=512))
    assert [b - a for a, b in pairwise(sizes)] == [1, 2, 4, *[8] * 31, *[16] * 16]


def test_draft_sizes_hold_whole_requests():
    """Before 0.33 every size is rounded up to a multiple of draft_tokens + 1; 0.33 adds whole decode batches instead."""
    drafting = plain(max_num_seqs=5, draft="eagle", draft_tokens=2)
    assert load_engine("vllm", "0.23").captured_sizes(drafting) == (3, 6, 9, 18, 24)
    assert load_engine("vllm", "0.33").captured_sizes(drafting) == (1, 2, 3, 4, 6, 8, 12, 15, 16, 24)


CAPTURED = json.loads((Path(__file__).parents[2] / "data" / "capture_sizes" / "defaults.json").read_text())


@pytest.mark.parametrize("release", CAPTURED)
def test_default_sizes_are_those_of_the_engines_own_function(release: str):
    """The packages' own functions were run on these inputs; provenance beside the data."""
    engine = load_engine(*release.split())
    for seqs, budget, draft_tokens, blackwell, sizes in CAPTURED[release]:
        draft = {"draft": "eagle", "draft_tokens": draft_tokens} if draft_tokens else {}
        configuration = plain(max_num_seqs=seqs, max_num_batched_tokens=budget, **draft)
        assert list(engine.captured_sizes(configuration, datacentre_blackwell=blackwell)) == sizes, (seqs, budget, draft_tokens)


def test_sizes_stay_within_the_token_budget():
    sizes = load_engine("vllm", "0.33").captured_sizes(plain(max_num_seqs=64, max_num_batched_tokens=100))
    assert sizes[-1] == 100
    assert max(sizes) <= 100


def test_sglang_sizes_follow_memory_and_ranks():
    engine = load_engine("sglang", "0.5.23")
    few, many = plain(max_num_seqs=1000), plain(max_num_seqs=1000, tensor_parallel=4)
    assert [engine.captured_sizes(c, device_memory=80 * GIB)[-1] for c in (few, many)] == [256, 512]
    assert engine.captured_sizes(plain(max_num_seqs=10), device_memory=80 * GIB) == (1, 2, 4, 8, 10)


def test_sglang_counts_requests_so_rows_are_multiples():
    sizes = load_engine("sglang").captured_sizes(plain(max_num_seqs=3, draft="eagle", draft_tokens=4))
    assert sizes == (5, 10, 15)


def test_no_graphs_no_sizes():
    assert load_engine("vllm").captured_sizes(plain(cuda_graphs=False)) == ()
    assert load_engine("vllm").captured_sizes(plain(captured_sizes=(1, 3))) == (1, 3)


def test_the_chapters_c_cannot_run_on_vllm():
    (reason,) = not_launchable(plain(kv_format=KvFormat.Q8_0), load_engine("vllm", "0.23"))
    assert reason.startswith("vLLM 0.23.0 has no q8_0 KV cache (has bf16, fp8_e4m3")
    assert not_launchable(plain(kv_format=KvFormat.Q8_0), load_engine("llama.cpp")) == ()


@pytest.mark.parametrize(
    ("name", "version", "settings", "words"),
    [
        ("vllm", "0.11", {"draft": "model", "draft_tokens": 4}, "cannot draft with model"),
        ("vllm", "0.11", {"offload_layers": 4, "prefetch_buffers": 1}, "without prefetch buffers"),
        ("vllm", None, {"weight_format": "q4_0"}, "loads no q4_0 weights"),
        ("vllm", None, {"max_num_batched_tokens": 8}, "max_num_batched_tokens >= max_num_seqs"),
        ("llama.cpp", None, {"offload_layers": 4, "prefetch_buffers": 1}, "computes the layers left in host memory on the host"),
        ("llama.cpp", None, {"max_num_seqs": 300}, "at most 256 requests"),
        ("llama.cpp", None, {"prefix_sharing": True}, "inside one slot only"),
        ("trtllm", None, {"offload_layers": 4, "prefetch_buffers": 1}, "keeps every layer on the device"),
        ("sglang", None, {"prefill_chunk": 512}, "no chunk apart from the token budget"),
        ("sglang", None, {"captured_sizes": (5, 7), "draft": "eagle", "draft_tokens": 1}, "whole requests of 2 rows"),
    ],
)
def test_what_an_engine_cannot_run_is_said(name: str, version: str | None, settings: dict[str, object], words: str):
    reasons = not_launchable(plain(**settings), load_engine(name, version))
    assert any(words in reason for reason in reasons), reasons


@pytest.mark.parametrize("name", engine_names())
def test_the_plain_configuration_runs_everywhere(name: str):
    assert not_launchable(plain(), load_engine(name)) == ()


def test_offload_and_every_draft_run_on_the_newest_vllm():
    engine = load_engine("vllm", "0.33")
    assert not_launchable(plain(offload_layers=4, prefetch_buffers=2), engine) == ()
    for source in set(DraftSource) - {DraftSource.NONE}:
        assert not_launchable(plain(draft=source, draft_tokens=4), engine) == ()


def test_sglang_offloads_one_family_only():
    chosen, engine = plain(offload_layers=4, prefetch_buffers=1), load_engine("sglang")
    (reason,) = not_launchable(chosen, engine, "qwen3")
    assert "deepseek_v3" in reason
    assert not_launchable(chosen, engine, "deepseek_v3") == not_launchable(chosen, engine) == ()


def test_an_engine_that_captures_every_shape_runs_any_list():
    assert not_launchable(plain(captured_sizes=(1, 2)), load_engine("llama.cpp")) == ()


def test_which_requests_an_admission_limit_counts():
    assert load_engine("vllm", "0.33").admission is Admission.IN_FLIGHT
    assert load_engine("vllm", "0.23").admission is Admission.NONE
    assert load_engine("sglang").admission is Admission.QUEUED


def test_attention_kernels_of_llama_cpp_on_a_cpu():
    """ggml's tiled kernel needs 64 rows and an unquantised cache; other backends and engines have one kernel."""
    llama = load_engine("llama_cpp")
    assert llama.separate_batches
    assert llama.tiled_from("CPU x86-64", KvFormat.BF16) == 64
    assert llama.tiled_from("CPU x86-64", KvFormat.Q8_0) > 10**9
    assert llama.tiled_from("Blackwell", KvFormat.Q8_0) == 0
    assert load_engine("vllm").tiled_from("CPU x86-64", KvFormat.BF16) == 0
