"""Physical quantities of a served load against hand calculation from the published shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.calibration.served_load import ServedLoad, first_token_terms, kv_overflow, load_facts, shape_of, step_terms
from models.catalog.devices import load_device
from models.catalog.serving_prior import first_token_coefficients, kernel_widths, step_coefficients
from models.errors import ContradictionError
from models.readers.load import load_architecture


def load(name="Qwen/Qwen3-8B", **changes):
    base = {
        "arch": load_architecture(name), "device": load_device("h100-sxm-80"), "compute_precision": "bf16", "dense_bits": 16.0,
        "expert_bits": 16.0, "kv_format": "bf16", "devices": 1, "attention_ranks": 1, "expert_parallel": False, "concurrency": 4.0,
        "prompt": 1024, "output": 256,
    }  # fmt: skip
    return ServedLoad(**(base | changes))


def facts(served):
    return load_facts(served, shape_of(served.arch))


def test_dense_model_by_hand():
    """Qwen3-8B: 36 layers, hidden 4096, 32 heads and 8 KV heads of 128, FFN 12288, vocabulary 151936; H100: 3.35 TB/s, 989.4 TFLOP/s."""
    layer = 4096 * (32 + 2 * 8 + 32) * 128 + 3 * 4096 * 12288 + 2 * 128 + 2 * 4096
    parameters = 36 * layer + 4096 + 4096 * 151936  # the untied head is read, the embedding is looked up
    found = facts(load())
    assert found.weights_s == pytest.approx(parameters * 2 / 3.35e12, rel=1e-6)
    assert found.kv_s == pytest.approx(4 * (1024 + 128) * 36 * 2 * 8 * 128 * 2 / 3.35e12, rel=1e-6)
    linear = 2 * 36 * (layer - 2 * 128 - 2 * 4096)
    assert found.compute_s == pytest.approx(linear * 4 / 989.4e12, rel=1e-3)
    pairs = 1024 * 1025 / 2 * 4 * 32 * 128 * 36
    assert found.prefill_s == pytest.approx((linear * 1024 + pairs) / 989.4e12, rel=1e-3)
    assert found.links_s == found.prefill_links_s == 0.0
    assert (found.expert_layers, found.latent_layers, found.linked_layers) == (0, 0, 0)


def test_tensor_parallel_divides_weights_and_adds_ring_traffic():
    one, two = facts(load()), facts(load(devices=2, attention_ranks=2))
    assert two.weights_s == pytest.approx(one.weights_s / 2)
    assert two.kv_s == pytest.approx(one.kv_s / 2)
    assert two.links_s == pytest.approx(2 * 36 * 2 * (1 / 2) * 2 * 4096 / 450e9 * 4)  # two all-reduces a layer, 2 (n-1)/n of 2 bytes


def test_attention_data_parallel_keeps_whole_attention_on_each_device():
    tensor, data = facts(load(devices=4, attention_ranks=4)), facts(load(devices=4, attention_ranks=1))
    assert data.weights_s == pytest.approx(4 * tensor.weights_s)
    assert data.kv_s == pytest.approx(tensor.kv_s)  # a quarter of the sequences, four times the heads


def test_a_prompt_under_attention_data_parallelism_runs_on_its_own_ranks_but_for_its_experts():
    """A dense prompt takes as long as on one device; a burst of them fills all four. Experts are spread over all in any case."""
    one, tensor, data = (facts(load(devices=g, attention_ranks=a)) for g, a in ((1, 1), (4, 4), (4, 1)))
    assert data.prompt_s == pytest.approx(one.prompt_s)
    assert tensor.prompt_s == pytest.approx(one.prompt_s / 4)
    assert data.prefill_s == tensor.prefill_s == pytest.approx(one.prefill_s / 4)
    routed = load("openai/gpt-oss-120b", devices=4, attention_ranks=1)
    experts = 2 * shape_of(routed.arch).expert_parameters * 4 / 128 * 1024 / 989.4e12
    alone = facts(replace(routed, devices=1))
    assert facts(routed).prompt_s == pytest.approx(alone.prompt_s - experts + experts / 4, rel=1e-6)


def test_experts_touched_follow_the_chance_of_being_missed():
    """gpt-oss-120b: 128 experts, 4 a row: a batch of b touches 1 - (1 - 4/128)^b of them."""
    few, many = (load("openai/gpt-oss-120b", expert_bits=4.25, concurrency=b) for b in (1.0, 64.0))
    shape = shape_of(few.arch)
    grown = (facts(many).weights_s - facts(few).weights_s) * 3.35e12
    share = (1 - (1 - 1 / 32) ** 64) - 1 / 32
    assert grown == pytest.approx(shape.expert_parameters * 4.25 / 8 * share, rel=1e-9)


def test_a_prompt_reads_the_experts_that_its_tokens_touch():
    """1,024 rows miss an expert of gpt-oss-120b with a chance of (1 - 4/128)^1024 = 8e-15: the whole model, whatever the batch."""
    served = load("openai/gpt-oss-120b", expert_bits=4.25, devices=2, attention_ranks=2)
    shape = shape_of(served.arch)
    whole = (shape.dense_parameters * 2 + shape.expert_parameters * 4.25 / 8) / 2 / 3.35e12
    terms = first_token_terms(facts(served), 0.01)
    assert terms["weights"] == pytest.approx(whole, rel=1e-9)


def test_overflow_reaches_one_where_the_memory_is_full():
    """36 layers x 8 heads x 128 x 2 x 2 bytes = 147,456 bytes a token; the pool is 90 % of the memory less the weights."""
    served = load()
    shape = shape_of(served.arch)
    pool = 0.9 * served.device.memory_bytes - shape.dense_parameters * 2
    fits = pool / (1280 * 147456)
    assert kv_overflow(replace(served, concurrency=fits), shape) == pytest.approx(1.0)
    full = facts(replace(served, concurrency=4 * fits))
    assert full.slots == pytest.approx(fits)
    few = first_token_terms(facts(served), 0.01)
    many = first_token_terms(full, 0.01)
    assert few["overflow"] < 1e-2 * 256 * 0.01
    assert many["overflow"] == pytest.approx(256 * 0.01 * 3.0, rel=0.01)  # three more loads wait for each that runs


def test_every_term_has_a_coefficient_and_every_feature_a_length():
    found = facts(load())
    assert set(step_terms(found)) == set(step_coefficients())
    assert set(first_token_terms(found, 0.01)) == set(first_token_coefficients())
    assert len(kernel_widths()["lengths"]) == len(found.features) + 1  # and the date
    assert first_token_terms(facts(load(concurrency=1.0)), 0.01)["burst"] == 0.0


@pytest.mark.parametrize("bad", [{"devices": 0}, {"concurrency": 0.0}, {"devices": 4, "attention_ranks": 3}, {"prompt": 0}])
def test_impossible_loads_cannot_be_built(bad):
    with pytest.raises(ContradictionError):
        load(**bad)


def test_heads_that_cannot_be_divided_are_refused():
    with pytest.raises(ContradictionError, match="heads"):
        facts(load(devices=3, attention_ranks=3))
