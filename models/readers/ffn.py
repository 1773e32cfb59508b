"""Feed-forward layers: dense and mixture-of-experts, as tensors."""

from __future__ import annotations

from dataclasses import dataclass

from models.describe.architecture import BF16, FP32, Ffn, Role
from models.readers.tensors import Tensors, buffer, linear, norm, vector


@dataclass(frozen=True, slots=True)
class MlpNames:
    """Module names of one MLP below its parent."""

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


def mlp(
    prefix: str,
    hidden: int,
    width: int,
    role: Role = "ffn",
    *,
    gated: bool = True,
    bias: bool = False,
    copies: int = 1,
    names: MlpNames | None = None,
) -> Tensors:
    """down(act(gate x) * up x), or down(act(up x)) when not gated."""
    words = names or MlpNames()
    found = linear(f"{prefix}.{words.gate}", width, hidden, role, bias=bias, copies=copies) if gated else ()
    found += linear(f"{prefix}.{words.up}", width, hidden, role, bias=bias, copies=copies)
    return found + linear(f"{prefix}.{words.down}", hidden, width, role, "cols", bias=bias, copies=copies)


@dataclass(frozen=True, slots=True)
class Moe:
    """One mixture-of-experts layer. ``latent``: experts work on a projection of that width (0 = the hidden size)."""

    experts: int
    top_k: int
    width: int
    shared_width: int = 0
    shared_gate: bool = False
    shared_bias: bool = False
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    correction_bias: bool = False
    correction_native: bool = False
    latent: int = 0
    latent_norm: bool = False
    prefix: str = "mlp"
    router: str = "gate"
    shared: str = "shared_experts"
    names: MlpNames = MlpNames()
    extra_vectors: tuple[tuple[str, int], ...] = ()
    latent_names: tuple[str, str] = ("fc1_latent_proj", "fc2_latent_proj")


def moe_layer(moe: Moe, hidden: int) -> tuple[Ffn, Tensors]:
    """Router, routed experts, shared expert, and the projections into and out of the experts' latent width."""
    inner = moe.latent or hidden
    found = linear(f"{moe.prefix}.{moe.router}", moe.experts, hidden, "router", "none", bias=moe.router_bias)
    if moe.correction_bias:
        found += buffer(f"{moe.prefix}.{moe.router}.e_score_correction_bias", moe.experts, BF16 if moe.correction_native else FP32)
    if moe.latent:
        found += linear(f"{moe.prefix}.{moe.latent_names[0]}", inner, hidden, "ffn", "none", bias=moe.shared_bias)
        found += linear(f"{moe.prefix}.{moe.latent_names[1]}", hidden, inner, "ffn", "none", bias=moe.shared_bias)
        found += norm(f"{moe.prefix}.latent_norm", inner) if moe.latent_norm else ()
    found += mlp(f"{moe.prefix}.experts.*", inner, moe.width, "expert", gated=moe.gated, bias=moe.bias, copies=moe.experts, names=moe.names)
    if moe.shared_width:
        found += mlp(f"{moe.prefix}.{moe.shared}", hidden, moe.shared_width, "shared_expert", gated=moe.gated, bias=moe.shared_bias)
        found += linear(f"{moe.prefix}.shared_expert_gate", 1, hidden, "shared_expert", "none") if moe.shared_gate else ()
    for name, size in moe.extra_vectors:
        found += vector(f"{moe.prefix}.{name}", size)
    return Ffn(0, moe.gated, moe.experts, moe.top_k, moe.width, moe.shared_width), found
