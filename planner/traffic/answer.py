"""Simulated trials as pieces of the answer: the same schema as the closed form's, with what only a simulation knows beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from models.case import Case
from models.describe.configuration import Configuration
from models.energy import joules_bound
from models.simulation_summary import ClassSummary, Spread
from models.units import format_seconds
from planner.answer import (
    ClassResult,
    Cost,
    Distribution,
    Explanation,
    Memory,
    Ranked,
    Relaxation,
    Simulated,
    SwitchPoint,
    Throughput,
    Times,
    Trials,
    Violation,
)
from planner.coverage import asked_of_run, extrapolation
from planner.launchability import launchable
from planner.options import Options
from planner.predict import assumptions, outward
from planner.scheduler_notes import outcome_notes
from planner.traffic.load import Traffic
from planner.traffic.search import TrafficSearch
from planner.traffic.ties import Contender, error_of
from planner.traffic.trial import HOPELESS, Trial
from solvers.grid import single
from solvers.objective import power_w


def ranked_trial(traffic: Traffic, one: Contender, rank: int) -> Ranked:
    """One simulated configuration in its place."""
    case, configuration, trial = traffic.case, one.configuration, one.trial
    values = {name: value if value < HOPELESS else None for name, value in trial.values.items()}
    return Ranked(
        rank=rank, id=one.label, feasible=not trial.late, settings=configuration.model_dump(mode="json"),
        memory=_memory(case, configuration, trial),
        time=_times(trial), throughput=_throughput(trial), cost=_cost(case, trial), good_requests=trial.good,
        slo_probability=one.confidence.probability, intervals=one.confidence.intervals, violations=_violations(trial),
        launchable=launchable(case, configuration), assumptions=assumptions(case, configuration), simulated=_simulated(trial),
        objective=values[case.scenario.objectives[0].value], objectives=values,
    )  # fmt: skip


def refused(case: Case, label: str, configuration: Configuration, reason: str) -> str:
    """A named configuration that cannot run at all, in words."""
    return (
        f"{label} ({configuration.kv_format.value} KV, {configuration.max_num_seqs} sequences) cannot run on {case.engine.title}: {reason}"
    )


def _distribution(s: Spread) -> Distribution:
    def known(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return Distribution(mean=known(s.mean), p50=known(s.p50), p95=known(s.p95), p99=known(s.p99), max=known(s.max))


def _memory(case: Case, configuration: Configuration, trial: Trial) -> Memory:
    """The footprint of weights, draft and activations, and the whole pool as KV: an engine takes it at start."""
    grid, _ = single(case, configuration)
    m = grid.point(grid.columns, grid.b, grid.a, grid.c, grid.o).outcome.memory
    pool = trial.inputs.pool_bytes
    other = int(m.total.flat[0] - m.kv.flat[0]) * 1024
    budget = case.scenario.hardware.kv_budget
    draft = int(m.draft.flat[0]) * 1024
    return Memory(
        weights_bytes=int(m.weights.flat[0]) * 1024, kv_bytes=pool, draft_bytes=draft, prefetch_bytes=int(m.prefetch.flat[0]) * 1024,
        activation_bytes=int(m.activation.flat[0]) * 1024, graph_bytes=int(m.graphs.flat[0]) * 1024, total_bytes=other + pool,
        limit_bytes=case.memory_limit, pool_bytes=pool + draft, pool_limit_bytes=budget,
    )  # fmt: skip


def _times(trial: Trial) -> Times:
    s = trial.summary
    overall = s.overall
    return Times(
        prefill_s=max(overall.ttft.mean - overall.queue.mean, 0.0) if overall.finished else 0.0,
        rounds=round(s.iterations / max(overall.finished, 1)), round_s=s.itl.mean if math.isfinite(s.itl.mean) else 0.0, waves=1,
        makespan_s=s.makespan_s, ttft_s=_distribution(overall.ttft), itl_s=_distribution(s.itl), tpot_s=_distribution(overall.tpot),
        e2e_s=_distribution(overall.e2e),
    )  # fmt: skip


def _throughput(trial: Trial) -> Throughput:
    o = trial.summary.overall
    return Throughput(
        output_tokens_per_s=o.output_tokens_per_s, requests_per_s=o.requests_per_s,
        goodput_per_s=o.goodput_per_s * (trial.good / o.good if o.good else 0.0),
    )  # fmt: skip


def _cost(case: Case, trial: Trial) -> Cost:
    """Occupied GPU-seconds and joules: while the engine executes; price: of the whole run."""
    spent, devices, good = trial.device_s, trial.devices, trial.good
    watts, price = power_w(case), case.scenario.hardware.price_per_hour
    return Cost(
        gpu_s_per_request=spent / max(trial.summary.overall.finished, 1), gpu_s_per_good=spent / good if good else None,
        joules_per_good=joules_bound(watts, 1, spent) / good if good and watts is not None else None,
        price_per_good=price / 3600 * devices * trial.summary.makespan_s / good if good and price is not None else None,
    )  # fmt: skip


def _violations(trial: Trial) -> tuple[Violation, ...]:
    found = []
    for name, (value, limit) in trial.late.items():
        finite = math.isfinite(value)
        relaxed = outward(math.ceil(value * 1e6), "us") if finite else None
        found.append(Violation(constraint=name, value=value if finite else None, limit=limit, unit="s", relax_to=relaxed))
    return tuple(found)


def _simulated(trial: Trial) -> Simulated:
    s, blocks = trial.summary, max(trial.inputs.engine.kv_blocks, 1)
    classes = s.by_class or {trial.result.requests.class_names[0]: s.overall}
    return Simulated(
        classes={name: _class(one, s.itl) for name, one in classes.items()}, busy_s=s.busy_s, hit_rate=s.hit_rate,
        preemptions=s.preemptions,
        recomputed_tokens=s.recomputed_tokens, peak_kv_bytes=trial.inputs.pool_bytes * min(s.peak_kv_blocks, blocks) // blocks,
        queue_growth_per_s=s.queue_growth_per_s, overload=s.overload,
    )  # fmt: skip


def _class(one: ClassSummary, _itl: Spread) -> ClassResult:
    return ClassResult(
        requests=one.requests, finished=one.finished, good=one.good, ttft_s=_distribution(one.ttft), itl_s=_distribution(one.max_itl),
        tpot_s=_distribution(one.tpot), e2e_s=_distribution(one.e2e), queue_s=_distribution(one.queue), goodput_per_s=one.goodput_per_s,
    )  # fmt: skip


def trials_of(search: TrafficSearch, contenders: Sequence[Contender], options: Options) -> Trials:
    """How the search went and what it gained over the closed form's choice."""
    first = search.traffic.case.scenario.objectives[0].value
    best = next((one.trial for one in contenders if one.able and not one.trial.late), None)
    seeded = search.seeded[1] if search.seeded is not None else None
    theirs = seeded.values[first] if seeded is not None and not seeded.late else None
    own = next((one.label for one in contenders if seeded is not None and one.trial.values == seeded.values), None)
    return Trials(
        requests=len(search.traffic.requests), seed=options.seed, tried=search.result.tried, pruned=search.result.pruned,
        history=search.result.history, closed_form=theirs,
        gain=None if best is None or theirs is None else 1.0 - best.values[first] / theirs, closed_form_id=own,
        closed_form_late=tuple(seeded.late) if seeded is not None else (), wanted=options.trials, interrupted=search.result.interrupted,
    )  # fmt: skip


