"""Evidence of load tests: what a client measured of a served load, predicted by the simulator.

A load test's figures follow from the step times, but by no formula. A few runs are simulated in every turn of the least-squares loop; for a
thousand that takes too long, so each round of the fit simulates every run once at the current parameters p and moves from there along
    y(p') = y(p) (f(p') / f(p))^S + request_s                                  (TPOT and throughput without the last term)
f    closed form of the figure at the mean batch that the simulation had, no queue (sections 8.2.2, 8.2.3)
S    how many times as much as the engine's speed the figure moves, d log y / d log (time of every step): 1 where no clock sets the pace,
     else from a second simulation whose requests come 1 + d times as fast (the same, in units of the step); queues make it large
and the next round starts from p'. A figure that moves S times as much, or that few requests of unknown arrivals decide, is believed less:
its noise is S times a measurement's, together with the standard error of its mean over the requests.

Notation of ``models.kernels.step``. Seconds; throughput enters as seconds a token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from models.calibration.evidence import Evidence, Floats, ideal, joined
from models.calibration.served_together import Load, simulate_each
from models.errors import CalibrationError
from models.kernels.step import StepModel, causal_pairs, of_format, step_seconds
from models.simulate import expected_tokens
from models.simulation_summary import gap_spread
from models.simulation_types import EngineParameters, Integers, Records, RequestArrays, SimulationResult, Status

Bools = npt.NDArray[np.bool_]

METRICS = ("ttft", "tpot", "e2e", "itl")
PER_TOKEN = "seconds a token"
_FASTER = 0.05  # d
_KINDS = (*METRICS, PER_TOKEN)
_LEAST, _MOST = 0.1, 10.0  # bounds of S: at the one the clock alone decides a figure, beyond the other the queue
_FEW = 500  # requests of all runs that every turn of the loop may simulate
_ONE_RUN = 0.05  # noise of a measurement that the standard error of a mean is compared with


@dataclass(frozen=True)
class ServedRun:
    """One load test. ``figures``, seconds: "ttft mean", "tpot p50", "e2e p99", "ttft #7" (request 7), "itl p50" (all gaps), ``PER_TOKEN``.

    ``drawn``: the requests are a draw of what is known of them; else they are those that were sent.
    """

    requests: RequestArrays
    engine: EngineParameters
    figures: Mapping[str, float]
    name: str
    kv_format: str = "bf16"
    drawn: bool = True

    def __post_init__(self) -> None:
        if not self.figures or not len(self.requests):
            raise CalibrationError("a load test needs requests and a figure", path=self.name)
        for name, value in self.figures.items():
            if name != PER_TOKEN and name.split()[0] not in METRICS:
                raise CalibrationError("is not a figure of a load test", path=self.name, value=name)
            if not (math.isfinite(value) and value > 0):
                raise CalibrationError("a measurement must be a positive, finite number", path=f"{self.name}.{name}", value=value)

    @property
    def clocked(self) -> bool:
        """Whether a clock, not the engine's answers, sets the pace of the arrivals."""
        return self.requests.follows is None and bool(self.requests.arrival.max(initial=0.0) > 0)

    @property
    def together(self) -> float:
        """Most requests that can run beside each other."""
        follows = self.requests.follows
        clients = len(self.requests) if follows is None else int((follows < 0).sum())
        return float(self.engine.max_num_seqs if self.clocked else min(self.engine.max_num_seqs, clients))


def figure_of(each: Floats, values: Floats, statistic: str) -> float:
    """A statistic ("mean", "p50", "min", "max", "std") of the ``values`` that requests have, or "#7", that of request 7 among ``each``."""
    if statistic.startswith("#"):
        return float(each[int(statistic[1:])])
    if statistic.startswith("p"):
        return float(np.percentile(values, float(statistic[1:])))
    return float(getattr(np, statistic)(values))


def request_times(result: SimulationResult) -> dict[str, Floats]:
    """TTFT, e2e and TPOT of each request as the engine sees them; NaN where it did not finish or has no second token."""
    return times_of(result.records, result.requests.output)


def times_of(r: Records, output: Integers) -> dict[str, Floats]:
    """``request_times`` of records and the requests' output tokens."""
    done = np.where(r["status"] == Status.FINISHED, 0.0, np.nan)
    several = np.where(output > 1, output - 1.0, np.nan)
    return {
        "ttft": r["first"] - r["arrival"] + done, "e2e": r["last"] - r["arrival"] + done, "tpot": (r["last"] - r["first"]) / several + done,
    }  # fmt: skip


@dataclass(frozen=True)
class _Outcome:
    """A simulated run: engine-side figures, mean requests that decode together while any does, relative standard error of each figure."""

    figures: dict[str, float]
    batch: float
    error: dict[str, float]


