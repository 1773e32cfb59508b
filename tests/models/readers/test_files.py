"""Files as people have them: folders, GGUF, quantisation beside the configuration; and files that are broken."""

import json
import struct
import time

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from models import facts
from models.catalog.models_catalog import model_entry
from models.errors import ContradictionError, FileFormatError, GoodputError, InputError, NotCoveredError, UnknownNameError
from models.model_report import model_report
from models.readers import load_architecture
from models.readers.gguf_file import GGML_TYPES
from models.readers.hf_config import read_config

SMALL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 512, "torch_dtype": "bfloat16",
}  # fmt: skip


def write_config(folder, **changes):
    config = {key: value for key, value in (SMALL | changes).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "config.json"


def test_a_folder_tells_the_bytes_of_its_headers(tmp_path):
    write_config(tmp_path)
    save_file({"a": np.zeros((64, 96), np.float16), "b": np.zeros(10, np.float32)}, tmp_path / "model.safetensors")
    arch = load_architecture(tmp_path)
    assert facts.checkpoint_bytes(arch) == 64 * 96 * 2 + 40
    assert facts.weight_bytes(arch) != facts.checkpoint_bytes(arch)  # the shape still comes from the configuration
    assert load_architecture(tmp_path / "model.safetensors") == arch


def test_an_index_without_its_shards_tells_the_total(tmp_path):
    write_config(tmp_path)
    index = {"metadata": {"total_size": 123456}, "weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert facts.checkpoint_bytes(load_architecture(tmp_path / "config.json")) == 123456


def test_quantisation_beside_the_configuration_counts(tmp_path):
    write_config(tmp_path)
    plain = facts.weight_bytes(load_architecture(tmp_path))
    beside = {
        "quantization": {
            "quant_algo": "NVFP4",
            "group_size": 16,
            "kv_cache_quant_algo": "FP8",
            "exclude_modules": ["lm_head", "*self_attn*"],
        }
    }
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    arch = load_architecture(tmp_path)
    ffn = 2 * 3 * 64 * 128  # two layers of three matrices: half a byte an element, a byte for 16, two FP32 scales each
    assert plain - facts.weight_bytes(arch) == 2 * ffn - (ffn // 2 + ffn // 16 + 2 * 3 * 8)
    assert arch.kv_format == "fp8_e4m3"


def write_gguf(path, *, experts=0):
    writer = gguf.GGUFWriter(path, "qwen3moe" if experts else "llama")
    writer.add_name("small")
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_feed_forward_length(128)
    writer.add_token_list([f"t{i}" for i in range(96)])
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(32)
    shapes = {"token_embd.weight": (96, 64), "output.weight": (96, 64)}
    for i in range(2):
        shapes |= {f"blk.{i}.attn_q.weight": (64, 64), f"blk.{i}.attn_k.weight": (32, 64), f"blk.{i}.attn_v.weight": (32, 64)}
        shapes |= {f"blk.{i}.attn_output.weight": (64, 64)}
        if experts:
            shapes |= {f"blk.{i}.ffn_up_exps.weight": (experts, 32, 64), f"blk.{i}.ffn_down_exps.weight": (experts, 64, 32)}
        else:
            shapes |= {f"blk.{i}.ffn_up.weight": (128, 64), f"blk.{i}.ffn_down.weight": (64, 128), f"blk.{i}.ffn_gate.weight": (128, 64)}
    for name, shape in shapes.items():
        block = np.zeros((*shape[:-1], shape[-1] // 32 * 34), np.uint8)
        writer.add_tensor(name, block, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("output_norm.weight", np.zeros(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return shapes


def test_gguf_headers_tell_shape_and_bytes(tmp_path):
    shapes = write_gguf(tmp_path / "m.gguf")
    arch = load_architecture(tmp_path / "m.gguf")
    elements = sum(int(np.prod(shape)) for shape in shapes.values())
    assert facts.parameters(arch).total == elements + 64
    assert facts.checkpoint_bytes(arch) == facts.weight_bytes(arch) == elements // 32 * 34 + 64 * 4
    assert facts.kv_bytes_per_token(arch) == 2 * 2 * 2 * 16 * 2  # layers, K and V, heads, elements, bytes
    with pytest.raises(NotCoveredError, match="blocks of 32 do not divide"):
        facts.kv_bytes_per_token(arch, "q8_0")
    assert [group.count for group in arch.layers] == [2]
    assert facts.flops_per_token(arch) == 2 * 2 * (64 * 64 * 2 + 2 * 32 * 64 + 3 * 64 * 128)
    assert load_architecture(tmp_path) == arch


def test_gguf_experts_are_read_by_expectation(tmp_path):
    write_gguf(tmp_path / "m.gguf", experts=8)
    arch = load_architecture(tmp_path / "m.gguf")
    experts = 2 * 8 * 2 * 64 * 32 // 32 * 34
    read = facts.weight_read(arch)
    assert (read.experts, read.expert_fraction) == (experts, 2 / 8)
    assert read.bytes_for(2) - read.fixed == pytest.approx(experts * (1 - (6 / 8) ** 2))


@pytest.mark.parametrize("kind", sorted(GGML_TYPES))
def test_ggml_block_sizes_agree_with_the_gguf_package(kind):
    _, block, size = GGML_TYPES[kind]
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)] == (block, size)


@pytest.mark.parametrize("cut", [0, 3, 4, 12, 24, 60, 200, 900])
def test_a_gguf_cut_short_is_an_error(tmp_path, cut):
    write_gguf(tmp_path / "whole.gguf")
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "whole.gguf").read_bytes()[:cut])
    with pytest.raises(FileFormatError, match="GGUF"):
        load_architecture(tmp_path / "cut.gguf")


def test_a_gguf_whose_tensors_are_missing_is_an_error(tmp_path):
    write_gguf(tmp_path / "whole.gguf")
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "whole.gguf").read_bytes()[:-60_000])
    with pytest.raises(FileFormatError, match="do not fit into the file"):
        load_architecture(tmp_path / "cut.gguf")


def test_a_gguf_that_claims_terabytes_is_an_error(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60))
    with pytest.raises(FileFormatError, match="absurd number"):
        load_architecture(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (struct.pack("<Q", 1 << 42) + b"{}", "claims more"),
        (struct.pack("<Q", 100) + b'{"a": ', "claims more"),
        (b"abc", "claims more"),
        (struct.pack("<Q", 6) + b'{"a": ', "not valid JSON"),
        (struct.pack("<Q", 59) + b'{"a":{"dtype":"BF16","shape":[9],"data_offsets":[0,999999]}}', "not valid JSON|beyond the end"),
        (struct.pack("<Q", 13) + b'{"a":{"x":1}}', "malformed"),
    ],
)
def test_a_broken_safetensors_header_is_an_error(tmp_path, content, message):
    write_config(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(FileFormatError, match=message):
        load_architecture(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"model_type": "llama"', "not valid JSON"),
        ("[1, 2]", "expected a JSON object"),
        ("", "not valid JSON"),
        ('{"model_type": "llama"}', "num_hidden_layers: this key is missing"),
        ("{}", "model_type: cannot interpret"),
    ],
)
def test_a_broken_configuration_is_one_clear_line(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    started = time.perf_counter()
    with pytest.raises(InputError, match=message) as caught:
        load_architecture(tmp_path)
    assert "\n" not in str(caught.value)
    assert time.perf_counter() - started < 5


def test_what_published_gemma_files_leave_out_is_the_implementation_s_default():
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    vision = model_entry("google/gemma-3-4b-it")["config"]["vision_config"]
    short = read_config({"model_type": "gemma3", "text_config": text, "vision_config": vision}, "google/gemma-3-4b-it")
    assert facts.parameters(short).total == 4_300_079_472  # as counted for the full file


def test_an_unknown_wrapper_around_a_known_text_model_is_read_with_a_note():
    config = {"model_type": "newvl", "language_config": SMALL, "vision_config": {"hidden_size": 64}}
    arch = read_config(config, "x")
    assert facts.parameters(arch) == facts.parameters(read_config(SMALL, "x"))
    assert "vision tower not counted" in arch.notes[0]


def test_missing_files_are_errors(tmp_path):
    with pytest.raises(FileFormatError, match=r"holds no config\.json"):
        load_architecture(tmp_path)
    with pytest.raises(FileFormatError, match="cannot read"):
        load_architecture(tmp_path / "nowhere.json")
    for other in ("/dev/zero", "/dev/null", "x" * 5000 + ".json"):
        with pytest.raises(FileFormatError, match=r"cannot read|holds no"):
            load_architecture(other)
    with pytest.raises(UnknownNameError):
        load_architecture("x" * 5000)
    with pytest.raises(FileFormatError, match="not a model name"):
        load_architecture(" ")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_key_value_heads": 3}, ContradictionError, "num_key_value_heads: 4 attention heads do not divide"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, ContradictionError, "head_dim: missing"),
        ({"model_type": "mistral", "sliding_window": 1024}, ContradictionError, "sliding_window: larger than the context of 512"),
        ({"model_type": "warpformer"}, NotCoveredError, "model_type: cannot interpret this model family"),
        ({"layer_types": ["full_attention", "mystery"]}, FileFormatError, r"layer_types\[1\]: unknown layer type"),
        ({"layer_types": ["full_attention"]}, FileFormatError, "1 entries for 2 layers"),
        ({"hidden_size": "64"}, FileFormatError, "hidden_size: expected a whole number"),
        ({"hidden_size": 0}, FileFormatError, "hidden_size: must be at least 1"),
        ({"hidden_size": 10**30}, FileFormatError, "hidden_size: expected a whole number"),
        ({"num_hidden_layers": 10**9}, FileFormatError, "num_hidden_layers: absurd number of layers"),
        ({"torch_dtype": "float7"}, NotCoveredError, "torch_dtype: unknown dtype"),
        ({"quantization_config": {"quant_method": "magic"}}, NotCoveredError, "quant_method: cannot interpret this quantisation"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP3"}}, NotCoveredError, "quant_algo: cannot interpret"),
        ({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 8}, ContradictionError, "more experts chosen"),
    ],
)
def test_contradictions_name_the_key(changes, error, message):
    with pytest.raises(error, match=message):
        read_config(SMALL | changes, "x")


