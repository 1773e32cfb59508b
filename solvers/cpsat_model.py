"""The CP-SAT model of one class of cells. The only module, with ``cpsat.py``, that imports OR-Tools.

Literals (exactly one of each family)
    y_j  a (branch, b) cell         z_gi  a token budget of prefill group g         w_o  offloaded layers
Phase variables, microseconds, one for each role r and for the uncached prefix
    P_r >= sum C_gi z_gi,   D_r >= sum D_j y_j
    with o layers offloaded (half-reified on w_o), s their copy time a step, L layers, [1] one buffer:
    L (P_r - o s n_r) >= [1] o C_r,   L (D_r - o s R) >= [1] o D_j
Schedule, half-reified on the literals e_f of equal full-wave counts
    T >= P_prefix + f (P_full + D_full) + P_last + D_last + retries
Memory (KiB), A activations
    A >= sum act_gi z_gi,  A >= sum logits_j y_j
    sum pool_j y_j + (buffers - o) layer - credit <= kv_budget
    weights + sum (pool_j + graph_j) y_j + (buffers - o) layer + A <= device
Domains are cut to the horizon, which is never below the optimum sought.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from solvers.cpsat_tables import CellRow, ChunkRow, Tables
from solvers.ortools_door import cp_model

Relaxed = frozenset[str]


@dataclass
class ClassModel:
    """A built model with the handles that reading a solution needs."""

    model: Any
    tables: Tables
    y: list[Any]
    z: list[list[Any]]
    w: list[Any]
    makespan: Any
    e2e: Any
    assumptions: dict[str, Any]


class _Builder:
    """Adds one family of constraints after the other; ``guard`` makes a named limit retractable."""

    def __init__(self, tables: Tables, limits: dict[str, int], horizon: int, *, assume: bool) -> None:
        self.t, self.limits, self.horizon = tables, limits, horizon
        self.model = cp_model.CpModel()
        self.y = [self.model.new_bool_var("") for _ in tables.cells]
        self.z = [[self.model.new_bool_var("") for _ in group] for group in tables.chunks]
        self.w = [self.model.new_bool_var("") for _ in tables.offloads]
        self.guards = {name: self.model.new_bool_var(name) for name in limits} if assume else {}
        self.roles = len(tables.cells[0].decode)

    def time(self, name: str) -> Any:
        return self.model.new_int_var(0, self.horizon, name)

    def limit(self, name: str, expression: Any, *conditions: Any) -> None:
        """expression <= limits[name], under ``conditions`` and the limit's own assumption."""
        if name in self.limits:
            guard = [self.guards[name]] if name in self.guards else []
            constraint = self.model.add(expression <= self.limits[name])
            if conditions or guard:
                constraint.only_enforce_if([*conditions, *guard])

    def cells(self, value: Callable[[CellRow], int]) -> Any:
        return sum(value(row) * literal for row, literal in zip(self.t.cells, self.y, strict=True))

    def budgets(self, value: Callable[[ChunkRow], int]) -> Any:
        pairs = ((row, lit) for group, lits in zip(self.t.chunks, self.z, strict=True) for row, lit in zip(group, lits, strict=True))
        return sum(value(row) * lit for row, lit in pairs)

    def choose(self) -> None:
        """Exactly one cell, one budget of its prefill group, one offload count."""
        self.model.add_exactly_one(self.y)
        self.model.add_exactly_one(self.w)
        for g, literals in enumerate(self.z):
            mine = [lit for row, lit in zip(self.t.cells, self.y, strict=True) if row.group == g]
            self.model.add(sum(literals) == sum(mine))

    def phase(self, name: str, compute: Any, steps: Any) -> Any:
        """A phase variable: its compute, and its copies for each offload count."""
        span = self.time(name)
        self.model.add(span >= compute)
        layers = self.t.layers
        for o, chosen in zip(self.t.offloads, self.w, strict=True):
            if o > 0:
                serial = o * compute if self.t.key.buffers == 1 else 0
                self.model.add(layers * span - layers * o * self.t.copy_us * steps >= serial).only_enforce_if(chosen)
        return span

    def memory(self) -> None:
        """Both memory limits; constants stand on the right-hand side."""
        t = self.t
        activation = self.model.new_int_var(0, 1 << 36, "activation")
        self.model.add(activation >= self.budgets(lambda row: row.activation_kib))
        self.model.add(activation >= self.cells(lambda row: row.logits_kib))
        prefetch = sum(
            (t.key.buffers if o else 0) * t.layer_kib * lit - o * t.layer_kib * lit for o, lit in zip(t.offloads, self.w, strict=True)
        )
        self.limit("kv_budget", self.cells(lambda row: row.pool_kib) + prefetch - t.credit_kib)
        whole = self.cells(lambda row: row.pool_kib + row.graph_kib) + prefetch + activation + t.weights_kib
        self.limit("device_memory", whole)

    def by(self, value: Callable[[CellRow], Any]) -> list[tuple[Any, Any]]:
        """(value, literal that it holds) for each distinct value over the cells."""
        found: dict[Any, list[Any]] = {}
        for row, literal in zip(self.t.cells, self.y, strict=True):
            found.setdefault(value(row), []).append(literal)
        pairs = []
        for key, literals in found.items():
            if len(found) == 1:
                pairs.append((key, self.model.new_constant(1)))
                continue
            holds = literals[0] if len(literals) == 1 else self.model.new_bool_var("")
            if len(literals) > 1:
                self.model.add(sum(literals) == holds)
            pairs.append((key, holds))
        return pairs


