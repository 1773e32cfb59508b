"""One value for every decision variable: what an engine is told to do."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from models.describe.base import Description


class KvFormat(StrEnum):
    """How a cached key or value element is stored; scales are counted (section 8.4.2)."""

    BF16 = "bf16"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    INT8_PER_TOKEN_HEAD = "int8_per_token_head"
    INT4_PER_TOKEN_HEAD = "int4_per_token_head"
    NVFP4 = "nvfp4"


class DraftSource(StrEnum):
    """Where draft tokens come from (section 8.5.3)."""

    NONE = "none"
    LOOKUP = "lookup"  # n-grams of the prompt and the answer so far
    MODEL = "model"  # a separate small model, token by token
    EAGLE = "eagle"  # a small head on the target's hidden states, token by token
    MTP = "mtp"  # heads trained with the model
    DFLASH = "dflash"  # the whole draft in one parallel forward


Count = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]  # strict: ``true`` is no 1


class Configuration(Description):
    """Settings of one engine process. Defaults are the plain engine: no draft, no offload, everything resident."""

    max_num_seqs: Count
    max_num_batched_tokens: Count
    prefill_chunk: Count | None = None  # most new tokens of one request in a step; None: only the token budget limits
    kv_format: KvFormat = KvFormat.BF16
    weight_format: str = "stored"  # "stored": the checkpoint as it is
    prefix_sharing: bool = False
    offload_layers: Annotated[int, Field(ge=0, le=10_000, strict=True)] = 0
    prefetch_buffers: Annotated[int, Field(ge=0, le=2, strict=True)] = 0
    draft: DraftSource = DraftSource.NONE
    draft_tokens: Annotated[int, Field(ge=0, le=256, strict=True)] = 0
    admission_limit: Count | None = None  # most requests in the system; None: no limit
    tensor_parallel: Annotated[int, Field(ge=1, le=1024, strict=True)] = 1
    cuda_graphs: bool = True
    captured_sizes: tuple[Count, ...] = ()

    @field_validator("captured_sizes")
    @classmethod
    def _increasing(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        increasing = sorted(set(sizes))
        if increasing != list(sizes):
            raise ValueError(f"must be strictly increasing, as {increasing}")
        return sizes

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.draft is DraftSource.NONE) != (self.draft_tokens == 0):
            raise ValueError("draft_tokens must be 0 exactly when draft is none")
        if (self.offload_layers == 0) != (self.prefetch_buffers == 0):
            raise ValueError("prefetch_buffers must be 1 or 2 exactly when offload_layers is above 0")
        if self.captured_sizes and not self.cuda_graphs:
            raise ValueError("captured_sizes need cuda_graphs: true")
        return self