def _outcomes(runs: Sequence[ServedRun], model: StepModel, speed: float = 1.0) -> list[_Outcome]:
    """Every run simulated, its clock ``speed`` times as fast (pauses after others shrink alike)."""
    traffic = [run.requests if speed == 1.0 else replace(run.requests, arrival=run.requests.arrival / speed) for run in runs]
    alone = _Loads.of(runs).times(model, np.ones(len(runs)))[_KINDS.index("e2e")]
    loads = [Load(requests, run.engine, one) for run, requests, one in zip(runs, traffic, alone.tolist(), strict=True)]
    return [_outcome(run, load, records, model) for run, load, records in zip(runs, loads, simulate_each(loads, model), strict=True)]


def _outcome(run: ServedRun, load: Load, r: Records, model: StepModel) -> _Outcome:
    times, done = times_of(r, run.requests.output), r[r["status"] == Status.FINISHED]
    if np.isnan(times["tpot"]).all():
        raise CalibrationError("no request of the load could be served as described", path=run.name, way_out="check lengths and slots")
    figures, error = {}, {}
    for name in run.figures:
        if name == PER_TOKEN:
            makespan = float(done["last"].max() - r["arrival"][r["arrival"] >= 0].min())
            figures[name], error[name] = makespan / float(run.requests.output[r["status"] == Status.FINISHED].sum()), 0.0
            continue
        metric, statistic = name.split()
        each = times["tpot" if metric == "itl" else metric]
        values = each[~np.isnan(each)]
        value = _gap(load, model, statistic) if metric == "itl" else figure_of(each, values, statistic)
        figures[name], error[name] = max(value, 1e-9), _standard_error(values) if run.drawn else 0.0
    return _Outcome(figures, max(float((done["last"] - done["first"]).sum()) / max(_busy(done), 1e-12), 1.0), error)


def _standard_error(values: Floats) -> float:
    """Of the mean of ``values``, relative to it; 0 where that is 0."""
    mean = float(values.mean())
    away = values - mean
    return math.sqrt(float(away @ away)) / len(values) / mean if mean > 0 else 0.0


def _gap(load: Load, model: StepModel, statistic: str) -> float:
    """A statistic of all gaps of a load, which records do not hold: simulated by itself."""
    return float(getattr(gap_spread(load.simulated(model))[0], statistic))


def _busy(done: Records) -> float:
    """Seconds in which a request was inside: the union of the intervals from arrival to end."""
    ordered = done[np.argsort(done["arrival"])]
    end = np.maximum.accumulate(ordered["last"])
    return float(np.sum(end - np.maximum(ordered["arrival"], np.concatenate([ordered["arrival"][:1], end[:-1]]))))


@dataclass(frozen=True)
class _Loads:
    """Columns of load tests, one entry for each, for the closed form without a queue."""

    prompt: Floats  # mean, with ``cached`` of them reused
    cached: Floats
    output: Floats
    read: Floats  # bytes of KV a token of context
    rows: Floats  # of a sequence in a step
    tokens: Floats  # that those rows yield
    short_rows: Bools  # whether few-row attention computes a decoder's pairs
    short_chunk: Bools  # … and a prompt's
    apart: Bools  # whether prompts run in execution batches of their own
    together: Floats  # most sequences that run beside each other

    @classmethod
    def of(cls, runs: Sequence[ServedRun]) -> _Loads:
        engines = [run.engine for run in runs]
        trees = [run.requests.prefixes for run in runs]
        cached = np.array([float(t.tokens[0]) if t is not None and len(t.tokens) else 0.0 for t in trees])
        prompt, tiled = np.array([float(run.requests.prompt.mean()) for run in runs]), np.array([float(e.tiled_from) for e in engines])
        rows = np.array([e.draft_tokens + 1.0 for e in engines])
        return cls(
            prompt, cached, np.array([float(run.requests.output.mean()) for run in runs]),
            np.array([e.kv_bytes_per_token for e in engines]), rows, np.array([expected_tokens(e) for e in engines]),
            rows < tiled, prompt - cached < tiled, np.array([e.micro_batch > 0 for e in engines]), np.array([run.together for run in runs]),
        )  # fmt: skip

    def times(self, m: StepModel, batch: Floats) -> Floats:
        """(5, runs): TTFT, TPOT, e2e, a gap, a token's share (like e2e), beside ``batch`` decoders, one prompt for each that ends."""
        rows, new = batch * self.rows, self.prompt - self.cached
        context = self.prompt + self.output / 2
        decode = rows * context * np.where(self.short_rows, m.short_pair_cost, 1.0)
        pairs = causal_pairs(new, self.cached) * np.where(self.short_chunk, m.short_pair_cost, 1.0)
        kv, cached = batch * context * self.read, self.cached * self.read
        step = np.asarray(step_seconds(m, rows, rows, decode, kv, batch))
        alone = np.asarray(step_seconds(m, new, 1.0, pairs, cached, 1.0))
        both = np.asarray(step_seconds(m, rows + new, rows, decode + pairs, kv + cached, batch))
        extra = np.where(self.apart, alone, np.maximum(both - step, 0.0))
        tpot = (step + extra * batch * self.tokens / self.output) / self.tokens
        first = step + extra
        whole = first + (self.output - 1.0) * tpot
        return np.stack([first, tpot, whole, tpot, whole])

    def least(self, m: StepModel) -> Floats:
        """(5, runs), in the order of ``times``: what no device can beat, 0 where nothing is known.

        First token: the mean prompt alone. Later ones, and gaps without a draft: a step of one sequence without context. A token's share: a
        step of as many sequences as may run beside each other, at least the arithmetic of their rows and of the prompts behind them.
        """
        new = self.prompt - self.cached
        first = np.asarray(step_seconds(m, new, 1.0, causal_pairs(new, self.cached), self.cached * self.read, 1.0))
        token = np.asarray(step_seconds(m, self.rows, self.rows, 0.0, 0.0, 1.0)) / self.tokens
        rows, yielded = self.together * self.rows, self.together * self.tokens
        step = np.asarray(step_seconds(m, rows, rows, 0.0, 0.0, self.together))
        work = np.asarray(step_seconds(m._replace(peak_bytes_per_s=math.inf), rows + yielded * new / self.output, rows, 0.0, 0.0, 1.0))
        gap = np.where(self.rows > 1, 0.0, token)
        return np.stack([first, token, first + (self.output - 1.0) * token, gap, np.maximum(step, work) / yielded])


