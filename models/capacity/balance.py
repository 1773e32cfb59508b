"""What is left for the pool when nothing was measured: the card's memory less everything else, each part with its spread.

Notation for one rank: M memory the runtime shows, u utilisation, W weights, O outside the framework's allocator, A activation peak,
G graphs.
    vLLM        available = ceil(u M) - W - O - A (- G from 0.20 on)
    SGLang      rest = (M - c - W) - (M - c)(1 - f), c = context and collective buffers held before the weights
    TensorRT    available = u (M - c - W - A);   llama.cpp available = M - c - W - compute buffer
Weights: stored bytes of the rank, absorbed copies of latent projections, and the rotary table, context x rotary width x 2 bytes, once.
Activation peak of t tokens and r sampled rows: max(t x live bytes of a token, r x vocabulary x bytes of a logit). A token's live set
is largest at the last product of an FFN: residual, its normed copy, the product's output, gate and up, and their combination, that is
2 (3 h + 3 w) bytes.
Spreads are standard deviations in bytes; those given relative (log-sd s) contribute s x value. They add in squares.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

from models import facts
from models.capacity.llama_cpp import compute_bytes
from models.capacity.settings import DRAFT_SOURCES, Measured, Settings
from models.catalog.estimates_catalog import Guess, estimates, guess, visible_memory
from models.catalog.pool_rules import PoolRules
from models.describe.architecture import Architecture
from models.describe.hardware import Device
from models.drafts import draft_shape
from models.errors import InputError
from models.memory import activation_bytes_per_token, graph_bytes


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of one rank, their standard deviation, and whether they were measured, follow from the shape, or are estimated."""

    bytes: int
    sd: float
    source: str


@dataclass(frozen=True, slots=True)
class Balance:
    """All parts of one rank's memory and what remains for the pool."""

    total: Part
    requested: Part
    weights: Part
    non_torch: Part
    activation: Part
    graph: Part
    available: Part


@dataclass(frozen=True, slots=True)
class Step:
    """The largest step that an engine tries at start, and the graphs it captures."""

    tokens: int
    rows: int
    captured: tuple[int, ...]


def balance(
    arch: Architecture, device: Device | None, settings: Settings, rules: PoolRules, measured: Measured, step: Step
) -> Balance | None:
    """Every part of the balance; None where neither a device nor a measured total is known."""
    if measured.total is None and device is None:
        return None
    total = _given(measured.total) or _part(visible_memory(device) if device else None)
    weights = _given(measured.weights) or _weights(arch, settings)
    non_torch = _given(measured.non_torch) or _outside(rules, settings)
    activation = _given(measured.activation) or _activation(arch, settings, rules, step)
    graph = _given(measured.graph) or _graph(arch, settings, step)
    share = settings.gpu_memory_utilization or rules.utilization or default_fraction(total.bytes, settings, step)
    parts = (total, weights, non_torch, activation, graph)
    left, requested = _left(rules, share, parts)
    slopes = _slopes(rules, share)
    spread = sqrt(sum((slope * part.sd) ** 2 for slope, part in zip(slopes, parts, strict=True)))
    return Balance(total, requested, weights, non_torch, activation, graph, Part(left, spread, "estimated"))


def _left(rules: PoolRules, share: float, parts: tuple[Part, Part, Part, Part, Part]) -> tuple[int, Part]:
    total, weights, outside, activation, graph = (part.bytes for part in parts)
    if rules.scheme in ("uniform_blocks", "groups"):
        requested = ceil(total * share)
        left = requested - weights - outside - activation - (graph if rules.graph_in_budget else 0)
    elif rules.scheme == "static_fraction":
        before = total - outside
        requested = int(before * share)
        left = before - weights - int(before * (1 - share))
    elif rules.scheme == "free_fraction":
        requested = total
        left = int(share * (total - outside - weights - activation))
    else:
        requested = total
        left = total - outside - weights - activation
    return left, Part(requested, share * parts[0].sd, parts[0].source)


def _slopes(rules: PoolRules, share: float) -> tuple[float, float, float, float, float]:
    """How much the pool moves with total, weights, outside, activation, graph."""
    if rules.scheme in ("uniform_blocks", "groups"):
        return share, 1, 1, 1, 1 if rules.graph_in_budget else 0
    if rules.scheme == "static_fraction":
        return share, 1, share, 0, 0
    return (share, share, share, share, 0) if rules.scheme == "free_fraction" else (1, 1, 1, 1, 0)


def _weights(arch: Architecture, settings: Settings) -> Part:
    """As stored; what is narrower than 16 bits may be repacked by its kernel."""
    by_format = facts.weight_bytes_by_precision(arch, settings.weight_format, settings.tp)
    narrow = sum(size for name, size in by_format.items() if name not in ("bf16", "fp16", "fp32"))
    log_sd = float(estimates()["quantised_weights"]["log_sd"])
    return Part(weight_bytes(arch, settings), log_sd * narrow / settings.pp, "shape")


