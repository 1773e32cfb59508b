"""Laws that hold for every model: counting by brute force, ranks against the whole, growth with the sequence."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import facts
from models.catalog.models_catalog import model_names
from models.errors import ContradictionError
from models.readers import load_architecture

SAMPLE = [
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-30B-A3B",
    "deepseek-ai/DeepSeek-V3.2",
    "google/gemma-4-E4B",
    "openai/gpt-oss-120b",
    "tiiuae/Falcon-H1-0.5B-Base",
    "Qwen/Qwen3.5-27B",
    "moonshotai/Kimi-Linear-48B-A3B-Instruct",
    "deepseek-ai/DeepSeek-V4-Flash",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
    "ai21labs/AI21-Jamba-1.5-Mini",
    "Qwen/Qwen3-32B-AWQ",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "nvidia/MiniMax-M3-NVFP4",
]


@given(new=st.integers(1, 60), cached=st.integers(0, 60), limit=st.one_of(st.none(), st.integers(1, 80)))
def test_pairs_are_the_visible_keys_of_each_new_token(new, cached, limit):
    seen = [cached + i + 1 for i in range(new)]
    assert facts.attention_pairs(new, cached, limit) == sum(min(n, limit) if limit else n for n in seen)


@pytest.mark.parametrize("name", SAMPLE)
@settings(max_examples=15, deadline=None)
@given(parts=st.lists(st.integers(1, 3000), min_size=1, max_size=5))
def test_a_prefill_in_chunks_costs_one_prefill_and_a_head_row_for_each_further_chunk(name, parts):
    arch, done, total = load_architecture(name), 0, 0
    for part in parts:
        total += facts.prefill_flops(arch, part, done)
        done += part
    assert total == facts.prefill_flops(arch, done) + (len(parts) - 1) * facts.flops_per_logit_row(arch)


@pytest.mark.parametrize("name", SAMPLE)
@settings(max_examples=15, deadline=None)
@given(tokens=st.integers(0, 200_000), more=st.integers(0, 5000))
def test_a_longer_sequence_never_holds_less_and_never_grows_faster_than_below_its_windows(name, tokens, more):
    arch = load_architecture(name)
    grown = facts.kv_bytes(arch, tokens + more) - facts.kv_bytes(arch, tokens)
    # compressed entries come in whole groups, so they may arrive one group early
    rate = facts.kv_bytes_per_token_below_window(arch) + facts.indexer_bytes_per_token(arch)
    assert 0 <= grown <= (more + 128) * rate
    assert facts.kv_bytes(arch, 0) == facts.state_bytes_per_sequence(arch)


@pytest.mark.parametrize("name", model_names())
def test_ranks_hold_at_least_the_whole_between_them_and_never_more_than_a_smaller_group(name):
    arch = load_architecture(name)
    before = (facts.weight_bytes(arch), facts.kv_bytes(arch, 5000), facts.weight_read(arch).fixed)
    whole = before
    for tp in (2, 4, 8):
        try:
            now = (facts.weight_bytes(arch, tp=tp), facts.kv_bytes(arch, 5000, tp=tp), facts.weight_read(arch, tp=tp).fixed)
        except ContradictionError as refusal:
            assert "do not divide" in str(refusal) or "neither divide" in str(refusal)  # noqa: PT017 - refused sizes are allowed
            return
        assert all(part <= last for part, last in zip(now, before, strict=True))
        assert all(part * tp >= total for part, total in zip(now, whole, strict=True))
        before = now


@pytest.mark.parametrize("name", SAMPLE)
def test_reads_grow_with_rows_towards_everything_and_never_beyond(name):
    arch = load_architecture(name)
    read = facts.weight_read(arch)
    rows = [read.bytes_for(n) for n in (1, 2, 8, 64, 4096)]
    assert rows == sorted(rows)
    assert rows[-1] <= read.fixed + read.experts
    assert read.fixed + read.experts <= facts.weight_bytes(arch)
    assert rows[0] == pytest.approx(read.fixed + read.experts * read.expert_fraction)


def test_sparse_attention_prefills_cheaper_than_dense_once_the_context_exceeds_its_choice():
    sparse, dense = load_architecture("deepseek-ai/DeepSeek-V3.2"), load_architecture("deepseek-ai/DeepSeek-V3")
    assert facts.prefill_flops(sparse, 2048) > facts.prefill_flops(dense, 2048)  # the indexer comes on top
    assert facts.prefill_flops(sparse, 2048, 100_000) < facts.prefill_flops(dense, 2048, 100_000)