def test_heads_must_divide_over_the_ranks():
    arch = read_config(SMALL, "x")
    with pytest.raises(ContradictionError, match="4 attention heads do not divide over the ranks"):
        model_report(arch, tp=3)


def test_any_key_with_a_wrong_value_ends_in_our_own_error():
    wrong = (None, -1, 0, "x", [], {}, [None], 1e308, float("nan"), True, 2**40, 10**30, [[]])
    for name in (
        "Qwen/Qwen3-30B-A3B-FP8",
        "zai-org/GLM-5.3",
        "google/gemma-4-E4B",
        "moonshotai/Kimi-K3",
        "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
    ):
        config = model_entry(name)["config"]
        for key in config:
            for value in wrong:
                try:
                    facts.weight_bytes(read_config(config | {key: value}, name))
                except GoodputError as problem:
                    assert "\n" not in str(problem)  # noqa: PT017 - the claim is that nothing else is ever raised


def test_the_report_has_the_promised_names():
    report = model_report(load_architecture("Qwen/Qwen3-30B-A3B"), tokens=1000, rows=4, tp=2, new=512, cached=256)
    assert list(report["parameters"]) == ["total", "embedding", "head", "experts", "shared_experts", "vision", "active"]
    names = {
        "weight_bytes", "read_bytes_per_step", "kv_bytes_per_token", "kv_bytes_per_token_below_window", "indexer_bytes_per_token",
        "state_bytes_per_sequence", "kv_bytes",
    }  # fmt: skip
    assert names <= set(report)
    assert names <= set(report["per_rank"])
    assert report["kv_bytes"] == 1000 * 98_304 == 2 * report["per_rank"]["kv_bytes"]
    assert sum(report["weight_bytes_by_precision"].values()) == report["weight_bytes"]
    # 4 rows of 8 out of 128 experts touch 1 - (1 - 1/16)^4 of them
    touched = 28_991_029_248 * 2 * (1 - (15 / 16) ** 4)
    assert report["read_bytes_per_step"] == pytest.approx(2 * (30_532_122_624 - 311_164_928 - 28_991_029_248) + touched, rel=1e-12)
    assert report["prefill_flops"] == facts.prefill_flops(load_architecture("Qwen/Qwen3-30B-A3B"), 512, 256)
    assert json.loads(json.dumps(report)) == report
