"""The one place where descriptions become kernels' inputs: a case and its branch axes in, ``Columns`` out.

Each quantity depends on few axes, so it is computed once for each combination of those and gathered for all branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from models import facts
from models.case import BranchAxes, Case, Graphs, Speculation
from models.columns import Columns
from models.describe.architecture import Architecture
from models.describe.calibration import Affine, Calibration, Physical, Table
from models.describe.configuration import Configuration, DraftSource, KvFormat
from models.describe.engine import ALWAYS_SHORT
from models.describe.hardware import Device
from models.drafts import draft_shape
from models.errors import NotCoveredError
from models.facts.reads import context_read_bytes, row_attention_flops, state_read_bytes
from models.memory import activation_bytes_per_token, full_blocks, graph_bytes, kib, kv_layout, logits_bytes_per_row
from models.quality import probability_correct
from models.speculation import rounds, tokens_per_round

UNLIMITED = 1 << 40

Row = dict[str, float]


def lower(case: Case, axes: BranchAxes) -> Columns:
    """Columns of every branch of ``axes``, in their order."""
    shape = axes.shape
    codes = np.unravel_index(np.arange(int(np.prod(shape))), shape)
    columns: dict[str, npt.NDArray[Any]] = {}
    for which, compute in _TABLES:
        _gather(columns, codes, [axes.lists()[i] for i in which], which, lambda *values, f=compute: f(case, *values))
    columns["captured"], table = _captured(case, axes, codes)
    columns["samples"] = np.full(len(codes[0]), case.request.samples, dtype=np.int64)
    return Columns(**columns, capture_table=table)


def _gather(
    columns: dict[str, npt.NDArray[Any]], codes: Sequence[npt.NDArray[np.intp]], values: Sequence[Sequence[Any]],
    which: Sequence[int], compute: Callable[..., Row],
) -> None:  # fmt: skip
    """Compute ``compute`` for each combination of the axes ``which`` and spread its fields over the branches."""
    shape = tuple(len(v) for v in values)
    rows = [compute(*(v[i] for v, i in zip(values, at, strict=True))) for at in np.ndindex(*shape)]
    index = np.ravel_multi_index([codes[i] for i in which], shape)
    for name in rows[0]:
        column = np.array([row[name] for row in rows])
        kind = np.int64 if all(isinstance(row[name], int) for row in rows) else np.float64
        columns[name] = column.astype(kind)[index]


def _model(case: Case, tp: int, weight_format: str) -> Row:
    arch, stored = case.weights[weight_format], case.architecture
    read = facts.weight_read(arch, tp=tp)
    weights = _weight_bytes(case, weight_format, tp)
    stored_bytes = _weight_bytes(case, case.stored_format, tp)
    layer = facts.ffn_bytes_per_layer(arch, tp=tp)
    link = case.host_link
    return {
        "peak_flops": tp * compute_peak(case, arch),
        "reference_flops": tp * (case.calibration.peak_flops or compute_peak(case, stored)),
        "peak_bytes_per_s": tp * float(case.device.memory_bandwidth_bytes_per_s),
        "weight_read": float(read.fixed * tp), "expert_read": float(read.experts * tp), "expert_fraction": read.expert_fraction,
        "flops_per_token": float(facts.flops_per_token(arch)), "flops_per_logit_row": float(facts.flops_per_logit_row(arch)),
        "model_layers": arch.layer_count, "devices": tp,
        "weights_kib": kib(weights), "layer_kib": kib(layer), "pool_credit_kib": stored_bytes // 1024 - kib(weights),
        "copy_us_per_layer": int(-(-layer * 1e6 // link)) if link else UNLIMITED,
        "activation_kib_per_token": activation_bytes_per_token(arch, tp) / 1024,
        "logits_kib_per_row": logits_bytes_per_row(arch, tp) / 1024,
        "collective_s": _collective(case, tp)[0], "collective_per_token_s": _collective(case, tp)[1],
    }  # fmt: skip


def _weight_bytes(case: Case, weight_format: str, tp: int) -> int:
    if case.request.weights is not None and weight_format == case.stored_format:
        return -(-case.request.weights // tp)
    return facts.weight_bytes(case.weights[weight_format], tp=tp)


def compute_peak(case: Case, arch: Architecture) -> float:
    """Peak FLOP/s of one device for this model's matrix products: by the format that most of its weight bytes have."""
    return float(case.device.peaks[main_peak(case.device, arch)])


def main_peak(device: Device, arch: Architecture) -> str:
    """The precision whose dense peak bounds this model's matrix products on this device."""
    by_precision = facts.weight_bytes_by_precision(arch)
    main = max(by_precision, key=lambda name: by_precision[name])
    wanted = "fp8" if main.startswith(("fp8", "mxfp8")) else "fp4" if main in ("nvfp4", "mxfp4") else "bf16"
    for precision in (wanted, "bf16", "fp16"):
        if device.peaks.get(precision) is not None:
            return precision
    raise NotCoveredError(
        "no dense peak is known for this device", path="hardware.device", value=device.id, way_out="choose another device"
    )


