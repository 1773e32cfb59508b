"""What must hold for every model and engine: more memory never holds less, blocks fit, parts add up, drafts and ranks count."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.capacity import Measured, Settings, capacity
from models.catalog.devices import load_device
from models.catalog.pool_rules import pool_rules
from models.errors import ContradictionError, GoodputError, InputError
from models.readers import load_architecture

GIB = 1 << 30
MODELS = ("Qwen/Qwen3-8B", "openai/gpt-oss-120b", "google/gemma-3-27b-it", "nvidia/Qwen3.6-27B-NVFP4", "deepseek-ai/DeepSeek-V3.2")
ENGINES = (("vllm", "0.6.4"), ("vllm", "0.11"), ("vllm", "0.33"), ("sglang", "0.5.23"), ("trtllm", "1.3"))
drawn = given(
    name=st.sampled_from(MODELS),
    engine=st.sampled_from(ENGINES),
    tp=st.sampled_from((1, 2, 4)),
    gib=st.floats(0.5, 100),
    more=st.floats(0, 20),
    length=st.sampled_from((4096, 32768, 100_000)),
)


def run(name, engine, available=None, device=None, **flags):
    of = load_device(device) if device else None
    return capacity(load_architecture(name), of, pool_rules(*engine), Settings(**flags), Measured(available=available))


@settings(max_examples=120, deadline=None)
@drawn
def test_more_memory_never_holds_less_and_blocks_fit(name, engine, tp, gib, more, length):
    low = run(name, engine, round(gib * GIB), tp=tp, max_model_len=length).pool
    high = run(name, engine, round((gib + more) * GIB), tp=tp, max_model_len=length).pool
    assert 0 <= low.blocks * low.block_bytes <= gib * GIB + 1
    assert low.blocks <= high.blocks
    assert low.tokens <= high.tokens
    assert low.concurrency <= high.concurrency
    if high.refusal and high.needed is not None and high.longest:
        assert high.longest < length


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(MODELS), release=st.sampled_from(("0.17", "0.23", "0.33")), gib=st.floats(1, 40))
def test_the_estimated_length_of_a_refusal_is_the_largest_that_starts(name, release, gib):
    asked = {"kv_cache_dtype": "bf16", "max_num_seqs": 1, "tp": 1}
    refused = run(name, ("vllm", release), round(gib * GIB), max_model_len=4_000_000, **asked).pool
    if not refused.longest:
        return
    assert not run(name, ("vllm", release), round(gib * GIB), max_model_len=refused.longest, **asked).pool.refusal
    assert run(name, ("vllm", release), round(gib * GIB), max_model_len=refused.longest + 1, **asked).pool.refusal


@pytest.mark.parametrize("engine", ENGINES)
def test_latents_are_replicated_and_heads_are_cut(engine):
    same = [run("deepseek-ai/DeepSeek-V3", engine, 10 * GIB, tp=tp, max_model_len=4096).pool.tokens for tp in (1, 8)]
    assert same[0] == same[1]
    cut = [run("Qwen/Qwen3-8B", engine, 10 * GIB, tp=tp, max_model_len=4096).pool.tokens for tp in (1, 8)]
    assert cut[1] / cut[0] == pytest.approx(8, rel=2e-3)
    held = [run("Qwen/Qwen3-8B", engine, 10 * GIB, tp=tp, max_model_len=4096).pool.tokens for tp in (8, 16)]
    assert held[0] == held[1]  # fewer heads than ranks: each keeps a whole one


def test_a_draft_head_adds_one_layer_and_its_weights():
    plain = run("Qwen/Qwen3-8B", ("vllm", "0.28"), device="h100", max_model_len=8192)
    drafted = run("Qwen/Qwen3-8B", ("vllm", "0.28"), device="h100", max_model_len=8192, draft="eagle", draft_tokens=3)
    assert drafted.pool.block_bytes * 36 == plain.pool.block_bytes * 37
    assert drafted.balance.weights.bytes > plain.balance.weights.bytes
    own = run(
        "Qwen/Qwen3-8B", ("vllm", "0.28"), device="h100", max_model_len=8192, draft="model", draft_tokens=3,
        draft_model=load_architecture("Qwen/Qwen3-0.6B"),
    )  # fmt: skip
    assert own.pool.block_bytes == 16 * 2 * 2 * 8 * 128 * (36 + 28)  # eight heads of 128 in both
    assert own.balance.weights.bytes - plain.balance.weights.bytes == pytest.approx(2 * 596e6, rel=0.3)


def test_stages_hold_a_part_of_the_layers_and_of_the_weights():
    one = run("Qwen/Qwen3-8B", ("vllm", "0.28"), device="rtx3090", max_model_len=4096)
    two = run("Qwen/Qwen3-8B", ("vllm", "0.28"), device="rtx3090", max_model_len=4096, pp=2)
    assert two.pool.block_bytes * 2 == one.pool.block_bytes
    assert one.balance.weights.bytes / 2 < two.balance.weights.bytes < 0.6 * one.balance.weights.bytes


@pytest.mark.parametrize("engine", ENGINES)
def test_the_interval_holds_the_estimate_and_widens_with_what_is_unknown(engine):
    report = run("Qwen/Qwen3-8B", engine, device="h100", max_model_len=4096)
    assert report.interval[0] < report.available < report.interval[1]
    assert report.low.tokens <= report.pool.tokens <= report.high.tokens


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ({"tp": 0}, InputError), ({"tp": 3}, ContradictionError), ({"gpu_memory_utilization": 0.0}, InputError),
        ({"gpu_memory_utilization": float("nan")}, InputError), ({"max_model_len": -1}, InputError), ({"block_size": 0}, InputError),
        ({"max_num_seqs": 1 << 60}, InputError), ({"draft": "eagle"}, ContradictionError),
        ({"draft": "wish", "draft_tokens": 1}, InputError),
        ({"draft": "model", "draft_tokens": 1}, InputError), ({"tp": 4, "attention_dp": 3}, ContradictionError),
        ({"pp": 1000}, ContradictionError), ({"kv_cache_dtype": "fp7"}, GoodputError), ({"max_num_batched_tokens": 1.5}, InputError),
    ],
)  # fmt: skip
def test_bad_flags_are_clear_errors(flags, error):
    with pytest.raises(error) as caught:
        run("Qwen/Qwen3-8B", ("vllm", "0.33"), device="h100", **flags)
    assert caught.value.path


def test_what_no_rule_covers_says_so():
    with pytest.raises(GoodputError, match="compressed attention"):
        run("deepseek-ai/DeepSeek-V4-Flash", ("vllm", "0.33"), device="b200-sxm-180")
    with pytest.raises(GoodputError, match="no pool rules for this version"):
        pool_rules("vllm", "0.1")
    with pytest.raises(InputError, match="must be between"):
        Measured(activation=-1)
