"""A model's shape, as data: what each layer stores, reads and computes. Built by ``models.readers``, read by ``models.facts``.

Notation: bytes and elements are exact integers; a tensor is ``rows`` (outputs) x ``cols`` (inputs) x ``copies`` (routed experts).
One ``LayerGroup`` stands for ``count`` identical layers. Which layers differ (window, experts, precision) is told by different groups,
so no consumer ever branches on a model's name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Role = Literal[
    "attention",
    "state",
    "ffn",
    "router",
    "expert",
    "shared_expert",
    "control",
    "norm",
    "embedding",
    "position",
    "head",
    "vision",
    "mtp",
    "buffer",
]
Split = Literal["rows", "cols", "none"]
AttentionKind = Literal["grouped", "latent", "compressed"]
StateKind = Literal["mamba", "mamba2", "gated_delta", "kimi_delta", "lightning"]


@dataclass(frozen=True, slots=True)
class StoredFormat:
    """How one number is stored: element bits plus what is stored beside a group of elements.

    ``group_cols`` / ``group_rows``: elements of one scale (0 = the whole extent); ``scale_bits`` and ``zero_bits`` per group;
    ``tensor_bytes`` once a tensor (global scale, input scale, shape); ``column_bytes`` once an input column (GPTQ's g_idx).
    """

    name: str
    bits: int
    scale_bits: int = 0
    group_rows: int = 1
    group_cols: int = 0
    zero_bits: int = 0
    tensor_bytes: int = 0
    column_bytes: int = 0

    def nbytes(self, rows: int, cols: int) -> int:
        """Exact bytes of a ``rows`` x ``cols`` tensor, packed rows and scales included."""
        body = -(-rows * cols * self.bits // 8)
        if not (self.scale_bits or self.zero_bits):
            return body + self.tensor_bytes
        groups = -(-rows // (self.group_rows or rows)) * -(-cols // (self.group_cols or cols))
        return body + -(-groups * (self.scale_bits + self.zero_bits) // 8) + self.tensor_bytes + self.column_bytes * cols


BF16 = StoredFormat("bf16", 16)
FP16 = StoredFormat("fp16", 16)
FP32 = StoredFormat("fp32", 32)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One stored tensor, or ``copies`` equal ones.

    ``linear``: a row of the batch is multiplied by it (so it counts 2 x rows x cols FLOPs); ``split``: the dimension tensor parallelism
    cuts; ``units``: how many indivisible pieces (KV heads) the cut dimension has, 0 = any element boundary.
    """

    name: str
    rows: int
    cols: int = 1
    role: Role = "norm"
    copies: int = 1
    linear: bool = False
    split: Split = "none"
    units: int = 0
    format: StoredFormat = BF16

    @property
    def elements(self) -> int:
        return self.rows * self.cols * self.copies

    def share(self, tp: int) -> tuple[int, int]:
        """(rows, cols) that one of ``tp`` ranks holds; KV heads are replicated once there are fewer than ranks."""
        if tp == 1 or self.split == "none":
            return self.rows, self.cols
        whole = self.rows if self.split == "rows" else self.cols
        part = -(-whole // tp) if not self.units else -(-self.units // tp) * (whole // self.units)
        return (part, self.cols) if self.split == "rows" else (self.rows, part)

    def nbytes(self, tp: int = 1, stored: StoredFormat | None = None) -> int:
        rows, cols = self.share(tp)
        return (stored or self.format).nbytes(rows, cols) * self.copies


@dataclass(frozen=True, slots=True)
class Indexer:
    """Scores all cached tokens with small keys and lets attention read only the best ``top_k`` (DSA, block-sparse attention)."""

    heads: int
    dim: int
    top_k: int
    stores_keys: bool = True  # False where the layer reuses the choice of an earlier one
    tokens_per_key: int = 1


@dataclass(frozen=True, slots=True)
class Attention:
    """What one layer's softmax attention stores and computes.

    grouped: ``kv_heads`` x (``key_dim`` + ``value_dim``) elements a token (GQA, MQA with 1, MHA with ``heads``).
    latent: one vector of ``latent_dim`` + ``rope_dim`` elements a token for all heads (MLA), replicated on every rank.
    compressed: a latent kept for ``window`` recent tokens, plus one of each ``compress_ratio`` older ones.
    ``window``: tokens visible (None = all); ``shares_kv``: reads the cache of an earlier layer, stores nothing.
    """

    kind: AttentionKind
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    chunked: bool = False
    latent_dim: int = 0
    rope_dim: int = 0
    compress_ratio: int = 0
    shares_kv: bool = False
    indexer: Indexer | None = None


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """Fixed-size state of a linear-attention or state-space layer, for one sequence, in elements.

    ``heads``: how far it can be cut over ranks; ``recurrent_bits``: 32 unless the engine is told otherwise.
    ``convolution_channels``: channels of the causal convolution, so that kernel = convolution_elements / channels; engines keep kernel - 1
    columns, and one more for each drafted token.
    """

    kind: StateKind
    heads: int
    recurrent_elements: int
    convolution_elements: int
    recurrent_bits: int = 32
    convolution_bits: int = 16
    convolution_channels: int = 0


@dataclass(frozen=True, slots=True)
class Ffn:
    """Feed-forward part: a dense width, or ``experts`` of width ``expert_width`` of which ``top_k`` act, or both in parallel."""

    width: int = 0
    gated: bool = True
    experts: int = 0
    top_k: int = 0
    expert_width: int = 0
    shared_width: int = 0


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """``count`` identical layers; a layer may have attention, a recurrent state, both (Falcon-H1) or neither."""

    count: int
    attention: Attention | None
    state: RecurrentState | None
    ffn: Ffn | None
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Architecture:
    """A whole model. ``base`` holds what lies outside the layers (embeddings, head, last norm), ``mtp`` the next-token-prediction
    layers that a checkpoint stores beside the model, ``vision`` all towers and projectors.

    ``stored_bytes`` is the checkpoint's own total where its files were read (safetensors headers, GGUF), else None: computed.
    """

    name: str
    family: str
    hidden: int
    vocabulary: int
    context: int
    tied: bool
    layers: tuple[LayerGroup, ...]
    base: tuple[Tensor, ...]
    vision: tuple[Tensor, ...] = ()
    mtp: tuple[Tensor, ...] = ()
    native: StoredFormat = BF16
    quantisation: str = "none"
    kv_format: str = "auto"
    stored_bytes: int | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def layer_count(self) -> int:
        return sum(group.count for group in self.layers)

    @property
    def heads(self) -> int:
        """Most query heads of any attention layer, 0 without attention."""
        return max((g.attention.heads for g in self.layers if g.attention), default=0)

    @property
    def attention_layers(self) -> int:
        return sum(group.count for group in self.layers if group.attention)
