"""Time of one engine step, from its work: the one formula that closed form, solver tables and simulator share.

Notation (scalars or broadcastable arrays; SI units)
    n        new tokens in the step: prefill tokens plus one row for each decode or verified position
    h        rows through the output head (one for each sequence that emits, every row when verifying)
    q        causal (query, key) pairs of the step, section 8.2.3: h' + c(c+1)/2 summed over chunks
    k        bytes of KV (and recurrent state) that the step reads
    s        sequences in the step
    q_s      those of the q pairs whose sequence has few new rows: attention may run another kernel for them, whose pairs cost
             g times those of long chunks (``short_pair_cost``); a caller hands q + (g - 1) q_s on as q (``priced_pairs``)
    F, D     matrix FLOPs and bytes read; P, B the device's peak FLOP/s and bytes/s over all ranks

Forms
    LINEAR    fixed + a_n n + a_q q + a_D D + a_s s                        (affine rounds, chapter8-scheduler)
    PHYSICAL  t_c = (f_n (n + n_half) + f_h h) / (P e_m) + f_q q / (P e_a)   saturation with rows adds n_half rows
              t_m = D / (B e_b)
              device = max(t_c, t_m) + (1 - w) min(t_c, t_m)               between the floor and the sum bound
              step   = max(host, device) + (1 - w_h) min(host, device) + all-reduce + KV conversion
Both are clamped: no step is shorter than max(F / P, D / B).
All functions are plain arithmetic on floats or numpy arrays, so numba can compile them unchanged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Number = float | npt.NDArray[Any]

LINEAR, PHYSICAL = 0, 1


class StepModel(NamedTuple):
    """Lowered step-time model: plain floats, so that it can cross into compiled kernels. Built only by ``models.lower``."""

    form: int
    # the device's floor, all ranks together
    peak_flops: float  # P, FLOP/s
    peak_bytes_per_s: float  # B, bytes/s
    # work of the model on this configuration
    flops_per_token: float  # f_n: 2 x linear parameters that each row passes
    flops_per_logit_row: float  # f_h: 2 x hidden x vocabulary
    flops_per_pair: float  # f_q: 4 x heads x head_dim x layers (score and value)
    weight_bytes: float  # read once a step whatever the rows
    expert_bytes: float  # routed experts, all of them
    expert_fraction: float  # top-k / experts, 0 for a dense model
    # LINEAR
    fixed_s: float = 0.0
    per_token_s: float = 0.0
    per_pair_s: float = 0.0
    per_byte_s: float = 0.0
    per_sequence_s: float = 0.0
    # PHYSICAL
    matmul_efficiency: float = 1.0  # e_m
    half_rows: float = 0.0  # n_half
    attention_efficiency: float = 1.0  # e_a
    short_pair_cost: float = 1.0  # g: a pair of few new rows against one of a long chunk
    bandwidth_efficiency: float = 1.0  # e_b
    overlap: float = 1.0  # w, 1 = compute and reads fully overlapped
    host_s: float = 0.0
    host_per_sequence_s: float = 0.0
    host_overlap: float = 1.0  # w_h, 1 = host hidden behind the device
    collective_s: float = 0.0  # all-reduce latency of a step
    collective_per_token_s: float = 0.0
    conversion_s_per_byte: float = 0.0  # quantised KV converted while read
    request_s: float = 0.0  # of a request outside the steps, until its first token is at the client; no step holds it
    by_format: tuple[tuple[str, float], ...] = ()  # ("parameter@KV format", value): what a format changes; ``of_format`` puts it in place


def of_format(m: StepModel, kv_format: str) -> StepModel:
    """The model of a cache in ``kv_format``: where the calibration knows parameters of that format, they take their place."""
    own = {name.partition("@")[0]: value for name, value in m.by_format if name.endswith(f"@{kv_format}")}
    return m._replace(by_format=(), **own)  # type: ignore[arg-type]


def weight_read_bytes(m: StepModel, n: Number) -> Number:
    """Bytes of weights that a step of ``n`` rows reads: dense part once, experts touched by n rows x top-k of E (expected)."""
    return m.weight_bytes + m.expert_bytes * (1.0 - (1.0 - m.expert_fraction) ** n)


def step_flops(m: StepModel, n: Number, h: Number, q: Number) -> Number:
    """Matrix FLOPs of the step."""
    return m.flops_per_token * n + m.flops_per_logit_row * h + m.flops_per_pair * q


def floor_seconds(m: StepModel, n: Number, h: Number, q: Number, k: Number) -> Number:
    """max(F / P, D / B): the physical lower bound of the step."""
    return np.maximum(step_flops(m, n, h, q) / m.peak_flops, (weight_read_bytes(m, n) + k) / m.peak_bytes_per_s)


def _physical_seconds(m: StepModel, n: Number, h: Number, q: Number, k: Number, s: Number) -> Number:
    compute = (m.flops_per_token * (n + m.half_rows) + m.flops_per_logit_row * h) / (m.peak_flops * m.matmul_efficiency)
    compute = compute + m.flops_per_pair * q / (m.peak_flops * m.attention_efficiency)
    memory = (weight_read_bytes(m, n) + k) / (m.peak_bytes_per_s * m.bandwidth_efficiency)
    device = np.maximum(compute, memory) + (1.0 - m.overlap) * np.minimum(compute, memory)
    host = m.host_s + m.host_per_sequence_s * s
    step = np.maximum(host, device) + (1.0 - m.host_overlap) * np.minimum(host, device)
    return step + m.collective_s + m.collective_per_token_s * n + m.conversion_s_per_byte * k


def step_seconds(m: StepModel, n: Number, h: Number, q: Number, k: Number, s: Number) -> Number:
    """Seconds of one step of n rows, h head rows, q pairs, k KV bytes and s sequences; never under the floor."""
    if m.form == LINEAR:
        t = m.fixed_s + m.per_token_s * n + m.per_pair_s * q + m.per_byte_s * (weight_read_bytes(m, n) + k) + m.per_sequence_s * s
    else:
        t = _physical_seconds(m, n, h, q, k, s)
    return np.maximum(t, floor_seconds(m, n, h, q, k))


def priced_pairs(m: StepModel, pairs: Number, short: Number) -> Number:
    """All pairs in units of long chunks' ones: q + (g - 1) q_s. The floor never rises above the step: e_a <= 1 scales both alike."""
    return pairs + (m.short_pair_cost - 1.0) * short


def causal_pairs(new: Number, cached: Number) -> Number:
    """Pairs of ``new`` tokens after ``cached`` ones: c h + c (c + 1) / 2 (section 8.2.3)."""
    return new * cached + new * (new + 1.0) / 2.0
