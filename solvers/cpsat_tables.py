"""Integer tables of one class of cells for CP-SAT: the very integers that the grid compares, in microseconds and KiB.

A *class* fixes everything that multiplies variables with each other: devices, formats, prefetch buffers, admitted requests and how
many of them must be on time. Inside it a branch, b, c and o remain. Roles name the waves of a schedule: the full waves, the last one,
and the last wave of each retry.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from models.kernels.burst import Waves, phases, prefix_phase
from models.service import Limits
from solvers.full_resolution import Cells
from solvers.grid import Grid

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClassKey:
    """What is constant inside a class."""

    devices: int
    weight_format: int
    kv_format: int
    buffers: int
    admitted: int
    on_time: int


@dataclass(frozen=True)
class CellRow:
    """Integers of one (branch, b): roles are ordered full, last, retries."""

    branch: int
    b: int
    waves: tuple[int, ...]  # full waves of the first attempt and of each retry
    resident: int
    decode: tuple[int, ...]  # by role
    rounds: tuple[int, ...]  # one round by role
    pool_kib: int  # KV and draft
    graph_kib: int
    logits_kib: int
    rows: int
    group: int  # of its prefill


@dataclass(frozen=True)
class ChunkRow:
    """Integers of one token budget for a prefill group: roles, then the uncached prefix."""

    c: int
    activation_kib: int
    prefill: tuple[int, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Tables:
    """Everything that a class's model needs."""

    key: ClassKey
    cells: tuple[CellRow, ...]
    chunks: tuple[tuple[ChunkRow, ...], ...]  # by prefill group
    offloads: tuple[int, ...]
    rounds_per_phase: dict[int, int]  # branch -> rounds
    layers: int
    copy_us: int
    layer_kib: int
    weights_kib: int
    credit_kib: int
    retried: tuple[int, ...]
    limits: Limits


_PREFILL_COLUMNS = (
    "new_tokens", "request_new_tokens", "pairs", "prefill_flops", "kv_cached_read", "kv_chunk_read", "prefix_tokens", "prefix_flops",
    "prefix_pairs", "prefill_factor", "chunk_cap", "host_s", "activation_kib_per_token",
)  # fmt: skip
"""Columns on which a prefill's tables depend inside a class."""


