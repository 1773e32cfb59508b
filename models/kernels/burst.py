"""A burst of equal requests in closed form: waves of resident requests, each a prefill phase and a decode phase.

Notation (integers; arrays broadcast: branches, resident and admitted, token budget, offloaded layers)
    N, a, b    requests that arrive, are admitted, are resident at once
    W, r       waves ceil(a / b) and the requests of the last one, a - (W - 1) b
    c, o       token budget of a step, layers offloaded
    P(x), D(x) microseconds of prefill and decode of a wave of x requests, rounded up once here and nowhere else
    R          rounds of a decode phase; n steps of a prefill phase

Offload (section 8.4.3): with C the time of a phase of n steps, its copies need n o s / B; with two buffers the phase takes
max(C, n o s / B), with one max(C, n o s / B + C o / L).
Times are whole microseconds and memory whole KiB, so that every solver compares the very same integers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from models.columns import Columns
from models.describe.calibration import Calibration
from models.step_time import prefill_seconds, prefill_steps, round_seconds

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
NEVER = np.int64(1 << 50)
"""Microseconds of an answer that never comes (a request that was not admitted)."""


def microseconds(seconds: Floats) -> Ints:
    """Whole microseconds, rounded up (a billionth of slack absorbs the last bits of a float)."""
    return np.asarray(np.ceil(seconds * 1e6 - 1e-3)).astype(np.int64)


def with_copies(compute: Ints, steps: Ints, k: Columns, o: Ints) -> Ints:
    """A phase with ``o`` layers offloaded, copies overlapped as far as the buffers allow."""
    copies = steps * (o * np.where(o > 0, k.copy_us_per_layer, 0))
    serial = np.where(k.buffers == 1, -(-(compute * o) // k.model_layers), 0)
    return np.asarray(np.maximum(compute, copies + serial))


@dataclass(frozen=True)
class Phases:
    """Compute time of a wave's phases before any copies, and their steps."""

    prefill_us: Ints
    prefill_steps: Ints
    decode_us: Ints
    round_us: Ints


def phases(calibration: Calibration, k: Columns, x: Ints, c: Ints) -> Phases:
    """Phases of a wave of ``x`` requests with everything resident."""
    one_round = round_seconds(calibration, k, x)
    return Phases(
        prefill_us=microseconds(prefill_seconds(calibration, k, x, c)),
        prefill_steps=prefill_steps(k, x, c),
        decode_us=microseconds(k.rounds * one_round + k.preparation_s),
        round_us=np.where(k.rounds > 0, microseconds(one_round), 0),  # a single output token leaves no gap
    )


def prefix_phase(calibration: Calibration, k: Columns, c: Ints) -> tuple[Ints, Ints]:
    """Microseconds and steps of computing a shared prefix that was not cached, once before the first wave."""
    if not bool(np.any(k.prefix_tokens > 0)):
        return np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    some = np.maximum(k.prefix_tokens, 1)
    alone = _as_request(k, some)
    one = np.ones(1, dtype=np.int64)
    time, steps = microseconds(prefill_seconds(calibration, alone, one, c)), prefill_steps(alone, one, c)
    return np.where(k.prefix_tokens > 0, time, 0), np.where(k.prefix_tokens > 0, steps, 0)


def _as_request(k: Columns, tokens: Ints) -> Columns:
    zero = np.zeros_like(k.kv_cached_read)
    return replace(
        k, new_tokens=tokens, request_new_tokens=tokens, prompt_tokens=tokens, pairs=np.maximum(k.prefix_pairs, 1.0),
        prefill_flops=np.maximum(k.prefix_flops, 1.0), kv_cached_read=zero,
    )  # fmt: skip


@dataclass(frozen=True)
class Waves:
    """How ``a`` admitted requests run with ``b`` resident: full waves and the last one."""

    resident: Ints
    admitted: Ints
    full: Ints  # waves before the last
    last: Ints  # requests of the last

    @classmethod
    def of(cls, admitted: Ints, resident: Ints) -> Waves:
        """Split ``admitted`` (at least 1) into waves of ``resident``."""
        b = np.minimum(resident, admitted)
        full = -(-admitted // b) - 1
        return cls(b, admitted, full, admitted - full * b)


@dataclass(frozen=True)
class WaveTimes:
    """Microseconds of the phases of full waves and of the last wave, copies included."""

    prefix: Ints
    prefill_full: Ints
    decode_full: Ints
    prefill_last: Ints
    decode_last: Ints
    round_full: Ints
    round_last: Ints

    @property
    def wave(self) -> Ints:
        """One full wave."""
        return self.prefill_full + self.decode_full

    def end(self, full: Ints) -> Ints:
        """End of everything with ``full`` full waves and the last."""
        return self.prefix + full * self.wave + self.prefill_last + self.decode_last


def wave_times(calibration: Calibration, k: Columns, w: Waves, c: Ints, o: Ints) -> WaveTimes:
    """Times of the waves; computed on the axes that each phase depends on and broadcast only here."""
    full, last = phases(calibration, k, w.resident, c), phases(calibration, k, w.last, c)
    prefix, prefix_steps = prefix_phase(calibration, k, c)
    rounds = k.rounds
    return WaveTimes(
        prefix=with_copies(prefix, prefix_steps, k, o),
        prefill_full=with_copies(full.prefill_us, full.prefill_steps, k, o),
        decode_full=with_copies(full.decode_us, rounds, k, o),
        prefill_last=with_copies(last.prefill_us, last.prefill_steps, k, o),
        decode_last=with_copies(last.decode_us, rounds, k, o),
        round_full=with_copies(full.round_us, np.minimum(rounds, 1), k, o),
        round_last=with_copies(last.round_us, np.minimum(rounds, 1), k, o),
    )


@dataclass(frozen=True)
class Footprint:
    """KiB of one device by what holds them; ``pool`` is what ``kv_budget`` must hold."""

    weights: Ints
    kv: Ints
    draft: Ints
    prefetch: Ints
    activation: Ints
    graphs: Ints
    pool: Ints
    total: Ints


def footprint(k: Columns, b: Ints, c: Ints, o: Ints) -> Footprint:
    """Memory with ``b`` requests resident (sections 8.1.2, 8.4.3)."""
    kv = k.kv_shared_kib + b * k.kv_private_kib
    draft = k.draft_kib + b * k.draft_kib_per_request
    buffers = np.where(o > 0, k.buffers, 0) * k.layer_kib
    weights = k.weights_kib - o * k.layer_kib
    rows = b * k.samples * k.rows_per_sequence
    activation = np.ceil(np.maximum(c * k.activation_kib_per_token, rows * k.logits_kib_per_row)).astype(np.int64)
    pool = kv + draft + buffers - o * k.layer_kib - k.pool_credit_kib
    return Footprint(weights, kv, draft, buffers, activation, k.graph_kib, pool, weights + kv + draft + buffers + activation + k.graph_kib)
