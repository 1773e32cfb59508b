"""Reasons: what binds, why the winner wins, what was rejected and why, where the winner changes, which relaxation would help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.case import Case
from models.units import format_bytes, format_seconds
from planner.answer import Explanation, Ranked
from planner.relax import Infeasibility
from planner.resolve import CalibrationLookup
from planner.switches import length_relaxations, switch_points

SETTING_WORDS = {
    "prefix_sharing": {True: "the prefix is held once and not computed again", False: "every request holds and computes its whole prompt"},
}


def explain(
    raw: Mapping[str, Any], case: Case, ranked: tuple[Ranked, ...], infeasibility: Infeasibility | None, *,
    rejected: Mapping[str, str], wanted: bool, stored: CalibrationLookup | None,
) -> Explanation:  # fmt: skip
    """The explanation of a ranking; ``wanted`` False leaves out what needs planning again (switch points, length relaxations)."""
    winner = ranked[0] if ranked and ranked[0].feasible and ranked[0].launchable[case.engine.name] is True else None
    runner = next((r for r in ranked[1:] if r.feasible and r.launchable[case.engine.name] is True), None) if winner else None
    relaxations = infeasibility.relaxations if infeasibility else ()
    if infeasibility is not None and wanted:
        relaxations = (*relaxations, *length_relaxations(raw, case, stored))
    return Explanation(
        binding=binding(case, winner), why_winner=_why(case, winner, runner, ranked), runner_up=runner.id if runner else None,
        rejected=dict(rejected) if case.scenario.candidates is None else _each_rejection(case, ranked, winner, runner),
        conflicts=infeasibility.conflicts if infeasibility else (),
        switch_points=switch_points(raw, case, stored) if wanted else (), relaxations=relaxations,
    )  # fmt: skip


def _each_rejection(case: Case, ranked: tuple[Ranked, ...], winner: Ranked | None, runner: Ranked | None) -> dict[str, str]:
    return {r.id: rejection(case, r) for r in ranked if r is not winner and r is not runner}


def binding(case: Case, winner: Ranked | None) -> tuple[str, ...]:
    """Limits that the winner uses most, by share; those above 90 % bind, else the tightest one is named."""
    if winner is None:
        return ()
    shares: dict[str, float] = {"device_memory": winner.memory.total_bytes / winner.memory.limit_bytes}
    if winner.memory.pool_limit_bytes:
        shares["kv_budget"] = winner.memory.pool_bytes / winner.memory.pool_limit_bytes
    metrics = {"e2e": winner.time.e2e_s, "ttft": winner.time.ttft_s, "itl": winner.time.itl_s, "tpot": winner.time.tpot_s}
    for name, deadline in case.request.slo.deadlines().items():
        shares[name] = (metrics[name].max or 0.0) / deadline.limit
    close = [name for name, share in shares.items() if share > 0.9]
    chosen = close or [max(shares, key=lambda name: shares[name])]
    return tuple(f"{name} ({shares[name]:.0%} used)" for name in sorted(chosen, key=lambda name: -shares[name]))


def _why(case: Case, winner: Ranked | None, runner: Ranked | None, ranked: tuple[Ranked, ...]) -> str:
    if winner is None:
        able = [r for r in ranked if r.feasible]
        if able and able[0].objective is None:
            return f"{able[0].id} meets every limit, but no answer is expected to be right (workload.{case.class_name}.quality)"
        if able:
            return f"no feasible configuration can be launched on {case.engine.title}; {able[0].id} could be elsewhere"
        return "no configuration meets every limit"
    t, m = winner.time, winner.memory
    pool = (
        f"{format_bytes(m.pool_bytes)} of the {format_bytes(m.pool_limit_bytes)} pool"
        if m.pool_limit_bytes
        else f"{format_bytes(m.total_bytes)}"
    )
    parts = [
        f"{winner.id} gives {winner.good_requests:g} good answers of {case.requests} in {format_seconds(t.makespan_s)} "
        f"({format_seconds(t.prefill_s)} prefill, {t.rounds} rounds of {format_seconds(t.round_s)}"
        + (f", {t.waves} waves" if t.waves > 1 else "")
        + f") in {pool}"
    ]
    if runner is not None:
        parts.append(_against(winner, runner))
    return "; ".join(parts)


def _against(winner: Ranked, runner: Ranked) -> str:
    """What sets the runner-up apart: the settings that differ and the difference they make."""
    differing = [f"{k} {v} instead of {winner.settings[k]}" for k, v in runner.settings.items() if winner.settings[k] != v]
    time, cost = runner.time.makespan_s - winner.time.makespan_s, ""
    if winner.objective and runner.objective:
        cost = f" and {runner.objective / winner.objective - 1:+.1%} of the objective"
    seconds = f"{format_seconds(abs(time))} {'slower' if time >= 0 else 'faster'}"
    return f"runner-up {runner.id} is {seconds}{cost} ({'; '.join(differing[:4]) or 'same settings'})"


def rejection(case: Case, one: Ranked) -> str:
    """Why a configuration is not the answer: its violations, its launchability, or only its score."""
    reasons = [_violated(v.constraint, v.value, v.limit, v.unit) for v in one.violations]
    able = one.launchable[case.engine.name]
    if able is not True:
        reasons.append(f"not launchable: {able}")
    if not reasons:
        score = f"{one.objective:.4g}" if one.objective is not None else "none"
        return f"feasible, but the objective is {score}"
    return "; ".join(reasons)


def _violated(name: str, value: float | None, limit: float, unit: str) -> str:
    shown = format_bytes if unit == "bytes" else format_seconds if unit == "s" else "{:g}".format
    return f"{name} {'never' if value is None else shown(value)} against {shown(limit)}"
