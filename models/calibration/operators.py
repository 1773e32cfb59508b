"""A step model from per-operator profiles: tables of one layer and rank become the seconds of whole engine steps.

Notation (one rank; seconds, tokens)
    L layers, of which L_e hold routed experts; n rows of a step; s sequences; tp ranks; E experts, k chosen by each row
    D(n)   operators by rows: once a step (embedding, last norm) or L times; feed-forward operators (L - L_e) times beside experts
    X(n)   routed experts: L_e x time at n rows and a(n) = E (1 - (1 - k/E)^n) activated ones (those of the rank under expert parallelism)
    H      output head and sampler: a constant a step and one a sequence
    A      attention: L x the measured grid of (chunk, cached, decoders, context)
    C(n)   2 L all-reduces of n rows and a gather of the logits over a link of beta bytes/s and latency alpha:
           ring, 2 (tp - 1) alpha + 2 (tp - 1)/tp 2 bytes hidden / beta each (Thakur, Rabenseifner and Gropp 2005, sections 4.3 and 4.5)
A step takes D + X + H + A + C, and its rows never less than max(F / P, D / B) of the device where that is known (profiles are short
and run at clocks that a served load does not hold). What the device does between operators, and the host, is left to a constant a step
that runs tell.
Scales (1 = as profiled) say how a served step differs: reads (what one row costs, and decoding attention), compute (what more rows add,
and prefill attention), link (C).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from models.calibration.template import step_template
from models.describe.architecture import Architecture
from models.describe.hardware import Device
from models.errors import CalibrationError, NotCoveredError
from models.kernels.step import LINEAR, StepModel, floor_seconds
from models.lower import main_peak
from models.readers.operator_profile import OperatorProfile
from models.simulation_types import AttentionGrid, EngineParameters, Floats

ONCE = frozenset({"embedding", "embed_tokens", "final_layernorm", "final_norm", "norm"})
TWICE = frozenset({"layernorm"})  # one name for the norms before attention and before the feed-forward part
FEED_FORWARD = frozenset({"gate_up_proj", "gate_proj", "up_proj", "down_proj", "act_fn", "mlp"})
NO_FLOOR = 1e30


@dataclass(frozen=True)
class Link:
    """What ranks exchange data over: bytes/s of one direction, seconds of one message."""

    bytes_per_s: float
    latency_s: float

    def __post_init__(self) -> None:
        if not (self.bytes_per_s > 0 and self.latency_s >= 0):
            raise CalibrationError("a link has a bandwidth above 0 and a latency of 0 or more", value=(self.bytes_per_s, self.latency_s))


@dataclass(frozen=True)
class Scales:
    """How a served step differs from the profile; ``step_s`` seconds more a step."""

    reads: float = 1.0
    compute: float = 1.0
    step_s: float = 0.0
    link: float = 1.0


AS_PROFILED = Scales()


@dataclass(frozen=True)
class OperatorSteps:
    """Costs of a step, all layers, in seconds: ``rows[n]`` = D + X, ``attention``, H, and C as (a step, a row, a sequence)."""

    rows: Floats
    attention: AttentionGrid
    step_s: float
    sequence_s: float
    links: tuple[float, float, float]
    floor: Floats  # seconds of n rows at the device's peaks, without attention; zeros where the device is not known

    def for_contexts(self, contexts: Floats, together: int, skew: float) -> OperatorSteps:
        """The same for decoders whose contexts are ``contexts`` (tokens, of all requests), ``together`` at a time.

        The kernel ends with its longest sequence: attention goes ``skew`` of the way from that of equal contexts to that of all at the
        longest, which among k of them is about their k / (k + 1) quantile.
        """
        longest = float(np.quantile(contexts, together / (together + 1.0)))
        factor = 1.0 + skew * max(longest / float(contexts.mean()) - 1.0, 0.0)
        chunk, cached, decoders, context = self.attention.axes
        return replace(self, attention=replace(self.attention, axes=(chunk, cached, decoders, context / factor)))

    def seconds(self, steps: Floats, scales: Scales = AS_PROFILED) -> Floats:
        """Seconds of ``steps`` (M, 4): chunk, cached, decoders, context of one chunk at most beside equal decoders.

        Attention beyond the grid as in ``models.kernels.scheduler_attention``: linear, no less than at the grid's nearest point.
        """
        chunk, _, decoders, _ = steps.T
        grid, table = _scaled(self.attention, scales), self._table(scales)
        at = np.where(chunk > 0, np.maximum(chunk, grid.axes[0][1]), 0.0)
        point = np.column_stack([at, steps[:, 1:]])
        linear = RegularGridInterpolator(grid.axes, grid.seconds, bounds_error=False, fill_value=None)
        attention = np.maximum(linear(point), linear(np.minimum(point, [axis[-1] for axis in grid.axes])))
        rows = np.interp(chunk + decoders, np.arange(len(table)), table)
        found: Floats = attention + rows + self._model(scales).per_sequence_s * (decoders + (chunk > 0))
        return found

    def lowered(self, engine: EngineParameters, scales: Scales = AS_PROFILED) -> tuple[EngineParameters, StepModel]:
        """``engine`` with these costs, and the step model beside them, for ``models.simulate.simulate``."""
        return replace(engine, seconds_by_rows=tuple(self._table(scales).tolist()), attention=_scaled(self.attention, scales)), self._model(
            scales
        )

    def _table(self, scales: Scales) -> Floats:
        one = self.rows[min(1, len(self.rows) - 1)]
        count = np.arange(len(self.rows))
        table = scales.reads * one + scales.compute * (self.rows - one) + self.step_s + scales.step_s
        found: Floats = np.maximum(table, self.floor) + scales.link * (self.links[0] + self.links[1] * count)
        return found

    def _model(self, scales: Scales) -> StepModel:
        per_sequence = self.sequence_s + scales.link * self.links[2]
        return StepModel(LINEAR, NO_FLOOR, NO_FLOOR, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, per_sequence_s=per_sequence)


def operator_steps(
    profile: OperatorProfile, architecture: Architecture, *, budget: int, device: Device | None = None, link: Link | None = None,
    expert_parallel: bool = False,
) -> OperatorSteps:  # fmt: skip
    """Steps of up to ``budget`` rows of ``architecture`` on the profile's device; ``link`` is needed beyond one rank."""
    tp = profile.degree
    if tp > 1 and link is None:
        raise NotCoveredError(
            "a profile holds one rank's operators and no all-reduce", path="tensor_parallel", value=tp, way_out="say what the link does"
        )
    step, sequence = _heads(profile)
    return OperatorSteps(
        rows=_dense(profile, architecture, budget) + _experts(profile, architecture, budget, tp if expert_parallel else 1),
        attention=attention_grid(profile.attention, architecture.layer_count), step_s=step, sequence_s=sequence,
        links=collectives(architecture, tp, link) if link else (0.0, 0.0, 0.0), floor=_floor(architecture, device, tp, budget),
    )  # fmt: skip


