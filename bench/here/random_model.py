"""Write a small Qwen3-shaped GGUF of random q8_0 weights; runs in the engine's environment (packages ``gguf`` and ``numpy``).

    python random_model.py model.gguf

Times do not depend on what the weights say, so random ones serve; nothing is downloaded. Norms stay 1 and the weights small, so that no
activation overflows.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCABULARY, CONTEXT = 12, 512, 8, 4, 64, 1536, 8192, 65536
WORDS = 3 + 256  # number of the first word, after the control tokens and the bytes
_Q8_0 = gguf.GGMLQuantizationType.Q8_0


def _head(writer: gguf.GGUFWriter) -> None:
    writer.add_name("random-qwen3-42m")
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_context_length(CONTEXT)
    writer.add_vocab_size(VOCABULARY)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)


def _vocabulary(writer: gguf.GGUFWriter) -> None:
    """A sentencepiece vocabulary: control tokens, the 256 bytes, and words; requests send token numbers, so the words do not matter."""
    special = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    words = [f"\u2581w{n}" for n in range(VOCABULARY - len(special) - len(bytes_))]
    kinds = [2, 3, 3, *[6] * len(bytes_), *[1] * len(words)]  # unknown, control, byte, normal
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*special, *bytes_, *words])
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def _tensors(writer: gguf.GGUFWriter) -> None:
    rng = np.random.default_rng(42)

    def matrix(name: str, rows: int, columns: int, *, silent: int = 0) -> None:
        values = rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(np.sqrt(columns))
        values[:silent] = 0
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, _Q8_0), raw_dtype=_Q8_0)

    def norm(name: str, size: int) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(size, dtype=np.float32))

    matrix("token_embd", VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm", HIDDEN)
        matrix(f"{block}.attn_q", HEADS * HEAD_DIM, HIDDEN)
        matrix(f"{block}.attn_k", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(f"{block}.attn_v", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(f"{block}.attn_output", HIDDEN, HEADS * HEAD_DIM)
        norm(f"{block}.attn_q_norm", HEAD_DIM)
        norm(f"{block}.attn_k_norm", HEAD_DIM)
        norm(f"{block}.ffn_norm", HIDDEN)
        matrix(f"{block}.ffn_gate", FFN, HIDDEN)
        matrix(f"{block}.ffn_up", FFN, HIDDEN)
        matrix(f"{block}.ffn_down", HIDDEN, FFN)
    norm("output_norm", HIDDEN)
    matrix("output", VOCABULARY, HIDDEN, silent=WORDS)  # only words are ever sampled: an end or half a character would not be sent


def write(path: Path) -> None:
    """The model as a GGUF file."""
    writer = gguf.GGUFWriter(path, "qwen3")
    _head(writer)
    _vocabulary(writer)
    _tensors(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
