"""Seconds of a prefill phase and of a decode or verification round, for every form a calibration may name.

Notation (arrays broadcast against each other; SI units)
    x        requests of the wave, each with ``samples`` sequences
    c        token budget of a step
    n        steps of the prefill: ceil(x new / c), or more where a chunk cap holds single requests back
    F, D     matrix FLOPs and bytes read
Every result is clamped to the floor max(F / P, D / B): a prediction never beats the device.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from models.columns import Columns
from models.describe.calibration import Affine, Calibration, DecodeForm, EfficiencyTable, LinearIteration, Physical, PrefillForm, Table
from models.kernels.step import LINEAR, PHYSICAL, StepModel, step_seconds

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def prefill_steps(k: Columns, x: Ints, c: Ints) -> Ints:
    """Steps of a wave's prefill: the budget limits all requests together, the chunk cap each one alone."""
    total = x * k.new_tokens
    return np.asarray(np.maximum(-(-total // c), -(-k.request_new_tokens // k.chunk_cap)), dtype=np.int64)


def prefill_seconds(calibration: Calibration, k: Columns, x: Ints, c: Ints) -> Floats:
    """Seconds until every prompt of the wave is processed (its requests' common first token)."""
    n = prefill_steps(k, x, c)
    time = _PREFILL[type(calibration.prefill)](calibration.prefill, k, x, n, c) * k.prefill_factor
    return np.maximum(time, prefill_floor(k, x, n, c))


def prefill_floor(k: Columns, x: Ints, n: Ints, c: Ints) -> Floats:
    """max(F / P, D / B) of the phase: each step reads the weights and the experts its tokens touch, cached context once in all."""
    full, tail = _split(k, x, n, c)
    weights = (n - 1) * weight_bytes(k, full) + weight_bytes(k, tail)
    bytes_read = weights + x * k.kv_cached_read
    return np.asarray(np.maximum(x * k.prefill_flops / k.peak_flops, bytes_read / k.peak_bytes_per_s), dtype=np.float64)


def _split(k: Columns, x: Ints, n: Ints, c: Ints) -> tuple[Ints, Ints]:
    """Tokens of each of the n - 1 full steps of a prefill, and of its last one."""
    total = x * k.new_tokens
    full = np.minimum(c, -(-total // n))
    return full, total - (n - 1) * full


def efficiency(table: EfficiencyTable, x: Ints, prompt: Ints) -> Floats:
    """Nearest point in (log batch, log prompt); the first of equally near ones."""
    log_x, log_p = np.log(np.asarray(x, dtype=np.float64)), np.log(np.asarray(prompt, dtype=np.float64))
    best = np.full(np.broadcast_shapes(log_x.shape, log_p.shape), np.inf)
    value = np.zeros_like(best)
    for point in table.points:
        distance = (log_x - np.log(point.batch)) ** 2 + (log_p - np.log(point.prompt)) ** 2
        nearer = distance < best - 1e-12
        best, value = np.where(nearer, distance, best), np.where(nearer, point.value, value)
    return value


def _prefill_table(form: PrefillForm, k: Columns, x: Ints, n: Ints, _c: Ints) -> Floats:
    assert isinstance(form, EfficiencyTable)
    return np.asarray(x * k.prefill_flops / (k.reference_flops * efficiency(form, x, k.prompt_tokens)) + 0.0 * n)


def _prefill_stepwise(form: PrefillForm, k: Columns, x: Ints, n: Ints, c: Ints) -> Floats:
    """(n - 1) full steps and a tail; head rows, pairs and sequences spread evenly over the tokens."""
    model = step_model(form, k, (k.prefill_flops - k.new_tokens * k.flops_per_token - k.flops_per_logit_row) / k.pairs)
    full, tail = _split(k, x, n, c)

    def step(tokens: Ints) -> Floats:
        share = tokens / k.new_tokens  # requests' worth of tokens in the step
        read = np.maximum(share, 1.0) * k.kv_chunk_read
        return np.asarray(step_seconds(model, tokens, share, share * k.pairs * k.chunk_pair_cost, read, np.minimum(x, np.ceil(share))))

    return (n - 1) * step(full) + step(tail)


_PREFILL: dict[type, Callable[[PrefillForm, Columns, Ints, Ints, Ints], Floats]] = {
    EfficiencyTable: _prefill_table,
    LinearIteration: _prefill_stepwise,
    Physical: _prefill_stepwise,
}


def round_bytes(k: Columns, x: Ints) -> Floats:
    """Bytes that a round reads: weights, each sequence's own KV, the shared prefix (section 8.2.1)."""
    return np.asarray(weight_bytes(k, round_rows(k, x)) + x * k.kv_private_read + k.kv_shared_read, dtype=np.float64)


def weight_bytes(k: Columns, rows: Ints) -> Floats:
    """Weights read by a step: the dense part, and the experts that ``rows`` rows are expected to touch."""
    return np.asarray(k.weight_read + k.expert_read * (1.0 - (1.0 - k.expert_fraction) ** rows), dtype=np.float64)


def round_rows(k: Columns, x: Ints) -> Ints:
    """Rows of a round before padding: every sequence decodes one token and verifies its draft."""
    return np.asarray(x * k.samples * k.rows_per_sequence, dtype=np.int64)


def round_flops(k: Columns, x: Ints) -> Floats:
    """Matrix FLOPs of a round: each row passes the model, attends to its context, and goes through the head."""
    return np.asarray(round_rows(k, x) * (k.flops_per_token + k.flops_per_logit_row + k.row_attention_flops), dtype=np.float64)


def round_floor(k: Columns, x: Ints) -> Floats:
    """max(F / P, D / B) of a round, the draft's own reads included."""
    compute = (round_flops(k, x) + k.draft_flops * x * k.samples) / k.peak_flops
    return np.asarray(np.maximum(compute, (round_bytes(k, x) + k.draft_read) / k.peak_bytes_per_s), dtype=np.float64)


def round_seconds(calibration: Calibration, k: Columns, x: Ints) -> Floats:
    """Seconds of one decode or verification round of a wave of x requests."""
    form = calibration.decode
    time = _ROUND[type(form)](form, k, x)
    if isinstance(calibration.prefill, EfficiencyTable) and not isinstance(form, Physical):
        verify = round_flops(k, x) / (k.reference_flops * efficiency(calibration.prefill, x, k.prompt_tokens))
        time = np.where(k.rows_per_sequence > 1, np.maximum(time, verify), time)
    return np.maximum(time + k.draft_seconds + k.kv_conversion_s, round_floor(k, x))


def _round_affine(form: DecodeForm, k: Columns, x: Ints) -> Floats:
    assert isinstance(form, Affine)
    return form.fixed_s + form.per_byte_s * round_bytes(k, x)


def _round_table(form: DecodeForm, k: Columns, x: Ints) -> Floats:
    assert isinstance(form, Table)
    reads, times = (np.array(column) for column in zip(*form.points, strict=True))
    at = round_bytes(k, x)
    piece = np.clip(np.searchsorted(reads, at), 1, len(reads) - 1)
    slope = (times[piece] - times[piece - 1]) / (reads[piece] - reads[piece - 1])
    return np.asarray(times[piece - 1] + slope * (at - reads[piece - 1]), dtype=np.float64)


def _round_stepwise(form: DecodeForm, k: Columns, x: Ints) -> Floats:
    rows = k.padded_rows(round_rows(k, x))
    pairs = round_rows(k, x) * k.context * k.row_pair_cost
    kv = x * k.kv_private_read + k.kv_shared_read
    return np.asarray(step_seconds(step_model(form, k, k.row_attention_flops / k.context), rows, rows, pairs, kv, x * k.samples))


_ROUND: dict[type, Callable[[DecodeForm, Columns, Ints], Floats]] = {
    Affine: _round_affine,
    Table: _round_table,
    LinearIteration: _round_stepwise,
    Physical: _round_stepwise,
}


def step_model(form: PrefillForm | DecodeForm, k: Columns, flops_per_pair: Floats) -> StepModel:
    """The kernel's StepModel for a stepwise form; fields are arrays of the branches' shape."""
    work = (k.peak_flops, k.peak_bytes_per_s, k.flops_per_token, k.flops_per_logit_row, flops_per_pair)
    reads = (k.weight_read, k.expert_read, k.expert_fraction)
    if isinstance(form, LinearIteration):
        return StepModel(LINEAR, *work, *reads, form.fixed_s, form.per_new_token_s, form.per_causal_pair_s)  # type: ignore[arg-type]
    assert isinstance(form, Physical)
    return StepModel(
        PHYSICAL, *work, *reads,  # type: ignore[arg-type]
        matmul_efficiency=form.matmul_efficiency, half_rows=form.half_rows, attention_efficiency=form.attention_efficiency,
        short_pair_cost=k.short_pair_cost, conversion_s_per_byte=k.kv_conversion_s_per_byte,  # type: ignore[arg-type]
        bandwidth_efficiency=form.bandwidth_efficiency, overlap=form.overlap, host_s=k.host_s,  # type: ignore[arg-type]
        host_per_sequence_s=form.host_per_sequence_s, host_overlap=form.host_overlap,
        collective_s=k.collective_s, collective_per_token_s=k.collective_per_token_s,  # type: ignore[arg-type]
    )  # fmt: skip