def _floor(architecture: Architecture, device: Device | None, ranks: int, budget: int) -> Floats:
    """max(F / P, D / B) of 0..budget rows without attention, head and cached tokens."""
    if device is None:
        return np.zeros(budget + 1)
    template = step_template(architecture, device, precision=main_peak(device, architecture), tensor_parallel=ranks)
    rows = np.arange(budget + 1.0)
    found = np.asarray(floor_seconds(template, rows, 0.0, 0.0, 0.0), np.float64)
    found[0] = 0.0
    return found


def collectives(architecture: Architecture, ranks: int, link: Link) -> tuple[float, float, float]:
    """(a step, a row, a sequence) of all-reduces and of the gather of the logits."""
    if ranks == 1:
        return 0.0, 0.0, 0.0
    reduces, share = 2 * architecture.layer_count, (ranks - 1) / ranks
    row = reduces * 2 * share * 2 * architecture.hidden / link.bytes_per_s
    return reduces * 2 * (ranks - 1) * link.latency_s, row, share * 2 * architecture.vocabulary / link.bytes_per_s


def _expert_layers(architecture: Architecture) -> int:
    return sum(group.count for group in architecture.layers if group.ffn and group.ffn.experts)


def line(points: tuple[Floats, Floats], at: Floats) -> Floats:
    """Linear between the points; before the first as the first; beyond the last in proportion."""
    x, y = points
    found: Floats = np.interp(at, x, y)
    return np.where(at > x[-1], y[-1] * at / max(x[-1], 1.0), found)


def _dense(profile: OperatorProfile, architecture: Architecture, budget: int) -> Floats:
    counts, total = np.arange(budget + 1.0), np.zeros(budget + 1)
    layers, routed = architecture.layer_count, _expert_layers(architecture)
    for name, points in profile.dense.items():
        if name in profile.heads:
            continue
        times = 1 if name in ONCE else layers - routed if name in FEED_FORWARD else layers * (2 if name in TWICE else 1)
        total += times * line(points, counts)
    total[0] = 0.0
    return total


def _experts(profile: OperatorProfile, architecture: Architecture, budget: int, expert_ranks: int) -> Floats:
    """The routed experts; rows whose activated ones were not varied are taken as measured."""
    routed = _expert_layers(architecture)
    if not routed:
        return np.zeros(budget + 1)
    if profile.experts is None:
        raise NotCoveredError(
            "the model routes experts, and the profile has no moe.csv", path=str(profile.folder), way_out="profile the experts too"
        )
    ffn = next(group.ffn for group in architecture.layers if group.ffn and group.ffn.experts)
    counts = np.arange(budget + 1.0)
    activated = ffn.experts / expert_ranks * (1.0 - (1.0 - ffn.top_k / ffn.experts) ** counts)
    measured = np.unique(profile.experts[:, 0])
    columns = np.array([_at_activated(profile.experts[profile.experts[:, 0] == count], activated) for count in measured])
    low = np.clip(np.searchsorted(measured, counts, side="right") - 1, 0, max(len(measured) - 2, 0))
    high = np.minimum(low + 1, len(measured) - 1)
    share = np.clip((counts - measured[low]) / np.maximum(measured[high] - measured[low], 1.0), 0.0, 1.0)
    every = np.arange(budget + 1)
    table = columns[low, every] * (1.0 - share) + columns[high, every] * share
    table = np.where(counts > measured[-1], table * counts / measured[-1], table)
    table[0] = 0.0
    return routed * table


