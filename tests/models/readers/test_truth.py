"""Every catalogue model against independent counts: parameters, KV and state exact, stored bytes exact where the configuration tells."""

import json
from pathlib import Path

import pytest

from models import facts
from models.facts.weights import tensors_of
from models.readers import load_architecture

TRUTH = json.loads((Path(__file__).parents[2] / "data/models/truth.json").read_text())

# What the reference count does not tell about the model or about an engine, and what is checked instead.
NO_VISION_CONFIG = {"meta-llama/Llama-4-Scout-17B-16E-Instruct"}  # the reference filled in a smaller default tower: text parts compared
DEFAULT_VOCABULARY = {
    "stepfun-ai/Step-3.7-Flash",
    "stepfun-ai/Step-3.7-Flash-FP8",
}  # the reference ignored the file's 128,896 for its 128,815
BROADCAST_KV = {"tiiuae/falcon-40b"}  # the reference caches each KV head 16 times over; engines cache the 8 heads
UNSEEN_STATE = {"MiniMaxAI/MiniMax-M1-40k"}  # the reference keeps lightning attention's state outside the objects that were counted
UNSEEN_INDEXER = {"nvidia/MiniMax-M3-NVFP4"}  # its cache lists 57 index keys of 128 elements, which the sum left out
COMPRESSED = {name for name in TRUTH if "DeepSeek-V4" in name}  # the count notes that plain K/V sums are not meaningful here
HEAD_STORED_TWICE = {"Qwen/Qwen3-0.6B"}  # tied in the configuration, but the file stores the head too: a fact of the catalogue


def names(*parts):
    return [name for name, entry in TRUTH.items() if all(part in entry for part in parts)]


@pytest.mark.parametrize("name", [n for n in names("parameters") if n not in NO_VISION_CONFIG | DEFAULT_VOCABULARY])
def test_parameters_are_exact(name):
    counted = facts.parameters(load_architecture(name))
    wanted = TRUTH[name]["parameters"]
    assert {key: getattr(counted, key) for key in wanted} == wanted


@pytest.mark.parametrize("name", sorted(NO_VISION_CONFIG))
def test_text_parameters_are_exact_without_a_vision_config(name):
    arch, wanted = load_architecture(name), TRUTH[name]["parameters"]
    assert facts.parameters(arch).total == wanted["total"] - wanted["vision"]
    assert "no vision_config" in arch.notes[0]


@pytest.mark.parametrize("name", sorted(DEFAULT_VOCABULARY))
def test_parameters_are_exact_up_to_the_vocabulary_of_the_file(name):
    arch, wanted = load_architecture(name), TRUTH[name]["parameters"]
    assert facts.parameters(arch).total - wanted["total"] == 2 * (128_896 - 128_815) * 4096


@pytest.mark.parametrize("name", [n for n in names("read_bf16") if n not in DEFAULT_VOCABULARY])
def test_a_step_with_all_experts_reads_everything_but_what_is_looked_up(name):
    read = facts.weight_read(load_architecture(name), "bf16")
    assert read.fixed + read.experts == TRUTH[name]["read_bf16"]


@pytest.mark.parametrize("name", [n for n in names("kv") if n not in COMPRESSED | BROADCAST_KV])
def test_kv_and_state_bytes_are_exact(name):
    arch, wanted = load_architecture(name), dict(TRUTH[name]["kv"])
    found = {
        "growing": facts.kv_bytes_per_token(arch),
        "below_window": facts.kv_bytes_per_token_below_window(arch),
        "indexer": facts.indexer_bytes_per_token(arch),
        "state": facts.state_bytes_per_sequence(arch),
    }
    if name in UNSEEN_INDEXER:
        wanted["indexer"] = 57 * 128 * 2
    if name in UNSEEN_STATE:
        wanted["state"] = 70 * 64 * 128 * 128 * 4  # 70 linear layers of 64 heads, a 128 x 128 FP32 matrix each
    assert {key: found[key] for key in wanted} == wanted


def test_falcon_caches_its_kv_heads_once():
    wanted = TRUTH["tiiuae/falcon-40b"]["kv"]["growing"]
    assert facts.kv_bytes_per_token(load_architecture("tiiuae/falcon-40b")) == wanted // 16  # 128 query heads over 8 KV heads


@pytest.mark.parametrize(
    ("name", "sliding", "indexed", "dense"), [("deepseek-ai/DeepSeek-V4-Flash", 2, 21, 20), ("deepseek-ai/DeepSeek-V4-Pro", 0, 30, 31)]
)
def test_compressed_attention_caches_windows_and_compressed_entries(name, sliding, indexed, dense):
    # theory: 512 elements a token for 128 tokens in every layer; one entry of 512 for 4 (indexed, with a key of 128) or 128 tokens
    arch, tokens = load_architecture(name), 10_000
    wanted = (sliding + indexed + dense) * 128 * 512 * 2
    wanted += indexed * (tokens // 4) * (512 + 128) * 2 + dense * (tokens // 128) * 512 * 2
    assert facts.kv_bytes(arch, tokens) == wanted


@pytest.mark.parametrize("name", names("stored"))
def test_stored_bytes_are_exact(name):
    arch = load_architecture(name)
    assert facts.checkpoint_bytes(arch) == TRUTH[name]["stored"]
    computed = facts.weight_bytes(arch, mtp=True)
    if name not in HEAD_STORED_TWICE:  # the rest differs from the computed bytes by stored rotary vectors at most
        assert abs(computed - TRUTH[name]["stored"]) <= TRUTH[name]["stored"] * 1e-3


def test_prediction_layers_fill_up_the_published_checkpoints():
    glm = load_architecture("zai-org/GLM-5.1")
    stored = sum(count * tensor.elements for count, tensor in tensors_of(glm, mtp=True))
    assert stored == 753_864_139_008  # elements of the published checkpoint, which holds one prediction layer


def test_every_catalogue_model_is_compared_or_listed():
    from models.catalog.models_catalog import model_names

    without_truth = {
        "MiniMaxAI/MiniMax-M3", "moonshotai/Kimi-K3", "sgl-project/DeepSeek-V4-Flash-FP8", "sgl-project/DeepSeek-V4-Pro-FP8",
    }  # fmt: skip
    assert set(model_names()) == set(TRUTH) | without_truth
    assert len(model_names()) >= 60


def test_models_without_a_count_agree_with_their_twins():
    # the same weights in another file: MiniMax-M3 is NVIDIA's text model, the V4 FP8 files are V4 with FP8 experts
    m3, twin = load_architecture("MiniMaxAI/MiniMax-M3"), load_architecture("nvidia/MiniMax-M3-NVFP4")
    assert facts.parameters(m3).total == facts.parameters(twin).total - facts.parameters(twin).vision
    for size in ("Flash", "Pro"):
        other = load_architecture(f"sgl-project/DeepSeek-V4-{size}-FP8")
        assert facts.parameters(other).total == facts.parameters(load_architecture(f"deepseek-ai/DeepSeek-V4-{size}")).total
