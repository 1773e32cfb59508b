"""Measurements that a step model can be asked about: single steps, and closed loops through their fast approximation.

Notation as in ``models.kernels.step``: n new tokens, h head rows, q causal pairs, k bytes of KV read, s sequences. Seconds.

Closed loop (sections 8.2.2, 8.2.3, 8.6.1): c clients of i prompt and o output tokens, r = min(c, slots) run together. A decode step has
r rows over i + o/2 tokens; a step that also carries a prompt is longer by x; while one request makes its o tokens, r - 1 others start:
    TPOT = t + x (r - 1) / o,   TTFT = t + x + wait,   wait = (c - r) / r (t + x + (o - 1) TPOT)   (Little's law),
    output tokens a second = c o / (TTFT + (o - 1) TPOT).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.errors import CalibrationError
from models.kernels.step import StepModel, causal_pairs, of_format, priced_pairs, step_seconds

Floats = npt.NDArray[np.float64]


def _positive(path: str, **values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise CalibrationError("a measurement must be a positive, finite number", path=f"{path}.{name}", value=value)


@dataclass(frozen=True, slots=True)
class StepObservation:
    """One engine step (execution batch) as measured. ``source`` names the run that it came from."""

    new_tokens: float
    head_rows: float
    pairs: float
    kv_bytes: float
    sequences: float
    seconds: float
    source: str = ""
    short_pairs: float = 0.0  # those of ``pairs`` that the attention kernel of few new rows computes

    def __post_init__(self) -> None:
        _positive(self.source or "step", new_tokens=self.new_tokens, sequences=self.sequences, seconds=self.seconds)
        if not all(math.isfinite(v) and v >= 0 for v in (self.head_rows, self.pairs, self.kv_bytes)):
            raise CalibrationError("a step's work must be finite and not negative", path=self.source or "step", value=self.pairs)


def step_of(
    sequences: Sequence[tuple[int, int]],
    *,
    kv_bytes_per_token: float,
    seconds: float,
    head_rows: int | None = None,
    source: str = "",
    tiled_from: int = 0,
) -> StepObservation:
    """A step from its composition: (new tokens, tokens already cached) of each sequence; one head row a sequence unless told.

    ``tiled_from``: new tokens of a sequence from which attention runs its kernel for long chunks (0: it has but one).
    """
    new, cached = (np.array(column, dtype=float) for column in zip(*sequences, strict=True))
    return StepObservation(
        new_tokens=float(new.sum()), head_rows=float(len(new) if head_rows is None else head_rows),
        pairs=float(np.sum(causal_pairs(new, cached))), kv_bytes=float((new + cached).sum() * kv_bytes_per_token),
        sequences=float(len(new)), seconds=seconds, source=source,
        short_pairs=float(np.sum(causal_pairs(new, cached) * (new < tiled_from))),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServingObservation:
    """A closed loop as measured: any of TTFT, TPOT and output throughput. ``slots``: most requests that run together."""

    concurrency: float
    prompt: int
    output: int
    kv_bytes_per_token: float
    slots: float = math.inf
    ttft_s: float | None = None
    tpot_s: float | None = None
    output_tokens_per_s: float | None = None
    source: str = ""
    kv_format: str = "bf16"

    def __post_init__(self) -> None:
        path = self.source or "run"
        _positive(path, concurrency=self.concurrency, prompt=self.prompt, output=self.output, kv_bytes_per_token=self.kv_bytes_per_token)
        given = {n: v for n in ("ttft_s", "tpot_s", "output_tokens_per_s") if (v := getattr(self, n)) is not None}
        if not given:
            raise CalibrationError("a run needs at least one of ttft_s, tpot_s and output_tokens_per_s", path=path)
        _positive(path, **given)
        if not self.slots >= 1:
            raise CalibrationError("at least one request must fit", path=f"{path}.slots", value=self.slots)


@dataclass(frozen=True)
class Evidence:
    """Log of what was measured, how a step model predicts it, a name for each, and the log of what physics allows at best."""

    measured: Floats
    predict: Callable[[StepModel], Floats]
    names: tuple[str, ...]
    floor: Callable[[StepModel], Floats]
    refine: Callable[[StepModel], Evidence] | None = None  # the same near a step model, where ``predict`` itself takes long
    noise: Floats | None = None  # of each entry, in units of a measurement's; None: 1

    def __len__(self) -> int:
        return len(self.measured)

    def at(self, model: StepModel) -> Evidence:
        """Evidence whose prediction is quick, and right near ``model``."""
        return self if self.refine is None else self.refine(model)

    @property
    def weights(self) -> Floats:
        """Inverse noise of each entry in units of a measurement's."""
        return np.ones(len(self)) if self.noise is None else 1.0 / self.noise

    def choose(self, rows: npt.NDArray[np.intp]) -> Evidence:
        """The given entries, in that order; repeated ones count twice."""
        names = tuple(self.names[i] for i in rows)
        return Evidence(
            self.measured[rows], lambda m: self.predict(m)[rows], names, lambda m: self.floor(m)[rows],
            None if self.refine is None else lambda m: self.at(m).choose(rows), None if self.noise is None else self.noise[rows],
        )  # fmt: skip