def from_runs(runs: Sequence[ServedRun]) -> Evidence:
    """Evidence of load tests: one entry for each figure. ``predict`` simulates; ``at(model)`` is the local form of the module's head."""
    formats = sorted({run.kv_format for run in runs})
    return joined([_evidence([run for run in runs if run.kv_format == name], name) for name in formats])


def _evidence(runs: Sequence[ServedRun], kv_format: str) -> Evidence:
    """Evidence of runs over a cache in one format."""
    loads, names = _Loads.of(runs), [(i, name) for i, run in enumerate(runs) for name in run.figures]
    which = np.array([i for i, _ in names])
    kind = np.array([_KINDS.index(name if name == PER_TOKEN else name.split()[0]) for _, name in names])
    later = (kind == 0) | (kind == 2)  # figures that hold request_s
    measured = np.log(np.array([runs[i].figures[name] for i, name in names]))
    labels = tuple(f"{runs[i].name} {name}" for i, name in names)

    def simulated(model: StepModel) -> Floats:
        m = of_format(model, kv_format)
        found = _outcomes(runs, m)
        return np.asarray(np.log(np.array([found[i].figures[name] for i, name in names]) + later * m.request_s))

    def floor(model: StepModel) -> Floats:
        bounded = np.array([n in (PER_TOKEN, "itl p50") or n.startswith("tpot") or n.endswith(" mean") for _, n in names])
        with np.errstate(divide="ignore"):
            return np.asarray(np.where(bounded, np.log(loads.least(ideal(model)))[kind, which], -np.inf))

    few = sum(len(run.requests) for run in runs) <= _FEW

    def local(model: StepModel) -> Evidence:
        here = of_format(model, kv_format)
        found = _outcomes(runs, here)
        at = np.array([found[i].figures[name] for i, name in names])
        moved = _strengths(runs, here, found)
        strength, error = (np.array([table[i][name] for i, name in names]) for table in (moved, [one.error for one in found]))
        batch = np.array([one.batch for one in found])
        start = loads.times(here, batch)

        def moved_on(other: StepModel) -> Floats:
            m = of_format(other, kv_format)
            ratio = (loads.times(m, batch) / start)[kind, which]
            return np.asarray(np.log(at * ratio**strength + later * m.request_s))

        noise = np.hypot(np.maximum(strength, 1.0), error / _ONE_RUN)
        return Evidence(measured, simulated if few else moved_on, labels, floor, noise=noise)

    return Evidence(measured, simulated, labels, floor, refine=local)


def _strengths(runs: Sequence[ServedRun], model: StepModel, found: Sequence[_Outcome]) -> list[dict[str, float]]:
    """S of each figure of each run."""
    clocked = [i for i, run in enumerate(runs) if run.clocked]
    strength = [dict.fromkeys(run.figures, 1.0) for run in runs]
    for i, faster in zip(clocked, _outcomes([runs[i] for i in clocked], model, 1 + _FASTER), strict=True):
        moved = {n: math.log((1 + _FASTER) * value / found[i].figures[n]) / math.log1p(_FASTER) for n, value in faster.figures.items()}
        strength[i] = {n: min(max(value, _LEAST), _MOST) for n, value in moved.items()}
    return strength
