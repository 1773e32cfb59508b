"""Stored bytes of quantised matrices, worked out by hand from each packing, and which modules a list excludes."""

import pytest

from models import facts
from models.readers.hf_config import read_config
from models.readers.modules import Excluded

# one layer of 256 x 256 attention matrices (q, k, v, o) and 512-wide gate, up, down; a 1024 x 256 embedding and head
CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 4,
    "vocab_size": 1024, "max_position_embeddings": 512, "torch_dtype": "bfloat16",
}  # fmt: skip
ATTENTION, FFN = 4 * 256 * 256, 3 * 256 * 512
MATRICES, COUNT = ATTENTION + FFN, 7
NATIVE = 2 * (2 * 1024 * 256 + 3 * 256)  # embeddings, head, norms in 16 bits
OUTPUTS = 4 * 256 + 512 + 512 + 256  # rows of all matrices
INT4 = MATRICES // 2 + MATRICES // 32 * 2 + 16 * COUNT  # a 16-bit scale for 32, and the shape as two 64-bit numbers
NVFP4 = MATRICES // 2 + MATRICES // 16 + 8 * COUNT  # a byte for 16 and two FP32 scales
INPUTS = 4 * 256 + 256 + 256 + 512


def stored(quantisation, **changes):
    arch = read_config(CONFIG | changes | {"quantization_config": quantisation}, "x")
    return facts.weight_bytes(arch)


@pytest.mark.parametrize(
    ("quantisation", "matrices"),
    [
        # one byte an element and an FP32 scale for each 128 x 128: 4 scales a square matrix, 8 a FFN one
        ({"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}, MATRICES + 4 * (4 * 4 + 3 * 8)),
        ({"quant_method": "fp8", "activation_scheme": "static"}, MATRICES + 8 * COUNT),
        ({"quant_method": "fbgemm_fp8"}, MATRICES + 4 * OUTPUTS),
        # half a byte, a 16-bit scale and a 4-bit zero for each 128 inputs of an output; GPTQ adds a 32-bit index an input
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, MATRICES // 2 + MATRICES // 128 * 20 // 8),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, MATRICES // 2 + MATRICES // 128 * 20 // 8 + 4 * INPUTS),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, MATRICES + OUTPUTS * 3 + 4 * INPUTS),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, MATRICES // 2 + MATRICES // 64 * 4),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, MATRICES // 2 + MATRICES // 16 + 8 * COUNT),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, MATRICES + 8 * COUNT),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*self_attn*"]}, 2 * ATTENTION + FFN // 2 + FFN // 16 + 8 * 3),
        (
            {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {
                "model.layers.0.mlp.up_proj": {"quant_algo": "FP8"},
                "model.layers.0.mlp.down_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
            }},
            2 * ATTENTION + 2 * 256 * 512 + (256 * 512 + 8) + (256 * 512 // 2 + 256 * 512 // 16 + 4),
        ),
    ],
)  # fmt: skip
def test_bytes_of_each_packing(quantisation, matrices):
    assert stored(quantisation) == NATIVE + matrices


@pytest.mark.parametrize(
    ("layout", "weights", "matrices"),
    [
        ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}, MATRICES + 2 * OUTPUTS),
        ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}, MATRICES + 4 * COUNT),
        ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}, MATRICES + 2 * OUTPUTS),
        ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}, INT4),
        ("mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}, MATRICES // 2 + MATRICES // 32),
        ("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}, NVFP4),
    ],
)  # fmt: skip
def test_bytes_of_compressed_tensors(layout, weights, matrices):
    group = {"weights": weights, "targets": ["Linear"]}
    quantisation = {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"group_0": group}, "ignore": ["lm_head"]}
    assert stored(quantisation) == NATIVE + matrices


def test_the_native_dtype_holds_for_everything_that_is_not_quantised():
    plain = facts.weight_bytes(read_config(CONFIG | {"torch_dtype": "float32"}, "x"))
    assert plain == 4 * (2 * 1024 * 256 + 3 * 256 + MATRICES)
    assert stored({"quant_method": "fp8"}, torch_dtype="float32") == 2 * NATIVE + MATRICES + 4 * COUNT


@pytest.mark.parametrize(
    ("pattern", "module", "excluded"),
    [
        ("lm_head", "lm_head", True),
        ("language_model.lm_head", "lm_head", True),
        ("gate", "layers.3.block_sparse_moe.gate", True),
        ("gate", "layers.3.mlp.gate_proj", False),
        ("model.layers.3.self_attn", "layers.3.self_attn.q_proj", True),
        ("model.layers.3.self_attn", "layers.30.self_attn.q_proj", False),
        ("model.layers.0*", "layers.0.mlp.up_proj", True),
        ("model.layers.1.*", "layers.10.mlp.up_proj", False),
        ("model.layers.*.self_attn", "layers.7.self_attn.o_proj", True),
        ("*.mlp.shared_expert.*", "layers.7.mlp.shared_expert.up_proj", True),
        ("model.language_model.layers.7.linear_attn*", "layers.7.linear_attn.in_proj_z", True),
        ("vision_model.model.layers.7.self_attn.q_proj", "layers.7.self_attn.q_proj", False),
        ("mtp.layers.0*", "layers.0.mlp.up_proj", False),
        ("mtp.layers.0*", "mtp.layers.0.mlp.up_proj", True),
        ("re:.*mlp\\.gate$", "layers.7.mlp.gate", True),
        ("re:.*self_attn.*", "layers.7.mlp.gate", False),
    ],
)
def test_exclusion_patterns(pattern, module, excluded):
    assert Excluded.from_patterns([pattern]).matches(module) is excluded


def test_quantising_to_a_format_keeps_embeddings_norms_and_head():
    arch = read_config(CONFIG, "x")
    assert facts.weight_bytes(arch, "fp8") == NATIVE + MATRICES + 4 * COUNT
    assert facts.weight_bytes(arch, "int4") == NATIVE + MATRICES // 2 + MATRICES // 128 * 2
    assert facts.weight_bytes(arch, "bf16") == NATIVE + 2 * MATRICES
