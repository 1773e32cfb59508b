"""A GGUF file's header becomes an ``Architecture``: metadata gives the shape, tensor infos the stored formats, to the byte.

Layout (GGUF v2, v3, little endian): magic, version, tensor count, metadata count; typed key-values; name, dimensions, type and offset of
each tensor. Only the header is read; every count and length is checked against the bytes that are there.
"""

from __future__ import annotations

import mmap
import struct
from itertools import groupby
from pathlib import Path
from typing import Any

from models.describe.architecture import Architecture, Ffn, LayerGroup, Role, Split, StoredFormat, Tensor
from models.errors import FileFormatError, NotCoveredError
from models.readers.families import FAMILIES
from models.readers.files import require_file
from models.readers.keys import Keys
from models.readers.layers import build_attention
from models.readers.mtp import as_mtp
from models.readers.plan import Slot, layer_count, mixers

MOST_TENSORS, MOST_KEYS, LONGEST_TEXT, MOST_ITEMS = 1 << 17, 1 << 16, 1 << 24, 1 << 24
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9

# ggml type: name, elements of a block, bytes of a block (ggml's block structures)
GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("fp32", 1, 4), 1: ("fp16", 1, 2), 2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20), 6: ("q5_0", 32, 22), 7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34), 10: ("q2_k", 256, 84), 11: ("q3_k", 256, 110), 12: ("q4_k", 256, 144), 13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210), 15: ("q8_k", 256, 292), 16: ("iq2_xxs", 256, 66), 17: ("iq2_xs", 256, 74), 18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50), 20: ("iq4_nl", 32, 18), 21: ("iq3_s", 256, 110), 22: ("iq2_s", 256, 82), 23: ("iq4_xs", 256, 136),
    24: ("int8", 1, 1), 25: ("int16", 1, 2), 26: ("int32", 1, 4), 27: ("int64", 1, 8), 28: ("fp64", 1, 8), 29: ("iq1_m", 256, 56),
    30: ("bf16", 1, 2), 34: ("tq1_0", 256, 54), 35: ("tq2_0", 256, 66), 39: ("mxfp4", 32, 17),
}  # fmt: skip

# general.architecture: the family whose traits it shares
_FAMILIES = {
    "llama": "llama", "qwen2": "qwen2", "qwen2vl": "qwen2", "qwen2moe": "qwen2_moe", "qwen3": "qwen3", "qwen3vl": "qwen3",
    "qwen3moe": "qwen3_moe", "qwen3vlmoe": "qwen3_moe", "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3_text", "phi3": "phi3",
    "starcoder2": "starcoder2", "olmo2": "olmo2", "deepseek2": "deepseek_v3", "gpt-oss": "gpt_oss", "glm4moe": "glm4_moe",
    "mistral3": "mistral",
}  # fmt: skip
_KEYS = {
    "embedding_length": "hidden_size", "block_count": "num_hidden_layers", "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim", "attention.value_length": "v_head_dim",
    "attention.sliding_window": "sliding_window", "context_length": "max_position_embeddings", "feed_forward_length": "intermediate_size",
    "expert_count": "num_experts", "expert_used_count": "num_experts_per_tok", "expert_feed_forward_length": "moe_intermediate_size",
    "nextn_predict_layers": "num_nextn_predict_layers",
    "attention.kv_lora_rank": "kv_lora_rank", "attention.q_lora_rank": "q_lora_rank", "rope.dimension_count": "qk_rope_head_dim",
}  # fmt: skip