def from_steps(steps: Sequence[StepObservation], kv_format: str = "bf16") -> Evidence:
    """Evidence of single steps over a cache in ``kv_format``."""
    columns = ("new_tokens", "head_rows", "pairs", "short_pairs", "kv_bytes", "sequences")
    n, h, q, short, k, s = (np.array([getattr(o, name) for o in steps], dtype=float) for name in columns)

    def predict(model: StepModel) -> Floats:
        m = of_format(model, kv_format)
        found: Floats = np.log(np.asarray(step_seconds(m, n, h, priced_pairs(m, q, short), k, s), dtype=float))
        return found

    def floor(model: StepModel) -> Floats:
        return predict(ideal(model))

    names = tuple(o.source or f"step {i}" for i, o in enumerate(steps))
    return Evidence(np.log(np.array([o.seconds for o in steps], dtype=float)), predict, names, floor)


def ideal(model: StepModel) -> StepModel:
    """Every efficiency 1, nothing for the host or the links: step_seconds becomes max(F / P, D / B)."""
    return model._replace(
        form=1, matmul_efficiency=1.0, half_rows=0.0, attention_efficiency=1.0, bandwidth_efficiency=1.0, overlap=1.0, host_s=0.0,
        host_per_sequence_s=0.0, host_overlap=1.0, collective_s=0.0, collective_per_token_s=0.0, conversion_s_per_byte=0.0,
        short_pair_cost=1.0, request_s=0.0, by_format=(),
    )  # fmt: skip


@dataclass(frozen=True)
class ClosedLoop:
    """Columns of closed loops; ``times`` answers TTFT, TPOT and output tokens a second for a step model."""

    clients: Floats
    prompt: Floats
    output: Floats
    kv: Floats
    slots: Floats

    def times(self, m: StepModel) -> tuple[Floats, Floats, Floats]:
        r = np.minimum(self.clients, self.slots)
        context = self.prompt + self.output / 2
        step = np.asarray(step_seconds(m, r, r, r * context, r * context * self.kv, r))
        n, q, k = r - 1 + self.prompt, causal_pairs(self.prompt, 0.0), self.prompt * self.kv
        both = np.asarray(step_seconds(m, n, r, (r - 1) * context + q, (r - 1) * context * self.kv + k, r))
        extra = np.maximum(both - step, 0.0)
        tpot = step + extra * (r - 1) / self.output
        first = step + extra
        ttft = first + (self.clients - r) / r * (first + (self.output - 1) * tpot)
        return ttft, tpot, self.clients * self.output / (ttft + (self.output - 1) * tpot)


def from_serving(runs: Sequence[ServingObservation]) -> Evidence:
    """Evidence of closed loops: one entry for each quantity that a run states (throughput enters as its inverse, a time)."""
    formats = sorted({run.kv_format for run in runs})
    return joined([_loops([run for run in runs if run.kv_format == name], name) for name in formats])


def _loops(runs: Sequence[ServingObservation], kv_format: str) -> Evidence:
    loop = ClosedLoop(*(np.array([getattr(o, n) for o in runs], dtype=float) for n in
                        ("concurrency", "prompt", "output", "kv_bytes_per_token", "slots")))  # fmt: skip
    fields = ("ttft_s", "tpot_s", "output_tokens_per_s")
    given = [(f, i, float(v), o.source or f"run {i}") for i, o in enumerate(runs) for f, n in enumerate(fields) if (v := getattr(o, n))]
    which, row = np.array([g[0] for g in given]), np.array([g[1] for g in given])
    sign = np.where(which == 2, -1.0, 1.0)

    def predict(model: StepModel) -> Floats:
        found: Floats = sign * np.log(np.stack(loop.times(of_format(model, kv_format))))[which, row]
        return found

    measured = sign * np.log(np.array([g[2] for g in given]))
    return Evidence(measured, predict, tuple(f"{g[3]} {fields[g[0]]}" for g in given), lambda m: predict(ideal(m)))


def joined(parts: Sequence[Evidence]) -> Evidence:
    """Several kinds of evidence about one step model."""
    return Evidence(
        np.concatenate([p.measured for p in parts]), lambda m: np.concatenate([p.predict(m) for p in parts]),
        tuple(n for p in parts for n in p.names), lambda m: np.concatenate([p.floor(m) for p in parts]),
        None if all(p.refine is None for p in parts) else lambda m: joined([p.at(m) for p in parts]),
        None if all(p.noise is None for p in parts) else np.concatenate([1.0 / p.weights for p in parts]),
    )  # fmt: skip
