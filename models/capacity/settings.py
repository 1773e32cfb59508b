"""What is asked of one engine process, checked once, and what a log already told about it.

Bytes are exact integers for one rank. A number that is given replaces the estimate of it, whatever it rests on.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from models.describe.architecture import Architecture
from models.describe.configuration import DraftSource
from models.errors import ContradictionError, InputError
from models.units import parse_bytes

MOST = 1 << 48
DRAFT_SOURCES = {source.value: source for source in DraftSource}


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes of one rank taken from a log or given by hand; None: estimated.

    ``available`` is the pool itself; ``resolution``: half a unit of its last printed digit, 0 where it is exact.
    ``ranks``: the available bytes of every rank, where the log shows them: the smallest decides.
    """

    total: int | None = None
    weights: int | None = None
    non_torch: int | None = None
    activation: int | None = None
    graph: int | None = None
    available: int | None = None
    resolution: int = 0
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("weights", "non_torch", "activation", "graph", "resolution"):
            _within(f"measured.{name}", getattr(self, name), 0)
        _within("measured.total", self.total, 1)
        for value in (self.available, *self.ranks):  # a logged pool may be negative: that is a refusal, not a bad input
            _within("available_kv", value, -MOST)

    @property
    def pool(self) -> int | None:
        """Bytes of the pool: of the rank with the least."""
        known = [value for value in (self.available, *self.ranks) if value is not None]
        return min(known) if known else None


@dataclass(frozen=True, slots=True)
class Settings:
    """Engine flags that bear on memory. None: the engine's own default for this model, device and version."""

    tp: int = 1
    pp: int = 1
    attention_dp: int = 1
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    weight_format: str = "stored"
    enforce_eager: bool = False
    enable_prefix_caching: bool | None = None
    enable_lora: bool = False
    asynchronous: bool = True
    hybrid_manager: bool = True
    draft: str = "none"
    draft_tokens: int = 0
    draft_model: Architecture | None = None  # the draft's own shape; None: shaped like the model's layers
    parallel: int = 1
    unified_kv: bool = False
    micro_batch: int = 512
    flash_attention: bool = True
    attention_backend: str = ""

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "attention_dp", "parallel", "micro_batch"):
            _within(name, getattr(self, name), 1)
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"):
            _within(name, getattr(self, name), 1)
        _within("draft_tokens", self.draft_tokens, 0)
        f = self.gpu_memory_utilization
        if f is not None and not (isfinite(f) and 0 < f <= 1):
            raise InputError("must lie in (0, 1]", path="gpu_memory_utilization", value=f, way_out="write for example 0.9")
        if self.draft not in DRAFT_SOURCES:
            raise InputError("unknown draft", path="draft", value=self.draft, way_out=f"use one of {', '.join(DRAFT_SOURCES)}")
        if self.attention_backend not in ("", "aiter"):
            raise InputError(
                "no memory rule is known for it",
                path="attention_backend",
                value=self.attention_backend,
                way_out="leave it out, or use aiter",
            )
        if (self.draft == "none") != (self.draft_tokens == 0):
            raise ContradictionError("a draft and its tokens go together", path="draft_tokens", value=self.draft_tokens)
        if self.draft_model is not None and self.draft not in ("eagle", "dflash", "model"):
            raise ContradictionError("has no model of its own", path="draft", value=self.draft, way_out="leave draft_model out")
        if self.draft == "model" and self.draft_model is None:
            raise InputError("a separate draft model must be given", path="draft_model", way_out="give a catalogue name or a path")
        if self.tp % self.attention_dp:
            raise ContradictionError(f"does not divide {self.tp} ranks", path="attention_dp", value=self.attention_dp)

    @property
    def attention_tp(self) -> int:
        """Ranks over which KV heads are cut."""
        return self.tp // self.attention_dp

    def context(self, arch: Architecture) -> int:
        """Tokens of the longest request."""
        if not (self.max_model_len or arch.context):
            raise InputError("the model tells no longest context", path="max_model_len", way_out="give max_model_len")
        return self.max_model_len or arch.context


def check_model(arch: Architecture, settings: Settings) -> None:
    """The model against the flags: layers over stages (the reader has checked windows, the facts check heads over ranks)."""
    if settings.pp > max(arch.layer_count, 1):
        raise ContradictionError(f"more stages than {arch.layer_count} layers", path="pp", value=settings.pp)


def _within(path: str, value: int | None, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError("must be a whole number", path=path, value=value)
    if not least <= value <= MOST:
        raise InputError(f"must be between {least} and 2^48", path=path, value=value)


def half_of_last_digit(text: str) -> int:
    """Bytes of half a unit of the last decimal that is written (``3.81 GiB``: 0.005 GiB); 0 for a whole number."""
    number = "".join(c for c in text if c.isdigit() or c == ".")
    if "." not in number:
        return 0
    one = parse_bytes("1" + text.lstrip("0123456789._ "))
    return round(one * 10.0 ** -len(number.split(".")[1]) / 2)
