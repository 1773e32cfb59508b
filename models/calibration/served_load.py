"""What one served load asks of the device: physical quantities of a closed loop, the terms that a calibration weighs.

Notation (one deployment = one replica; SI units)
    b      requests in flight (closed loop);  i, o  prompt and output tokens of each
    G      devices of the replica;  a  ranks that share one sequence's attention (G under tensor parallelism, G / d under
           attention data parallelism of degree d);  L  layers
    P, B   peak FLOP/s of one device at the compute precision, bytes/s of its memory;  l  bytes/s of its link, one direction
    W_d, W_e  weight bytes outside and inside the routed experts;  k/E  experts that a row activates
Per decode step (section 8.2.1, 8.2.2)
    weights      w(b), w(n) = (W_d / a + W_e (1 - (1 - k/E)^n) / G) / B for n rows
    kv           sequences of a rank x (KV read at i + o/2 + recurrent state) / B
    compute      f_n b / (G P)
    links        two all-reduces a layer of b rows: ring, 2 (G - 1)/G x 2 bytes x hidden / l
First token: a prompt of i tokens reads w(i); its experts run on all G devices, the rest of it on its own a; a burst fills all of them.
Interference (section 8.2.3): in a closed loop every step carries b/o prefills: compute, links, launches and the host's own part.
Overflow: KV of b sequences over what the memory holds; above 1 the rest waits (Little's law, section 8.6.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from models.describe.architecture import Architecture
from models.describe.hardware import Device
from models.errors import ContradictionError
from models.facts.flops import flops_per_logit_row, flops_per_token, prefill_flops
from models.facts.kv import kv_bytes
from models.facts.reads import context_read_bytes, state_read_bytes
from models.facts.weights import tensors_of

_SOFT = 0.1  # width of the onset of queueing, relative to the capacity: blocks, uneven lengths
_MEMORY_SHARE = 0.9  # engines' default share of the device memory
_LEAST_SHARE = 0.02  # of the device memory left for KV where the weights alone fill it


@dataclass(frozen=True, slots=True)
class ServedLoad:
    """One closed-loop load on one replica. ``weight_bits`` of experts and, apart, of everything else; ``kv_format`` a catalogue name."""

    arch: Architecture
    device: Device
    compute_precision: str  # which peak the matrices reach
    dense_bits: float
    expert_bits: float
    kv_format: str
    devices: int
    attention_ranks: int  # ranks that share one sequence's attention
    expert_parallel: bool
    concurrency: float
    prompt: int
    output: int

    def __post_init__(self) -> None:
        if min(self.devices, self.attention_ranks, self.prompt, self.output) < 1 or not self.concurrency > 0:
            raise ContradictionError("a load needs devices, tokens and requests", value=(self.devices, self.prompt, self.output))
        if self.devices % self.attention_ranks:
            raise ContradictionError("attention ranks do not divide the devices", value=(self.devices, self.attention_ranks))


@dataclass(frozen=True, slots=True)
class Shape:
    """Parameters and layer counts of a model, once for each architecture."""

    layers: int
    expert_layers: int
    latent_layers: int
    indexed_layers: int
    dense_parameters: int
    expert_parameters: int
    expert_fraction: float


def shape_of(arch: Architecture) -> Shape:
    """Counts by kind of layer and parameters inside and outside the routed experts (looked-up embeddings left out)."""
    dense = sum(n * t.elements for n, t in tensors_of(arch) if t.role not in ("expert", "embedding", "position", "vision", "buffer", "mtp"))
    experts = sum(n * t.elements for n, t in tensors_of(arch) if t.role == "expert")
    fractions = [g.ffn.top_k / g.ffn.experts for g in arch.layers if g.ffn and g.ffn.experts]
    return Shape(
        layers=arch.layer_count,
        expert_layers=sum(g.count for g in arch.layers if g.ffn and g.ffn.experts),
        latent_layers=sum(g.count for g in arch.layers if g.attention and g.attention.kind != "grouped"),
        indexed_layers=sum(g.count for g in arch.layers if g.attention and g.attention.indexer),
        dense_parameters=dense, expert_parameters=experts, expert_fraction=max(fractions, default=0.0),
    )  # fmt: skip


def kv_overflow(load: ServedLoad, shape: Shape) -> float:
    """KV that the load wants on one device over what fits there beside the weights."""
    sequences = load.concurrency * load.attention_ranks / load.devices
    wanted = sequences * kv_bytes(load.arch, load.prompt + load.output, load.kv_format, load.attention_ranks)
    weights = (
        shape.dense_parameters * load.dense_bits / 8 / load.attention_ranks + shape.expert_parameters * load.expert_bits / 8 / load.devices
    )
    memory = load.device.memory_bytes
    return wanted / max(_MEMORY_SHARE * memory - weights, _LEAST_SHARE * memory)


def _weights_s(load: ServedLoad, shape: Shape, rows: float) -> float:
    """w(n): weights that a step of ``rows`` rows reads on one device, which touch the experts that some row chooses."""
    touched = 1.0 - math.pow(1.0 - shape.expert_fraction, rows)
    dense, experts = shape.dense_parameters * load.dense_bits / 8, shape.expert_parameters * load.expert_bits / 8
    return (dense / load.attention_ranks + experts * touched / load.devices) / load.device.memory_bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True)
class LoadFacts:
    """Seconds at the peaks (coefficient 1 = the specification), and the features that the smooth part of a calibration sees."""

    weights_s: float
    kv_s: float
    compute_s: float
    links_s: float
    prefill_s: float  # of one prompt, its share of all devices
    prompt_s: float  # of one prompt alone, on the ranks that attend to it
    prompt_weights_s: float  # that its step reads
    prefill_links_s: float
    layers: int
    expert_layers: int
    latent_layers: int
    indexed_layers: int
    linked_layers: int
    concurrency: float
    slots: float
    output: int
    overflow: float
    features: tuple[float, ...]


def load_facts(load: ServedLoad, shape: Shape) -> LoadFacts:
    """Physical quantities of ``load``; refuses a parallelism that the heads cannot be divided over (``ContradictionError``)."""
    b, g, ranks = load.concurrency, load.devices, load.attention_ranks
    peak, link = load.device.peak(load.compute_precision), load.device.gpu_link_bytes_per_s or load.device.host_link_bytes_per_s or 0.0
    sequences = max(b * ranks / g, 1.0)
    context = load.prompt + load.output // 2
    kv = sequences * (context_read_bytes(load.arch, context, load.kv_format, ranks) + state_read_bytes(load.arch, ranks))
    linear = flops_per_token(load.arch)
    attention = prefill_flops(load.arch, load.prompt) - linear * load.prompt - flops_per_logit_row(load.arch)
    attention_s = attention / load.device.peak("bf16")
    routed = 2.0 * shape.expert_parameters * shape.expert_fraction  # FLOPs of a token in its experts
    prefill = (linear * load.prompt / peak + attention_s) / g
    prompt = ((linear - routed) * load.prompt / peak + attention_s) / ranks + routed * load.prompt / (g * peak)
    row_links = 2 * shape.layers * 2.0 * (g - 1) / g * 2.0 * load.arch.hidden / link if g > 1 and link else 0.0
    overflow = kv_overflow(load, shape)
    return LoadFacts(
        weights_s=_weights_s(load, shape, b), kv_s=kv / load.device.memory_bandwidth_bytes_per_s,
        compute_s=linear * b / (g * peak), links_s=row_links * b,
        prefill_s=prefill, prompt_s=prompt, prompt_weights_s=_weights_s(load, shape, load.prompt), prefill_links_s=row_links * load.prompt,
        layers=shape.layers, expert_layers=shape.expert_layers, latent_layers=shape.latent_layers, indexed_layers=shape.indexed_layers,
        linked_layers=shape.layers if g > 1 else 0, concurrency=b, slots=b / max(overflow, 1.0), output=load.output, overflow=overflow,
        features=(
            float(np.log(b)), float(np.log(load.prompt)), float(np.log(load.output)), float(np.log(g)), float(ranks < g),
            float(load.expert_parallel), float(np.log(max(overflow, _LEAST_SHARE))),
        ),
    )  # fmt: skip


def step_terms(f: LoadFacts) -> dict[str, float]:
    """Terms of the time per output token; the units of the launch and host terms are 10 microseconds and 1 millisecond."""
    started = f.slots / f.output  # prefills that a step carries
    return {
        "launch": f.layers * 1e-5, "launch_expert": f.expert_layers * 1e-5, "launch_latent": f.latent_layers * 1e-5,
        "launch_indexer": f.indexed_layers * 1e-5, "weights": f.weights_s, "kv": f.kv_s, "compute": f.compute_s,
        "collective": f.linked_layers * 1e-5, "links": f.links_s, "host_row": f.concurrency * 1e-5,
        "prefill": started * f.prefill_s, "prefill_links": started * f.prefill_links_s, "prefill_launch": started * f.layers * 1e-5,
        "prefill_host": started * 1e-3,
    }  # fmt: skip


def first_token_terms(f: LoadFacts, step_s: float) -> dict[str, float]:
    """Terms of the time to the first token; ``step_s`` is the specification's guess of a step.

    ``burst``: all b requests arrive together, so the mean waits for half of them. ``turnover``: one client more than slots, so that each
    request waits for the next to finish, o steps / b. ``overflow``: requests beyond the KV pool wait for whole ones (Little's law).
    """
    beyond = _SOFT * float(np.logaddexp(0.0, (f.overflow - 1.0) / _SOFT))
    whole = f.output * step_s
    half = max(f.concurrency - 1.0, 0.0) / 2
    return {
        "host": 5e-3, "launch": f.layers * 1e-5, "prefill": f.prompt_s, "prefill_links": f.prefill_links_s, "weights": f.prompt_weights_s,
        "burst": half * f.prefill_s, "burst_links": half * f.prefill_links_s, "step": step_s, "turnover": whole / f.concurrency,
        "overflow": whole * beyond, "host_row": f.concurrency * 1e-3,
    }  # fmt: skip
