"""Parameters and weight bytes of an architecture, exact, for one rank of ``tp``.

Notation: n rows of a step; E experts, k of them chosen by a row. Expected expert bytes read by n rows = all experts x (1 - (1 - k/E)^n)
(each expert is missed by one row with probability 1 - k/E; section 8.2.1). Embeddings are looked up by row and are not read as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from models.describe.architecture import Architecture, LayerGroup, StoredFormat, Tensor
from models.errors import ContradictionError
from models.facts.formats import weight_format

_LOOKED_UP = ("embedding", "position")
_UNCOUNTED = ("mtp", "buffer")


@dataclass(frozen=True, slots=True)
class Parameters:
    """Logical parameters (quantisation ignored, MTP layers and buffers left out)."""

    total: int
    embedding: int
    head: int
    experts: int
    shared_experts: int
    vision: int
    active: int
    position: int
    mtp: int


@dataclass(frozen=True, slots=True)
class WeightRead:
    """Bytes that a step of n rows reads on one rank: ``fixed + experts x (1 - (1 - expert_fraction)^n)``."""

    fixed: int
    experts: int
    expert_fraction: float

    def bytes_for(self, rows: int) -> float:
        return self.fixed + self.experts * (1.0 - (1.0 - self.expert_fraction) ** rows)


def check_tensor_parallel(arch: Architecture, tp: int) -> None:
    """Heads must divide over the ranks; KV heads must divide or be replicated whole."""
    if tp < 1:
        raise ContradictionError("tensor parallel size must be at least 1", path="tensor_parallel", value=tp)
    for attention in (g.attention for g in arch.layers if g.attention):
        if attention.heads % tp:
            way_out = f"choose a divisor of {attention.heads}"
            raise ContradictionError(
                f"{attention.heads} attention heads do not divide over the ranks", path="tensor_parallel", value=tp, way_out=way_out
            )
        if attention.kind == "grouped" and attention.kv_heads % tp and tp % attention.kv_heads:
            way_out = f"choose a divisor or a multiple of {attention.kv_heads}"
            raise ContradictionError(
                f"{attention.kv_heads} KV heads neither divide nor replicate", path="tensor_parallel", value=tp, way_out=way_out
            )
    for state in (g.state for g in arch.layers if g.state):
        if state.heads % tp:
            raise ContradictionError(
                f"{state.heads} state heads do not divide over the ranks",
                path="tensor_parallel",
                value=tp,
                way_out=f"choose a divisor of {state.heads}",
            )


def tensors_of(arch: Architecture, *, mtp: bool = False) -> Iterator[tuple[int, Tensor]]:
    """Every tensor with how many times it occurs."""
    for group in arch.layers:
        for tensor in group.tensors:
            yield group.count, tensor
    for tensor in (*arch.base, *arch.vision, *(arch.mtp if mtp else ())):
        yield 1, tensor


def _top_k_share(group: LayerGroup) -> Fraction:
    ffn = group.ffn
    return Fraction(ffn.top_k, ffn.experts) if ffn and ffn.experts else Fraction(1)


def parameters(arch: Architecture) -> Parameters:
    """Counts by role; ``active`` counts the embedding once and top-k of the routed experts, without vision and position tables."""
    by_role: dict[str, int] = {}
    for count, tensor in tensors_of(arch):
        by_role[tensor.role] = by_role.get(tensor.role, 0) + count * tensor.elements
    total = sum(n for role, n in by_role.items() if role not in _UNCOUNTED)
    idle = sum(
        (g.count * sum(t.elements for t in g.tensors if t.role == "expert") * (1 - _top_k_share(g)) for g in arch.layers),
        start=Fraction(0),
    )
    vision, position = by_role.get("vision", 0), by_role.get("position", 0)
    return Parameters(
        total=total,
        embedding=by_role.get("embedding", 0),
        head=by_role.get("head", 0),
        experts=by_role.get("expert", 0),
        shared_experts=by_role.get("shared_expert", 0),
        vision=vision,
        active=int(total - idle - vision - position),
        position=position,
        mtp=sum(t.elements for t in arch.mtp if t.role != "buffer"),
    )


def _format_of(tensor: Tensor, wanted: StoredFormat | None) -> StoredFormat:
    """A narrow format applies to the layers' matrices alone; embeddings, head, norms and routers then keep 16 bits."""
    if wanted is None or tensor.role == "buffer":
        return tensor.format
    if wanted.bits >= 16:
        return wanted
    keeps = not tensor.linear or tensor.role in ("embedding", "position", "head", "router", "vision")
    return StoredFormat("bf16", 16) if keeps else wanted