def split_classes(grid: Grid, cells: Cells) -> dict[ClassKey, npt.NDArray[np.intp]]:
    """Indices of ``cells`` by class; with a percentile below 100 one class for each count of whole waves that may be on time."""
    codes = np.unravel_index(cells.branch, grid.axes.shape)
    k = grid.columns.take(cells.branch)
    admitted = np.minimum(cells.a, grid.case.requests)
    limits = Limits.of(grid.case.request.slo, grid.case.requests)
    timed = bool(grid.case.request.slo.deadlines())
    least = min(limits.e2e_rank, limits.ttft_rank)  # a request is on time when it meets every deadline, and each counts its own share
    found: dict[ClassKey, list[int]] = {}
    for i in range(len(cells.b)):
        a = int(admitted[i])
        x = min(max(int(cells.b[i]) // int(k.samples[i]), 1), a)
        for on_time in (*range(-(-least // x) * x, a, x), a) if timed else (a,):
            key = ClassKey(int(k.devices[i]), int(codes[1][i]), int(codes[2][i]), int(k.buffers[i]), a, on_time)
            found.setdefault(key, []).append(i)
    return {key: np.array(rows) for key, rows in found.items()}


def retry_counts(grid: Grid, branch: int, admitted: int) -> tuple[int, ...]:
    """Requests of each retry, as ``models.service`` counts them."""
    quality = grid.case.request.quality
    wrong = 1.0 - float(grid.columns.probability_correct[branch])
    counts = [int(np.ceil(admitted * wrong**i - 1e-9)) for i in range(1, (quality.retries if quality else 0) + 1)]
    return tuple(n for n in counts if n > 0)


def build(grid: Grid, cells: Cells, key: ClassKey) -> Tables:
    """Tables of one class."""
    k = grid.columns
    first = int(cells.branch[0])
    retried = retry_counts(grid, first, key.admitted)
    rows: list[CellRow] = []
    groups: dict[tuple[object, ...], int] = {}
    chunks: list[tuple[ChunkRow, ...]] = []
    for i in range(len(cells.b)):
        branch, b = int(cells.branch[i]), int(cells.b[i])
        row, sizes = _cell(grid, branch, b, key, retried)
        same = (tuple(sizes.tolist()), row.rows, *(getattr(k, name)[branch].item() for name in _PREFILL_COLUMNS))
        if same not in groups:
            groups[same] = len(chunks)
            chunks.append(_chunks(grid, branch, sizes, row.rows))
        if chunks[groups[same]]:
            rows.append(replace(row, group=groups[same]))
    some = key.buffers > 0
    offloads = tuple(int(o) for o in grid.o if (o > 0) == some)
    return Tables(
        key, tuple(rows), tuple(chunks), offloads, {r.branch: int(k.rounds[r.branch]) for r in rows}, int(k.model_layers[first]),
        int(k.copy_us_per_layer[first]) if some else 0, int(k.layer_kib[first]), int(k.weights_kib[first]), int(k.pool_credit_kib[first]),
        retried, Limits.of(grid.case.request.slo, grid.case.requests),
    )  # fmt: skip


def _cell(grid: Grid, branch: int, b: int, key: ClassKey, retried: tuple[int, ...]) -> tuple[CellRow, Ints]:
    k = grid.columns.take(np.array([branch]))
    one = np.ones(1, dtype=np.int64)
    resident = np.minimum(np.maximum(one * b // k.samples, 1), key.admitted)
    plans = [Waves.of(one * n, resident) for n in (key.admitted, *retried)]
    sizes = np.concatenate([plans[0].resident, *(p.last for p in plans)])
    wide = grid.columns.take(np.full(len(sizes), branch))
    timed = phases(grid.case.calibration, wide, sizes, np.full(len(sizes), grid.c[-1]))
    x = int(resident[0])
    rows = x * int(k.samples[0]) * int(k.rows_per_sequence[0])
    pool = int(k.kv_shared_kib[0]) + x * int(k.kv_private_kib[0]) + int(k.draft_kib[0]) + x * int(k.draft_kib_per_request[0])
    row = CellRow(
        branch, b, tuple(int(p.full[0]) for p in plans), x, tuple(int(v) for v in timed.decode_us), tuple(int(v) for v in timed.round_us),
        pool, int(k.graph_kib[0]), int(np.ceil(rows * k.logits_kib_per_row[0])), rows, -1,
    )  # fmt: skip
    return row, sizes


def _chunks(grid: Grid, branch: int, sizes: Ints, rows: int) -> tuple[ChunkRow, ...]:
    """Budgets of at least ``rows`` that no smaller one matches in every prefill time and step count (smaller ones need less memory)."""
    c = grid.c[grid.c >= rows]
    if not len(c):
        return ()
    k = grid.columns.take(np.array([[branch]]))
    timed = phases(grid.case.calibration, k, sizes.reshape(-1, 1), c.reshape(1, -1))
    prefix, prefix_steps = prefix_phase(grid.case.calibration, k, c.reshape(1, -1))
    shape = (len(sizes), len(c))
    time = np.vstack([np.broadcast_to(timed.prefill_us, shape), np.broadcast_to(prefix, (1, len(c)))])
    steps = np.vstack([np.broadcast_to(timed.prefill_steps, shape), np.broadcast_to(prefix_steps, (1, len(c)))])
    activation = np.ceil(c * k.activation_kib_per_token[0, 0]).astype(np.int64)
    kept = _undominated(np.vstack([time, steps]))
    return tuple(
        ChunkRow(int(c[i]), int(activation[i]), tuple(int(v) for v in time[:, i]), tuple(int(v) for v in steps[:, i])) for i in kept
    )


def _undominated(values: Ints) -> list[int]:
    """Columns that no earlier column equals or beats in every row."""
    changed = np.ones(values.shape[1], dtype=np.bool_)
    changed[1:] = np.any(values[:, 1:] != values[:, :-1], axis=0)
    kept: list[int] = []
    for i in np.flatnonzero(changed).tolist():
        if not kept or not bool(np.any(np.all(values[:, kept] <= values[:, i : i + 1], axis=0))):
            kept.append(i)
    return kept