@dataclass(frozen=True)
class Findings:
    """What a plan over traffic learned beside its ranking; ``refusals`` by label, ``undecided`` are tied with the first."""

    refusals: Mapping[str, str]
    undecided: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    relaxations: tuple[Relaxation, ...] = ()
    switch_points: tuple[SwitchPoint, ...] = ()


def notes_of(traffic: Traffic, contenders: Sequence[Contender], findings: Findings) -> tuple[str, ...]:
    """What a reader must know before trusting the order: how much was simulated, ties, overload."""
    notes = [f"simulated with {len(traffic.requests):,} requests; the search proves nothing beyond what it tried"]
    if contenders:
        first = contenders[0].trial.result
        notes += [*extrapolation(traffic.case.calibration, asked_of_run(first)), *outcome_notes(first)]
    if findings.undecided:
        error = max(error_of(traffic.case, one.trial) for one in contenders if one.label in findings.undecided)
        shown = ", ".join(findings.undecided[:4]) + (", …" if len(findings.undecided) > 4 else "")
        notes.append(
            f"the order of {contenders[0].label} and {shown} is not decided: their {_objective_words(traffic.case)} differ by less than "
            f"the simulation's own error ({error:.1%}, what happens after the last arrival); they stand by P(SLO), then by p95 answer, "
            "fewer devices and fewer settings that differ from the engine's own"
        )
    if contenders and contenders[0].trial.late and (swamped := [one.trial for one in contenders if one.trial.summary.overload]):
        least = min(trial.summary.queue_growth_per_s for trial in swamped)
        notes.append(
            f"overload: in {len(swamped)} of the {len(contenders)} configurations shown the queue grows, by {least:.3g} requests a second "
            f"or more; their times are those of these {len(traffic.requests):,} requests and would grow with more of them"
        )
    return tuple(notes)