def _at_activated(points: Floats, activated: Floats) -> Floats:
    """Seconds at these numbers of activated experts; their median where no column says how many there were."""
    known = points[np.isfinite(points[:, 1])]
    if not len(known):
        return np.full(len(activated), float(np.median(points[:, 2])))
    x = np.unique(known[:, 1])
    return np.interp(activated, x, [float(np.median(known[known[:, 1] == value, 2])) for value in x])


def _heads(profile: OperatorProfile) -> tuple[float, float]:
    """Head and sampler: seconds a step and seconds a sequence."""
    counts = np.unique(np.concatenate([x for x, _ in profile.heads.values()]))
    total = sum(np.interp(counts, x, y) for x, y in profile.heads.values())
    slope = max(float(np.polyfit(counts, total, 1)[0]), 0.0) if len(counts) > 1 else 0.0
    return float(np.median(total - slope * counts)), slope


def attention_grid(points: Floats, layers: int = 1) -> AttentionGrid:
    """The grid of measured (chunk, cached, decoders, context, seconds), ``layers`` times; points may lie on no regular lattice.

    Steps of decoders alone, of a chunk alone, and what decoders add to a chunk are filled in apart, each axis after the other.
    """
    chunk, cached, decoders = points[:, 0], points[:, 1], points[:, 2]
    alone, beside = points[(decoders == 0) & (chunk > 0)], points[(decoders > 0) & (chunk > 0)]
    decode = points[chunk == 0]
    if not len(alone) or not len(decode):
        raise CalibrationError("a profile of attention needs steps of decoders alone and of a chunk alone", path="attention.csv")
    axes = (_knots(chunk), _knots(cached), _knots(decoders), _knots(points[decoders > 0, 3]))
    seconds = np.zeros([len(axis) for axis in axes])
    prefill = filled(alone[:, [0, 1, 4]], (axes[0][1:], axes[1]))
    seconds[1:] = prefill[:, :, None, None]
    seconds[0, :, 1:, :] = filled(decode[:, [2, 3, 4]], (axes[2][1:], axes[3]))[None]
    if len(beside):
        extra = beside.copy()
        extra[:, 4] -= prefill[np.searchsorted(axes[0][1:], beside[:, 0]), np.searchsorted(axes[1], beside[:, 1])]
        added = filled(extra, (axes[0][1:], axes[1], axes[2][1:], axes[3]))
        seconds[1:, :, 1:, :] += np.maximum(added, 0.0)
    else:
        seconds[1:, :, 1:, :] += seconds[0, 0, 1:, :]
    return AttentionGrid(axes, layers * seconds)


def _knots(values: Floats) -> Floats:
    """0 and every other value, two at least."""
    found: Floats = np.unique(np.append(values, 0.0))
    return found if len(found) > 1 else np.array([0.0, 1.0])


def filled(points: Floats, axes: Sequence[Floats]) -> Floats:
    """Values on the lattice of ``axes`` from scattered ``points`` (M, axes + 1): linear along the last axis first, then the one before."""
    values, which = np.unique(points[:, 0], return_inverse=True)
    if len(axes) == 1:
        return _along(axes[0], values, points[np.argsort(points[:, 0]), 1])
    order = np.argsort(which, kind="stable")
    parts = np.split(points[order, 1:], np.cumsum(np.bincount(which))[:-1])
    return _along(axes[0], values, np.array([filled(part, axes[1:]) for part in parts]))


def _along(axis: Floats, x: Floats, y: Floats) -> Floats:
    """``y`` (first axis at ``x``) at ``axis``: held before the first, by the last piece and never falling beyond the last."""
    if len(x) == 1:
        return np.repeat(y, len(axis), axis=0)
    place = np.clip(np.searchsorted(x, axis, side="right") - 1, 0, len(x) - 2)
    share = np.maximum((axis - x[place]) / (x[place + 1] - x[place]), 0.0).reshape(-1, *[1] * (y.ndim - 1))
    found: Floats = y[place] * (1.0 - share) + y[place + 1] * share
    return np.where(share > 1.0, np.maximum(found, y[-1]), found)


def _scaled(grid: AttentionGrid, scales: Scales) -> AttentionGrid:
    """Prefill by the compute scale, what decoders add by that of reads."""
    alone = np.concatenate([np.zeros_like(grid.seconds[:1, :, :1, :1]), grid.seconds[1:, :, :1, :1]])
    return replace(grid, seconds=scales.compute * alone + scales.reads * (grid.seconds - alone))