class _Reader:
    """Sequential reads of a mapped file that fail on the first byte that is not there."""

    def __init__(self, data: mmap.mmap, path: str) -> None:
        self.data, self.path, self.size, self.at = data, path, len(data), 0

    def take(self, count: int) -> bytes:
        start = self.skip(count)
        return self.data[start : self.at]

    def skip(self, count: int) -> int:
        """Step over ``count`` bytes; returns where they start."""
        start = self.at
        if count > self.size - start:
            raise FileFormatError(
                "the GGUF header is cut short", path=self.path, value=f"{count} bytes wanted", way_out="download the file again"
            )
        self.at = start + count
        return start

    def number(self, kind: str) -> Any:
        return struct.unpack("<" + kind, self.take(struct.calcsize("<" + kind)))[0]

    def count(self, limit: int, what: str) -> int:
        found = int(self.number("Q"))
        if found > min(limit, self.size):
            raise FileFormatError(f"absurd number of {what}", path=self.path, value=found, way_out="download the file again")
        return found

    def text(self) -> str:
        return self.take(self.count(LONGEST_TEXT, "characters")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """A metadata value; long arrays (vocabularies) are skipped and returned as their length."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _TEXT:
            return self.text()
        if kind != _ARRAY:
            raise FileFormatError("unknown metadata type", path=self.path, value=kind, way_out="download the file again")
        item, count = self.number("I"), self.count(MOST_ITEMS, "items")
        if item in _SCALARS:
            raw = self.take(count * struct.calcsize("<" + _SCALARS[item]))
            return list(struct.unpack(f"<{count}{_SCALARS[item]}", raw)) if count <= 4096 else count
        if item != _TEXT:
            raise FileFormatError("nested metadata array", path=self.path, value=item, way_out="download the file again")
        for _ in range(count):
            length = int.from_bytes(self.take(8), "little")
            self.skip(length)
        return count


def read_header(path: Path) -> tuple[dict[str, Any], list[tuple[str, tuple[int, ...], int]]]:
    """(metadata, [(tensor name, dimensions, ggml type)])."""
    require_file(path)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(_Reader(data, str(path)))
    except ValueError as cause:  # an empty file cannot be mapped
        raise FileFormatError("not a GGUF file", path=str(path), value="empty", way_out="download the file again") from cause
    except OSError as cause:
        raise FileFormatError("cannot read the file", path=str(path), value=cause.strerror, way_out="check the path") from cause


def _read(reader: _Reader) -> tuple[dict[str, Any], list[tuple[str, tuple[int, ...], int]]]:
    if reader.take(4) != b"GGUF" or reader.number("I") not in (2, 3):
        raise FileFormatError("not a GGUF file of version 2 or 3", path=reader.path, way_out="give a .gguf made by a current converter")
    tensors, keys = reader.count(MOST_TENSORS, "tensors"), reader.count(MOST_KEYS, "metadata keys")
    metadata: dict[str, Any] = {}
    for _ in range(keys):
        key = reader.text()
        metadata[key] = reader.value(reader.number("I"))
    infos = []
    for _ in range(tensors):
        name, dimensions = reader.text(), reader.number("I")
        if dimensions > 4:
            raise FileFormatError("a tensor of more than four dimensions", path=reader.path, value=name, way_out="download the file again")
        shape = tuple(int(reader.number("Q")) for _ in range(dimensions))
        infos.append((name, shape, int(reader.number("I"))))
        reader.number("Q")
    return metadata, infos


def read_gguf(path: Path) -> Architecture:
    """The architecture of one ``.gguf`` file."""
    metadata, infos = read_header(path)
    kind = _kind(metadata, path)
    config = Keys(_config(metadata, kind, infos), f"{path}: {kind}")
    tensors = [_tensor(name, shape, stored, str(path)) for name, shape, stored in infos]
    stored_bytes = sum(t.nbytes() for _, t in tensors)
    if stored_bytes > path.stat().st_size:
        raise FileFormatError("the tensors do not fit into the file", path=str(path), value=stored_bytes, way_out="download the file again")
    layers = layer_count(config, FAMILIES[_FAMILIES[kind]]) - config.number("num_nextn_predict_layers", default=0, least=0)
    if layers < 1:
        raise FileFormatError("no layers", path=f"{path}: {kind}.block_count", value=layers, way_out="convert the model again")
    groups = _layers(config, kind, tensors, layers)
    return Architecture(
        name=str(metadata.get("general.name") or path.stem),
        family=kind,
        hidden=config.number("hidden"),
        vocabulary=next((t.rows for _, t in tensors if t.role == "embedding"), 0),
        context=config.number("context", default=0, least=0),
        tied=not any(t.role == "head" for _, t in tensors),
        layers=groups,
        base=tuple(t for index, t in tensors if index is None),
        mtp=as_mtp(tuple(t for index, t in tensors if index is not None and index >= layers)),
        native=StoredFormat("fp16", 16),
        quantisation="gguf",
        stored_bytes=stored_bytes,
    )


def _kind(metadata: dict[str, Any], path: Path) -> str:
    """The architecture's name, known and in one file."""
    kind = metadata.get("general.architecture")
    if not isinstance(kind, str) or kind not in _FAMILIES:
        known = ", ".join(sorted(_FAMILIES))
        where = f"{path}: general.architecture"
        raise NotCoveredError("cannot interpret this model family", path=where, value=kind, way_out=f"known: {known}")
    files = metadata.get("split.count", 1)
    if files not in (0, 1):
        why, way_out = "a split GGUF holds its tensors in several files", "merge it with gguf-split"
        raise NotCoveredError(why, path=str(path), value=files, way_out=way_out)
    return kind


def _config(metadata: dict[str, Any], kind: str, infos: list[tuple[str, tuple[int, ...], int]]) -> dict[str, Any]:
    """The metadata under the names of a Hugging Face configuration."""
    found = {ours: metadata[f"{kind}.{theirs}"] for theirs, ours in _KEYS.items() if f"{kind}.{theirs}" in metadata}
    if "kv_lora_rank" in found:  # key_length and value_length then describe the cached latent; the heads' own sizes have other keys
        for theirs, ours in (("attention.key_length_mla", "key"), ("attention.value_length_mla", "v_head_dim")):
            if f"{kind}.{theirs}" in metadata:
                found[ours] = metadata[f"{kind}.{theirs}"]
        key, rope = found.pop("key", found.get("head_dim")), found.get("qk_rope_head_dim")
        if isinstance(key, int) and isinstance(rope, int):
            found["qk_nope_head_dim"] = key - rope
        found.pop("head_dim", None)
    if kind == "gemma3" and isinstance(found.get("sliding_window"), int):
        found["sliding_window_pattern"] = metadata.get(f"{kind}.attention.sliding_window_pattern", 6)
    found["model_type"] = _FAMILIES[kind]
    found["vocab_size"] = next((shape[1] for name, shape, _ in infos if name == "token_embd.weight" and len(shape) == 2), 1)
    return found


def _layers(config: Keys, kind: str, tensors: list[tuple[int | None, Tensor]], layers: int) -> tuple[LayerGroup, ...]:
    """Groups of equal neighbouring layers: attention from the metadata, tensors as stored."""
    family = FAMILIES[_FAMILIES[kind]]
    by_layer: dict[int, list[Tensor]] = {}
    for index, tensor in tensors:
        if index is not None:
            by_layer.setdefault(index, []).append(tensor)
    heads = _per_layer(config, "num_attention_heads", layers)
    kv_heads = _per_layer(config, "num_key_value_heads", layers, heads)
    kinds = mixers(config, family, layers)
    built = []
    for i in range(layers):
        one = Keys({**config.values, "num_attention_heads": heads[i], "num_key_value_heads": kv_heads[i]}, config.path)
        own = tuple(sorted(by_layer.get(i, []), key=lambda t: t.name))
        attention = build_attention(one, family, Slot(kinds[i], "dense"))[0] if heads[i] and kv_heads[i] else None
        built.append((attention, _ffn(config, own), own))
    return tuple(LayerGroup(len(list(same)), attention, None, ffn, own) for (attention, ffn, own), same in groupby(built))


def _per_layer(config: Keys, key: str, layers: int, default: list[int] | None = None) -> list[int]:
    value = config.values.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, list):
        return config.numbers(key)[:layers] if config.per_layer(key, layers) else []
    return [config.number(key)] * layers