def _objective_words(case: Case) -> str:
    return case.scenario.objectives[0].value.replace("_", " ")


def explanation(traffic: Traffic, ranked: tuple[Ranked, ...], contenders: Sequence[Contender], findings: Findings) -> Explanation:
    """Why the first is first, in the simulator's terms; where nothing is on time, what stands against it and what would help."""
    won = next((r for r in ranked if r.feasible and r.launchable[traffic.case.engine.name] is True), None)
    runner = next((r for r in ranked if r.feasible and r is not won), None)
    rejected = {r.id: _rejection(r) for r in ranked if r is not won and r is not runner}
    return Explanation(
        binding=_binding(won, contenders), why_winner=_why(won, runner, findings.undecided), runner_up=runner.id if runner else None,
        rejected=rejected | dict(findings.refusals), conflicts=findings.conflicts, switch_points=findings.switch_points,
        relaxations=findings.relaxations, undecided=findings.undecided,
    )  # fmt: skip


def _why(won: Ranked | None, runner: Ranked | None, undecided: tuple[str, ...]) -> str:
    if won is None or won.simulated is None:
        return "no simulated configuration meets every deadline at its percentile"
    text = (
        f"{won.id} answers {won.good_requests:.0f} requests correctly and on time at {won.throughput.goodput_per_s:.3g} a second; "
        f"median first token {format_seconds(won.time.ttft_s.p50 or 0.0)}, p95 answer {format_seconds(won.time.e2e_s.p95 or 0.0)}, "
        f"engine busy {won.simulated.busy_s / won.time.makespan_s:.0%} of the time"
    )
    if runner is not None and runner.id in undecided:
        text += (
            f"; runner-up {runner.id} is tied in the objective: P(SLO) {won.slo_probability:.0%} against {runner.slo_probability:.0%}, "
            f"p95 answer {format_seconds(won.time.e2e_s.p95 or 0.0)} against {format_seconds(runner.time.e2e_s.p95 or 0.0)}"
        )
    elif runner is not None and won.objective and runner.objective:
        text += f"; runner-up {runner.id} needs {runner.objective / won.objective - 1:+.1%} of the objective"
    return text


def _binding(won: Ranked | None, contenders: Sequence[Contender]) -> tuple[str, ...]:
    """Each deadline's use by the winner at its percentile, the tightest first."""
    used = next((one.trial.used for one in contenders if won is not None and one.label == won.id), {})
    return tuple(f"{name} ({share:.0%} used)" for name, share in sorted(used.items(), key=lambda item: -item[1])[:3])


def _rejection(one: Ranked) -> str:
    late = [
        f"{v.constraint} {'never' if v.value is None else format_seconds(v.value)} against {format_seconds(v.limit)}"
        for v in one.violations
    ]
    return "; ".join(late) or f"feasible, but the objective is {one.objective:.4g}" if one.objective is not None else "; ".join(late)