def weight_bytes_by_precision(arch: Architecture, weight_format_name: str = "stored", tp: int = 1, *, mtp: bool = False) -> dict[str, int]:
    """Bytes of one rank by format name (a format's scales are counted with it)."""
    check_tensor_parallel(arch, tp)
    wanted = weight_format(weight_format_name)
    found: dict[str, int] = {}
    for count, tensor in tensors_of(arch, mtp=mtp):
        stored = _format_of(tensor, wanted)
        found[stored.name] = found.get(stored.name, 0) + count * tensor.nbytes(tp, stored)
    return found


def weight_bytes(arch: Architecture, weight_format_name: str = "stored", tp: int = 1, *, mtp: bool = False) -> int:
    """Bytes of one rank. ``mtp=True`` adds the prediction layers that the checkpoint stores and an engine loads only to speculate."""
    return sum(weight_bytes_by_precision(arch, weight_format_name, tp, mtp=mtp).values())


def weight_bytes_of(arch: Architecture, weight_format_name: str, tp: int, roles: tuple[str, ...]) -> int:
    """Bytes of one rank in tensors of these roles."""
    wanted = weight_format(weight_format_name)
    return sum(count * t.nbytes(tp, _format_of(t, wanted)) for count, t in tensors_of(arch) if t.role in roles)


def checkpoint_bytes(arch: Architecture) -> int:
    """Bytes of the checkpoint's tensors: read from its files where there were any, else computed with everything it stores."""
    return arch.stored_bytes if arch.stored_bytes is not None else weight_bytes(arch, mtp=True)


def weight_read(arch: Architecture, weight_format_name: str = "stored", tp: int = 1) -> WeightRead:
    """Bytes that a step reads on one rank; vision towers run only for images and are left out."""
    check_tensor_parallel(arch, tp)
    wanted = weight_format(weight_format_name)
    fixed = experts = 0
    for count, tensor in tensors_of(arch):
        if tensor.role in ("vision", "buffer") or (tensor.role in _LOOKED_UP and not (tensor.role == "embedding" and arch.tied)):
            continue
        size = count * tensor.nbytes(tp, _format_of(tensor, wanted))
        experts += size if tensor.role == "expert" else 0
        fixed += 0 if tensor.role == "expert" else size
    fractions = [float(_top_k_share(g)) for g in arch.layers if g.ffn and g.ffn.experts]
    return WeightRead(fixed, experts, max(fractions, default=0.0))


def linear_parameters(arch: Architecture) -> int:
    """Parameters that one row is multiplied by in the layers: attention, FFN, router, shared and top-k routed experts; no head."""
    found = Fraction(0)
    for group in arch.layers:
        share = _top_k_share(group)
        found += group.count * sum(
            (t.elements * (share if t.role == "expert" else 1) for t in group.tensors if t.linear), start=Fraction(0)
        )
    found += sum(t.elements for t in arch.base if t.linear and t.role not in ("head", "embedding", "position"))
    return int(found)


def ffn_bytes_per_layer(arch: Architecture, weight_format_name: str = "stored", tp: int = 1) -> int:
    """Largest FFN of one layer on one rank (what offloading a layer's FFN moves), routed experts included."""
    wanted = weight_format(weight_format_name)
    roles = ("ffn", "expert", "shared_expert", "router")
    return max(sum(t.nbytes(tp, _format_of(t, wanted)) for t in g.tensors if t.role in roles) for g in arch.layers)


def layer_bytes(arch: Architecture, weight_format_name: str = "stored", tp: int = 1) -> int:
    """Largest whole layer on one rank."""
    wanted = weight_format(weight_format_name)
    return max(sum(t.nbytes(tp, _format_of(t, wanted)) for t in g.tensors) for g in arch.layers)
