"""Qwen3-8B against figures published with the model and worked out in chapter 8."""

import pytest

from models import facts
from models.errors import ContradictionError, NotCoveredError, UnknownNameError
from models.facts.reads import context_read_bytes
from models.readers import load_architecture

MIB = 1 << 20


@pytest.fixture(scope="module")
def qwen():
    return load_architecture("Qwen/Qwen3-8B")


def test_parameters_and_bytes_match_the_published_checkpoint(qwen):
    assert facts.parameters(qwen).total == 8_190_735_360
    assert facts.weight_bytes(qwen) == 16_381_470_720  # total_size of the published safetensors index
    read = facts.weight_read(qwen)
    assert read.fixed == 15_136_811_008  # chapter 8: everything but the embedding, which is looked up by row
    assert read.bytes_for(64) == 15_136_811_008
    assert facts.ffn_bytes_per_layer(qwen) == 288 * MIB


@pytest.mark.parametrize(
    ("kv_format", "share"),
    [
        ("bf16", 1),
        ("fp8_e4m3", 0.5),
        ("q8_0", 34 / 64),
        ("q4_0", 18 / 64),
        ("int8", (128 + 4) / 256),
        ("int4", (64 + 4) / 256),
        ("nvfp4", (64 + 8) / 256),
    ],
)
def test_kv_bytes_follow_the_block_layout_of_each_format(qwen, kv_format, share):
    assert facts.kv_bytes_per_token(qwen, kv_format) == 147_456 * share
    assert facts.kv_bytes(qwen, 1000, kv_format) == 1000 * 147_456 * share


@pytest.mark.parametrize(("new", "cached", "tera"), [(2048, 0, 29.69), (8192, 0, 133.59), (2048, 6144, 37.11)])
def test_prefill_flops_match_the_chapter(qwen, new, cached, tera):
    assert facts.prefill_flops(qwen, new, cached) / 1e12 == pytest.approx(tera, abs=0.005)


def test_prefilling_in_chunks_adds_up_to_one_prefill(qwen):
    chunks = sum(facts.prefill_flops(qwen, 2048, done) for done in range(0, 8192, 2048))
    assert chunks - 3 * facts.flops_per_logit_row(qwen) == facts.prefill_flops(qwen, 8192, 0)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_ranks_hold_the_whole_model_between_them(qwen, tp):
    # only the norms are replicated: 36 x (2 x 4096 + 2 x 128) + 4096 elements
    norms = 2 * (36 * (2 * 4096 + 2 * 128) + 4096)
    assert tp * (facts.weight_bytes(qwen, tp=tp) - norms) + norms == 16_381_470_720
    assert facts.kv_bytes_per_token(qwen, tp=tp) == 147_456 // tp


def test_kv_heads_are_replicated_beyond_their_number(qwen):
    assert facts.kv_bytes_per_token(qwen, tp=16) == 147_456 // 8
    with pytest.raises(ContradictionError, match="32 attention heads"):
        facts.kv_bytes_per_token(qwen, tp=3)


def test_unknown_names_suggest_the_nearest(qwen):
    with pytest.raises(UnknownNameError, match="Qwen/Qwen3-8B"):
        load_architecture("Qwen/Qwen3-8")
    with pytest.raises(UnknownNameError, match="q8_0"):
        facts.kv_bytes(qwen, 1, "q8")


@pytest.mark.parametrize(
    ("name", "heads", "kv_format", "token_bytes"),
    [
        ("nvidia/Qwen3.6-27B-NVFP4", "4 x 256", "int8_per_token_head", 2080),  # bytes a token and layer that vLLM 0.28 users measured
        ("Qwen/Qwen3-8B", "8 x 128", "int8_per_token_head", 2112),
        ("deepseek-ai/DeepSeek-V3.2", "512 + 64", "fp8_ds_mla", 656),  # 512 FP8, 4 FP32 scales, 64 BF16
        ("deepseek-ai/DeepSeek-V3", "512 + 64", "fp8_e4m3", 576),
    ],
)
def test_bytes_of_one_layer_match_what_engines_lay_out(name, heads, kv_format, token_bytes):
    arch = load_architecture(name)
    attention = next(group.attention for group in arch.layers if group.attention)
    shape = (attention.latent_dim, attention.rope_dim) if attention.latent_dim else (attention.kv_heads, attention.key_dim)
    assert sorted(shape) == sorted(int(n) for n in heads.replace("x", " ").replace("+", " ").split())
    assert facts.kv_bytes_per_token(arch, kv_format) == arch.attention_layers * token_bytes


def test_fp8_indexer_keys_carry_their_scale():
    arch = load_architecture("deepseek-ai/DeepSeek-V3.2")
    assert facts.indexer_bytes_per_token(arch, "fp8") == 61 * 132  # 128 FP8 and one FP32 scale


def test_a_latent_format_is_refused_for_other_caches(qwen):
    with pytest.raises(NotCoveredError, match="MLA latents only"):
        facts.kv_bytes_per_token(qwen, "fp8_ds_mla")


def test_compressed_attention_reads_its_window_and_the_chosen_entries():
    arch, tokens = load_architecture("deepseek-ai/DeepSeek-V4-Flash"), 100_000
    entries = 43 * 128 + 21 * 512 + 20 * (tokens // 128)  # windows, chosen 4-fold entries, all 128-fold entries
    indexer = tokens * (21 * 128 * 2 // 4)
    assert context_read_bytes(arch, tokens) == entries * 512 * 2 + indexer