def _of(field: str, role: int) -> Callable[[Any], int]:
    """One role's entry of a tuple-valued field."""
    return lambda row: int(getattr(row, field)[role])


def _wave_of(rank: int) -> Callable[[CellRow], tuple[int, int]]:
    """The wave that request number ``rank`` runs in, beside the number of full waves."""
    return lambda row: (-(-rank // row.resident), row.waves[0])


def build_model(tables: Tables, limits: dict[str, int], horizon: int, *, assume: bool = False) -> ClassModel:
    """The model of a class under ``limits`` (KiB and microseconds by constraint name); ``assume`` guards each by an assumption."""
    b = _Builder(tables, limits, horizon, assume=assume)
    b.choose()
    b.memory()
    prefill = [b.phase(f"P{r}", b.budgets(_of("prefill", r)), b.budgets(_of("steps", r))) for r in range(b.roles)]
    prefix = b.phase("prefix", b.budgets(lambda row: row.prefill[-1]), b.budgets(lambda row: row.steps[-1]))
    rounds = b.cells(lambda row: tables.rounds_per_phase[row.branch])
    decode = [b.phase(f"D{r}", b.cells(_of("decode", r)), rounds) for r in range(b.roles)]
    makespan, e2e = b.time("makespan"), b.time("e2e")
    lasts = sum(prefill[1:]) + sum(decode[1:])
    for fulls, holds in b.by(lambda row: row.waves):
        b.model.add(makespan >= prefix + sum(fulls) * (prefill[0] + decode[0]) + lasts).only_enforce_if(holds)
    _deadlines(b, prefix, prefill, decode, makespan, e2e)
    _gaps(b, decode)
    return ClassModel(b.model, tables, b.y, b.z, b.w, makespan, e2e, b.guards)


def _deadlines(b: _Builder, prefix: Any, prefill: list[Any], decode: list[Any], makespan: Any, e2e: Any) -> None:
    """e2e and first token of the ranks that must be on time: the deadline's own and the count that this class promises."""
    t, limits = b.t, b.t.limits
    wave = prefill[0] + decode[0]
    wrong = t.retried[0] if t.retried else 0
    for rank in sorted({min(limits.e2e_rank, t.key.admitted), t.key.on_time}):
        late = rank > t.key.admitted - wrong
        shown = [e2e] if rank == min(limits.e2e_rank, t.key.admitted) else []
        for (index, full), holds in b.by(_wave_of(min(rank + wrong, t.key.admitted))):
            end = makespan if late else prefix + index * wave if index <= full else prefix + full * wave + prefill[1] + decode[1]
            for variable in shown:
                b.model.add(variable >= end).only_enforce_if(holds)
            b.limit("e2e", end, holds)
    for rank in sorted({min(limits.ttft_rank, t.key.admitted), t.key.on_time}):
        for (index, full), holds in b.by(_wave_of(rank)):
            first = prefix + (index - 1) * wave + prefill[0] if index <= full else prefix + full * wave + prefill[1]
            b.limit("ttft", first, holds)


def _gaps(b: _Builder, decode: list[Any]) -> None:
    """Longest and mean gap of full and last waves; a wave that does not occur does not bind."""
    once = b.cells(lambda row: min(b.t.rounds_per_phase[row.branch], 1))
    some_full = [holds for full, holds in b.by(lambda row: row.waves[0] > 0) if full]
    for role, conditions in ((0, some_full), (1, [])):
        if role == 0 and not some_full:
            continue
        if "itl" in b.limits:
            b.limit("itl", b.phase(f"round{role}", b.cells(_of("rounds", role)), once), *conditions)
        if "tpot" in b.limits:
            b.limit("tpot", decode[role], *conditions)