def weight_bytes(arch: Architecture, settings: Settings) -> int:
    """Weights that one rank loads (the fullest stage), with the rotary table of its positions."""
    whole = facts.weight_bytes(arch, settings.weight_format, settings.tp) + _draft_weights(arch, settings)
    whole += _absorbed_bytes(arch, settings.attention_tp)
    if settings.attention_dp > 1:  # neither attention nor embedding is cut over ranks that serve other requests
        apart = ("attention", "embedding")
        cut, own = (facts.weight_bytes_of(arch, settings.weight_format, tp, apart) for tp in (settings.tp, settings.attention_tp))
        whole += own - cut
    rotary = max((g.attention.rope_dim or g.attention.key_dim for g in arch.layers if g.attention), default=0)
    table = arch.context * rotary * 2
    if settings.pp == 1:
        return whole + table
    ends = facts.weight_bytes_of(arch, settings.weight_format, settings.tp, ("embedding", "head", "position", "vision"))
    layers = -(-arch.layer_count // settings.pp)
    return int((whole - ends) * layers / arch.layer_count) + ends // 2 + table


def _absorbed_bytes(arch: Architecture, tp: int) -> int:
    """BF16 copies of a latent's up-projections, kept beside the stored ones so that queries and values are absorbed into the latent.

    heads x (key width without its rotary part + value width) x latent x 2 bytes a layer (sglang/srt/models/deepseek_v2.py w_kc and w_vc,
    vllm/model_executor/layers/attention/mla_attention.py W_UK_T and W_UV).
    """
    latents = [(g.count, g.attention) for g in arch.layers if g.attention and g.attention.kind == "latent"]
    return sum(n * -(-a.heads // tp) * (a.key_dim - a.rope_dim + a.value_dim) * a.latent_dim * 2 for n, a in latents)


def _draft_weights(arch: Architecture, settings: Settings) -> int:
    if settings.draft == "none":
        return 0
    if settings.draft_model is not None:
        return facts.weight_bytes(settings.draft_model, tp=settings.tp)
    return draft_shape(arch, DRAFT_SOURCES[settings.draft], None, settings.tp).weight_bytes


def default_fraction(total: int, settings: Settings, step: Step) -> float:
    """SGLang's own static fraction (server_args.py 0.5.10 _handle_gpu_memory_settings, in MiB).

    Kept free: 512, 1.5 a chunk token, 2 a captured request, 128 a rank; with attention over n data-parallel ranks 3 n a captured request,
    half as much again above 300 of them.
    """
    mib, captured = total / (1 << 20), max(step.captured, default=0)
    reserved = 512 + 1.5 * max(step.tokens, 2048) + 2 * captured + settings.tp * settings.pp / 8 * 1024
    if settings.attention_dp > 1:
        reserved += captured * settings.attention_dp * (4.5 if captured > 300 else 3)
    reserved = max(reserved, 10 * 1024) if mib > 60 * 1024 else reserved
    if settings.draft in ("eagle", "mtp", "dflash"):
        reserved += 4 * 1024
    if reserved >= mib:
        raise InputError("leaves nothing for weights and cache", path="max_num_batched_tokens", value=step.tokens, way_out="lower it")
    return round((mib - reserved) / mib, 3)


def _activation(arch: Architecture, settings: Settings, rules: PoolRules, step: Step) -> Part:
    known = estimates()["activation"]
    if rules.scheme == "context":
        size = compute_bytes(arch, settings)
        return Part(size, float(known["log_sd_compiled"]) * size, "estimated")
    size = step.tokens * activation_bytes_per_token(arch, settings.tp)
    if rules.compiled:
        size = max(size, step.rows * arch.vocabulary * int(known["sampler_bytes_per_logit"]))
    plain = all(g.state is None and not (g.ffn and g.ffn.experts) for g in arch.layers) and not arch.vision
    log_sd = known["log_sd_other"] if not plain else known["log_sd_compiled" if rules.compiled else "log_sd_eager"]
    if arch.vision and rules.compiled:
        trial = guess("image_trial")
        return Part(size + trial.bytes, sqrt((float(log_sd) * size) ** 2 + trial.sd**2), "estimated")
    return Part(size, float(log_sd) * size, "estimated")


def _graph(arch: Architecture, settings: Settings, step: Step) -> Part:
    size = graph_bytes(arch, step.captured, settings.tp)
    return Part(size, float(estimates()["graph"]["log_sd"]) * size, "estimated")


def _outside(rules: PoolRules, settings: Settings) -> Part:
    if rules.scheme in ("uniform_blocks", "groups"):
        return _part(guess("non_torch"))
    held = guess("context")
    if settings.tp * settings.pp == 1:
        return _part(held)
    joined = guess("distributed")
    return Part(held.bytes + joined.bytes, sqrt(held.sd**2 + joined.sd**2), "estimated")


def _given(value: int | None) -> Part | None:
    return None if value is None else Part(value, 0.0, "measured")


def _part(found: Guess | None) -> Part:
    assert found is not None
    return Part(found.bytes, found.sd, "estimated")