def _collective(case: Case, tp: int) -> tuple[float, float]:
    """All-reduce of a step: two a layer, latency and 2 (tp - 1) / tp x bytes of hidden states over the link."""
    form = case.calibration.decode
    if tp == 1:
        return 0.0, 0.0
    if not isinstance(form, Physical):
        raise NotCoveredError(
            f"calibration {case.calibration.name} does not cover tensor parallelism",
            path="tensor_parallel",
            value=tp,
            way_out="use 1, or calibration: none",
        )
    link = case.device.gpu_link_bytes_per_s or case.host_link
    if link is None:
        raise NotCoveredError(
            "no link between devices is known", path="hardware.device", value=case.device.id, way_out="use tensor_parallel 1"
        )
    reduces = 2 * case.architecture.layer_count
    per_token = reduces * 2 * (tp - 1) / tp * 2 * case.architecture.hidden / (link * form.link_efficiency)
    return reduces * form.all_reduce_latency_s, per_token


def _traffic(case: Case, tp: int, kv_format: KvFormat, sharing: bool) -> Row:  # noqa: FBT001
    arch, r = case.architecture, case.request
    stored = r.prompt_tokens + r.output_tokens - 1
    shared = full_blocks(r.shared_prefix_tokens, case.block_tokens) if sharing else 0
    trunk = r.prompt_tokens if sharing and r.samples > 1 else None
    layout = kv_layout(
        arch, kv_format, stored_tokens=stored, shared_tokens=shared, prompt_tokens=trunk, samples=r.samples,
        block_tokens=case.block_tokens, tp=tp,
    )  # fmt: skip
    context = _context(case)
    whole = context_read_bytes(arch, int(context), kv_format, tp)
    once = shared * facts.kv_bytes_per_token(arch, kv_format, tp) if case.calibration.shared_prefix_read == "once" else 0
    cached = context_read_bytes(arch, shared, kv_format, tp) if shared else 0
    state = state_read_bytes(arch, tp)
    half = context_read_bytes(arch, shared + (r.prompt_tokens - shared) // 2, kv_format, tp)
    return {
        "kv_private_kib": kib(layout.private), "kv_shared_kib": kib(layout.shared),
        "kv_private_read": float(tp * r.samples * (whole - once + state)), "kv_shared_read": float(tp * once),
        "kv_cached_read": float(tp * cached), "kv_chunk_read": float(tp * (half + state)),
        "context": context, "row_attention_flops": row_attention_flops(arch, context),
        **_format_costs(case, kv_format),
        "probability_correct": probability_correct(r.quality, kv_format),
    }  # fmt: skip


def _format_costs(case: Case, kv_format: KvFormat) -> Row:
    """What a stored format costs beside its bytes: conversion, and pairs of the attention kernel that it runs in."""
    form, tiled = case.calibration.decode, case.engine.tiled_from(case.device.architecture, kv_format)
    known = form if isinstance(form, Physical) else None
    short = known.short_pair_cost.get(kv_format, 1.0) if known else 1.0
    return {
        "kv_conversion_s": case.calibration.kv_conversion_s.get(kv_format, 0.0),
        "kv_conversion_s_per_byte": known.kv_conversion_s_per_byte.get(kv_format, 0.0) if known else 0.0,
        "short_pair_cost": short, "row_pair_cost": short if tiled > 1 else 1.0,
        "chunk_pair_cost": short if tiled >= ALWAYS_SHORT else 1.0,
    }  # fmt: skip


def _context(case: Case) -> float:
    """Tokens a round attends to: the prompt, or the mean over the rounds, as the calibration was fitted."""
    r, form = case.request, case.calibration.decode
    if isinstance(form, Affine | Table) and form.context == "prompt":
        return float(r.prompt_tokens)
    return r.prompt_tokens + r.output_tokens / 2


def _prompt(case: Case, sharing: bool) -> Row:  # noqa: FBT001
    arch, r = case.architecture, case.request
    prefix = full_blocks(r.shared_prefix_tokens, case.block_tokens) if sharing else 0
    prefix = min(prefix, r.prompt_tokens - 1)  # the last prompt token is always computed: it yields the first output
    new = r.prompt_tokens - prefix
    copies = r.samples if r.samples > 1 and not sharing else 1
    uncached = prefix if sharing and not r.prefix_cached else 0
    return {
        "prompt_tokens": r.prompt_tokens, "new_tokens": copies * new, "request_new_tokens": new,
        "pairs": float(copies * facts.attention_pairs(new, prefix)),
        "prefill_flops": float(copies * facts.prefill_flops(arch, new, prefix)),
        "prefix_tokens": uncached, "prefix_flops": float(facts.prefill_flops(arch, uncached)) if uncached else 0.0,
        "prefix_pairs": float(facts.attention_pairs(uncached, 0)),
    }  # fmt: skip


def _speculation(case: Case, tp: int, choice: Speculation) -> Row:
    draft, m = choice
    r, measured = case.request, case.calibration.drafts.get(draft)
    if draft is DraftSource.NONE:
        return _spec_row(rounds=r.output_tokens - 1)
    if draft not in r.speculation:
        raise NotCoveredError(
            f"no acceptance is given for draft {draft}",
            path=f"workload.{case.class_name}.speculation",
            way_out=f"add {draft}: {{tokens_per_round: …}}",
        )
    acceptance = r.speculation[draft]
    emitted = tokens_per_round(acceptance, m, measured.draft_tokens if measured else None)
    row = _spec_row(rounds=rounds(r.output_tokens, emitted), rows=m + 1, preparation=acceptance.preparation)
    if measured is not None:
        return row | {
            "prefill_factor": measured.prefill_factor,
            "draft_seconds": measured.round_extra_s,
            "draft_kib": kib(measured.memory_bytes),
        }
    shape = draft_shape(case.architecture, draft, case.draft_models.get(draft), tp)
    forwards = 1 if shape.parallel else m
    per_byte = _seconds_per_byte(case.calibration, case.device.memory_bandwidth_bytes_per_s)
    stored = r.prompt_tokens + r.output_tokens - 1
    return row | {
        "prefill_factor": 1.0 + shape.linear_parameters * tp / facts.linear_parameters(case.architecture),
        "draft_seconds": forwards * shape.weight_bytes * per_byte + shape.query_s,
        "draft_read": float(forwards * shape.weight_bytes * tp), "draft_flops": 2.0 * shape.linear_parameters * tp * m,
        "draft_kib": kib(shape.weight_bytes), "draft_kib_per_request": kib(r.samples * stored * shape.kv_bytes_per_token),
    }  # fmt: skip


def _spec_row(*, rounds: int, rows: int = 1, preparation: float = 0.0) -> Row:
    return {
        "rounds": rounds, "rows_per_sequence": rows, "prefill_factor": 1.0, "draft_seconds": 0.0, "draft_read": 0.0, "draft_flops": 0.0,
        "draft_kib": 0, "draft_kib_per_request": 0, "preparation_s": preparation,
    }  # fmt: skip


def _seconds_per_byte(calibration: Calibration, bandwidth: float) -> float:
    """What reading a draft's weights costs in this calibration's terms, never less than the bandwidth allows."""
    form = calibration.decode
    if isinstance(form, Affine):
        return max(form.per_byte_s, 1.0 / bandwidth)
    return 1.0 / (bandwidth * form.bandwidth_efficiency) if isinstance(form, Physical) else 1.0 / bandwidth


def _engine(case: Case, tp: int, speculation: Speculation, graphs: Graphs) -> Row:
    on, form = graphs[0], case.calibration.decode
    host = 0.0
    if isinstance(form, Physical):
        host = form.host_graph_s if on else form.host_eager_s
    sizes = captured_rows(case, speculation, graphs)
    return {"host_s": host, "graph_kib": kib(graph_bytes(case.architecture, sizes, tp))}


def captured_rows(case: Case, speculation: Speculation, graphs: Graphs) -> tuple[int, ...]:
    """Row counts of the captured graphs: the listed ones, or the engine's own list for this draft; empty without graphs."""
    on, sizes, per_sequence = graphs
    draft, m = speculation
    if not on:
        return ()
    if sizes:
        return tuple(size * (m + 1) for size in sizes) if per_sequence else sizes
    most = max(case.requests * case.request.samples, 1)
    plain = Configuration(max_num_seqs=most, max_num_batched_tokens=1 << 16, draft=draft, draft_tokens=m)
    datacentre = case.device.architecture.startswith("Blackwell") and case.device.id[:2] in ("b1", "b2", "b3", "gb")
    return case.engine.captured_sizes(plain, device_memory=case.device.memory_bytes, datacentre_blackwell=datacentre)


def _captured(case: Case, axes: BranchAxes, codes: Sequence[npt.NDArray[np.intp]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Row of the capture table of each branch (-1 without graphs) and the table, padded with each set's largest size."""
    pairs = [[captured_rows(case, spec, graphs) for graphs in axes.graphs] for spec in axes.speculation]
    sets = list(dict.fromkeys(sizes for row in pairs for sizes in row if sizes))
    if not sets:
        return np.full(len(codes[0]), -1, dtype=np.int64), np.zeros((0, 0), dtype=np.int64)
    width = max(len(sizes) for sizes in sets)
    table = np.array([list(sizes) + [sizes[-1]] * (width - len(sizes)) for sizes in sets], dtype=np.int64)
    known = np.array([[sets.index(sizes) if sizes else -1 for sizes in row] for row in pairs], dtype=np.int64)
    return known[codes[4], codes[6]], table


_TABLES: tuple[tuple[tuple[int, ...], Callable[..., Row]], ...] = (
    ((0, 1), _model),
    ((0, 2, 3), _traffic),
    ((3,), _prompt),
    ((0, 4), _speculation),
    ((0, 4, 6), _engine),
    ((5,), lambda _case, buffers: {"buffers": int(buffers)}),
    ((7,), lambda _case, cap: {"chunk_cap": UNLIMITED if cap is None else int(cap)}),
)