def _ffn(config: Keys, tensors: tuple[Tensor, ...]) -> Ffn:
    experts = next((t for t in tensors if t.role == "expert"), None)
    dense = next((t.rows for t in tensors if t.role == "ffn" and t.name.startswith("ffn_up")), 0)
    gated = any(t.name.startswith("ffn_gate") for t in tensors)
    if experts is None:
        return Ffn(dense, gated)
    width = min(experts.rows, experts.cols)
    shared = next((t.rows for t in tensors if t.role == "shared_expert"), 0)
    return Ffn(dense, gated, experts.copies, config.number("top_k"), width, shared)


def _tensor(name: str, shape: tuple[int, ...], stored: int, path: str) -> tuple[int | None, Tensor]:
    """(layer or None, tensor); dimensions are stored fastest first: (inputs, outputs, experts)."""
    if stored not in GGML_TYPES:
        raise NotCoveredError("unknown tensor type", path=f"{path}: {name}", value=stored, way_out="convert with a current llama.cpp")
    label, block, size = GGML_TYPES[stored]
    cols, rows, copies = ([*shape, 1, 1, 1])[:3] if len(shape) > 1 else (1, shape[0] if shape else 1, 1)
    if block > 1 and cols % block:
        raise FileFormatError(
            f"rows of {cols} do not divide into blocks of {block}", path=f"{path}: {name}", way_out="download the file again"
        )
    bits = size * 8 // block
    scale = size * 8 - bits * block
    stored_as = StoredFormat(label, bits, scale_bits=scale, group_cols=block if scale else 0)
    parts = name.split(".")
    index = int(parts[1]) if parts[0] == "blk" and len(parts) > 2 and parts[1].isdigit() else None
    below = ".".join(parts[2:]) if index is not None else name
    role, split = _role(below, linear=len(shape) > 1)
    return index, Tensor(below, rows, cols, role, copies, linear=len(shape) > 1 and role != "embedding", split=split, format=stored_as)


def _role(name: str, *, linear: bool) -> tuple[Role, Split]:
    stem = name.removesuffix(".weight").removesuffix(".bias")
    if stem in ("token_embd", "output"):
        return ("embedding" if stem == "token_embd" else "head"), "rows"
    if not linear or "norm" in stem:
        return "norm", "none"
    if stem.startswith("ffn_"):
        role: Role = "expert" if stem.endswith("_exps") else "shared_expert" if stem.endswith("_shexp") else "ffn"
        role = "router" if stem.startswith("ffn_gate_inp") else role
        return role, ("none" if role == "router" else "cols" if stem.startswith("ffn_down") else "rows")
    if stem in ("attn_q_a", "attn_kv_a_mqa"):
        return "attention", "none"
    return ("attention", "cols" if stem == "attn_output" else "rows") if stem.startswith("attn_") else ("ffn", "none")
