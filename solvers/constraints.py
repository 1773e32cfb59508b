"""Named constraints with their slack: one inequality each, in the integers that every solver compares.

served         a >= requests that some deadline counts
context        prompt + output <= longest sequence
sequences      b >= samples of one request
token_budget   c >= b samples (draft tokens + 1): every running row fits a step
device_memory  weights + KV + draft + prefetch + activations + graphs <= memory of the instance
kv_budget      KV + draft + prefetch - freed weights <= pool
e2e, ttft, itl, tpot   metric of the deadline's rank <= deadline
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.case import Case
from models.columns import Columns
from models.service import Limits, Outcome

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Point:
    """The broadcast integer axes of an evaluation beside its outcome."""

    k: Columns
    b: Ints
    a: Ints
    c: Ints
    o: Ints
    outcome: Outcome


@dataclass(frozen=True)
class Constraint:
    """value <= limit (or >= for ``at_least``); ``unit`` says of what; ``relaxable`` is the scenario path that moves the limit."""

    name: str
    unit: str
    limit: int
    value: Callable[[Point], Ints]
    at_least: bool = False
    relaxable: str | None = None

    def holds(self, at: Point) -> Bools:
        """Whether the inequality holds, elementwise."""
        value = self.value(at)
        return np.asarray(value >= self.limit if self.at_least else value <= self.limit)


def constraints(case: Case) -> tuple[Constraint, ...]:
    """All constraints of a case that can bind, structural ones first."""
    limits = Limits.of(case.request.slo, case.requests)
    longest = case.scenario.engine.max_model_len or case.architecture.context
    length = case.request.prompt_tokens + case.request.output_tokens
    found = [
        Constraint("served", "requests", limits.served, lambda p: np.minimum(p.a, case.requests), at_least=True),
        Constraint("context", "tokens", longest, lambda _p: np.full(1, length, dtype=np.int64), relaxable="engine.max_model_len"),
        Constraint("sequences", "sequences", case.request.samples, lambda p: p.b, at_least=True),
        Constraint("token_budget", "rows", 0, _rows_over_budget),
        Constraint("device_memory", "KiB", case.memory_limit // 1024, lambda p: p.outcome.memory.total, relaxable="hardware.memory"),
    ]
    if case.scenario.hardware.kv_budget is not None:
        pool = case.scenario.hardware.kv_budget // 1024
        found.append(Constraint("kv_budget", "KiB", pool, lambda p: p.outcome.memory.pool, relaxable="hardware.kv_budget"))
    metrics: dict[str, Callable[[Point], Ints]] = {
        "e2e": lambda p: p.outcome.e2e_us, "ttft": lambda p: p.outcome.ttft_us,
        "itl": lambda p: p.outcome.itl_us, "tpot": lambda p: p.outcome.tpot_us,
    }  # fmt: skip
    for name in case.request.slo.deadlines():
        path = f"workload.{case.class_name}.slo.{name}"
        found.append(Constraint(name, "us", getattr(limits, f"{name}_us"), metrics[name], relaxable=path))
    return tuple(found)


def _rows_over_budget(p: Point) -> Ints:
    """Rows of a full decode round beyond the token budget."""
    rows = p.outcome.waves.resident * p.k.samples * p.k.rows_per_sequence
    return np.asarray(rows - p.c)


def feasible(found: tuple[Constraint, ...], at: Point) -> Bools:
    """Elementwise: every constraint holds."""
    mask: Bools = np.ones(1, dtype=np.bool_)
    for constraint in found:
        mask = mask & constraint.holds(at)
    return mask
