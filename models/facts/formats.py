"""Number formats of weights and of the KV cache: bits an element, scale bytes a group. Layouts, not measurements.

Sources: OCP Microscaling (MX) v1.0 (mxfp4, mxfp8: one E8M0 byte for 32 elements); NVIDIA NVFP4 (one E4M3 byte for 16, one FP32 a
tensor); AutoAWQ / AutoGPTQ packing (int4 zeros, FP16 scales for 128); ggml block_q* structures (q8_0: 32 x int8 + fp16 = 34 bytes,
q4_0: 32 x int4 + fp16 = 18 bytes); vLLM FP8 per-tensor KV scales, per-token-head scales in FP32, ``fp8_ds_mla`` (656 bytes: 512 FP8,
4 FP32 scales, 64 BF16).
"""

from __future__ import annotations

from dataclasses import dataclass

from models.describe.architecture import BF16, FP16, FP32, StoredFormat
from models.errors import NotCoveredError, UnknownNameError

WEIGHT_FORMATS: dict[str, StoredFormat] = {
    f.name: f
    for f in (
        BF16,
        FP16,
        FP32,
        StoredFormat("fp8", 8, scale_bits=32, group_rows=0),
        StoredFormat("fp8_channel", 8, scale_bits=16),
        StoredFormat("fp8_block", 8, scale_bits=32, group_rows=128, group_cols=128),
        StoredFormat("int8", 8, scale_bits=16),
        StoredFormat("int4", 4, scale_bits=16, group_cols=128),
        StoredFormat("awq_int4", 4, scale_bits=16, zero_bits=4, group_cols=128),
        StoredFormat("gptq_int4", 4, scale_bits=16, zero_bits=4, group_cols=128, column_bytes=4),
        StoredFormat("nvfp4", 4, scale_bits=8, group_cols=16, tensor_bytes=8),
        StoredFormat("mxfp4", 4, scale_bits=8, group_cols=32),
        StoredFormat("mxfp8", 8, scale_bits=8, group_cols=32),
        StoredFormat("q8_0", 8, scale_bits=16, group_cols=32),
        StoredFormat("q4_0", 4, scale_bits=16, group_cols=32),
    )
}


@dataclass(frozen=True, slots=True)
class KvFormat:
    """``bits`` an element and ``scale_bytes`` for each ``group`` of elements of one head's vector (0 = the whole vector)."""

    name: str
    bits: int
    scale_bytes: int = 0
    group: int = 0
    latent_only: bool = False

    def vector_bytes(self, dim: int) -> int:
        """Bytes of one cached vector of ``dim`` elements; blocks never straddle vectors."""
        if dim == 0:
            return 0
        if self.group and dim % self.group:
            why = f"blocks of {self.group} do not divide a vector of {dim}"
            raise NotCoveredError(why, path="kv_format", value=self.name, way_out="choose bf16 or fp8_e4m3")
        return -(-dim * self.bits // 8) + self.scale_bytes * (dim // self.group if self.group else 1)


KV_FORMATS: dict[str, KvFormat] = {
    f.name: f
    for f in (
        KvFormat("bf16", 16),
        KvFormat("fp16", 16),
        KvFormat("fp32", 32),
        KvFormat("fp8_e4m3", 8),
        KvFormat("fp8_e5m2", 8),
        KvFormat("q8_0", 8, scale_bytes=2, group=32),
        KvFormat("q5_1", 5, scale_bytes=4, group=32),
        KvFormat("q5_0", 5, scale_bytes=2, group=32),
        KvFormat("q4_1", 4, scale_bytes=4, group=32),
        KvFormat("q4_0", 4, scale_bytes=2, group=32),
        KvFormat("iq4_nl", 4, scale_bytes=2, group=32),
        KvFormat("int8_per_token_head", 8, scale_bytes=4),
        KvFormat("fp8_per_token_head", 8, scale_bytes=4),
        KvFormat("int4_per_token_head", 4, scale_bytes=4),
        KvFormat("nvfp4", 4, scale_bytes=1, group=16),
        KvFormat("fp8_ds_mla", 8, scale_bytes=4, group=128, latent_only=True),
    )
}
_KV_ALIASES = {
    "auto": "bf16",
    "bfloat16": "bf16",
    "float16": "fp16",
    "f16": "fp16",
    "f32": "fp32",
    "fp8": "fp8_e4m3",
    "int8": "int8_per_token_head",
    "int4": "int4_per_token_head",
}
_WEIGHT_ALIASES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "awq": "awq_int4", "gptq": "gptq_int4"}


def kv_format(name: str) -> KvFormat:
    """The KV format of that name; engines' spellings (``auto``, ``fp8``, ``f16``) are accepted."""
    found = KV_FORMATS.get(_KV_ALIASES.get(name, name))
    if found is None:
        raise UnknownNameError.suggest("KV format", name, [*KV_FORMATS, *_KV_ALIASES], path="kv_format")
    return found


def weight_format(name: str) -> StoredFormat | None:
    """The weight format of that name; None for ``stored`` (each tensor as its checkpoint has it)."""
    if name == "stored":
        return None
    found = WEIGHT_FORMATS.get(_WEIGHT_ALIASES.get(name, name))
    if found is None:
        raise UnknownNameError.suggest("weight format", name, ["stored", *WEIGHT_FORMATS, *_WEIGHT_ALIASES], path="weight_format")
    return found


def require_latent(stored: KvFormat, *, latent: bool) -> None:
    """``fp8_ds_mla`` describes MLA's latent alone."""
    if stored.latent_only and not latent:
        raise NotCoveredError("this KV format stores MLA latents only", path="kv_format", value=stored.name, way_out="use fp8_e4m3")
