"""One configuration's prediction as a piece of the answer: distributions, cost, intervals, violations in the user's units."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from models.case import Case
from models.describe.calibration import Calibration, Physical
from models.describe.configuration import Configuration, DraftSource, KvFormat
from models.describe.scenario import Objective
from models.energy import joules_bound
from models.kernels.burst import NEVER
from models.service import Limits, Outcome, nearest_rank
from models.speculation import acceptance_chain, slowest_rounds
from models.units import ceil_to
from planner.answer import Cost, Distribution, Memory, Ranked, Throughput, Times, Violation
from solvers.constraints import Constraint, Point
from solvers.grid import single
from solvers.objective import power_w, score

Z90 = 1.6448536269514722
"""Standard normal quantile of 95 %: a two-sided 90 % interval."""
US = 1e-6


def predict(case: Case, label: str, configuration: Configuration, launchable: dict[str, bool | str]) -> Ranked:
    """Everything about one configuration but its rank."""
    grid, _ = single(case, configuration)
    at = grid.point(grid.columns, grid.b, grid.a, grid.c, grid.o)
    violations = tuple(_violation(c, at) for c in grid.limits if not bool(np.all(c.holds(at))))
    values = {o.value: _finite(score(case, o, grid.columns, at.outcome).flat[0]) for o in case.scenario.objectives}
    probability, intervals = _uncertainty(case, configuration, at)
    return Ranked(
        rank=0, id=label, feasible=not violations, settings=configuration.model_dump(mode="json"), memory=_memory(case, at.outcome),
        time=_times(case, at), throughput=_throughput(case, at.outcome), cost=_cost(case, at), good_requests=float(at.outcome.good.flat[0]),
        slo_probability=0.0 if any(v.unit != "s" for v in violations) else probability, intervals=intervals,
        violations=violations, launchable=launchable, assumptions=assumptions(case, configuration),
        objective=values[case.scenario.objectives[0].value],
        objectives=values,
    )  # fmt: skip


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _int(array: object) -> int:
    return int(np.asarray(array).flat[0])


def _memory(case: Case, outcome: Outcome) -> Memory:
    m = outcome.memory
    pool = case.scenario.hardware.kv_budget
    return Memory(
        weights_bytes=_int(m.weights) * 1024, kv_bytes=_int(m.kv) * 1024, draft_bytes=_int(m.draft) * 1024,
        prefetch_bytes=_int(m.prefetch) * 1024, activation_bytes=_int(m.activation) * 1024, graph_bytes=_int(m.graphs) * 1024,
        total_bytes=_int(m.total) * 1024, limit_bytes=case.memory_limit, pool_bytes=_int(m.pool) * 1024, pool_limit_bytes=pool,
    )  # fmt: skip


def _distribution(values: list[tuple[float, int]], total: int) -> Distribution:
    """Statistics of (seconds, requests) pairs; requests missing from ``total`` never got an answer and count as infinite ranks."""
    ordered = sorted(values)
    counted = sum(n for _, n in ordered)

    def rank(percentile: float) -> float | None:
        wanted, seen = nearest_rank(percentile, total), 0
        for value, n in ordered:
            seen += n
            if seen >= wanted:
                return value
        return None

    mean = sum(v * n for v, n in ordered) / counted if counted else None
    return Distribution(mean=mean, p50=rank(50), p95=rank(95), p99=rank(99), max=ordered[-1][0] if counted == total else None)


def _times(case: Case, at: Point) -> Times:
    t, w = at.outcome.times, at.outcome.waves
    full, resident, last = _int(w.full), _int(w.resident), _int(w.last)
    wave, prefix = _int(t.wave), _int(t.prefix)
    gaps = max(case.request.output_tokens - 1, 1)
    starts = [prefix + i * wave for i in range(full)]
    begin = prefix + full * wave
    first = [((s + _int(t.prefill_full)) * US, resident) for s in starts] + [((begin + _int(t.prefill_last)) * US, last)]
    ends = [((s + wave) * US, resident) for s in starts] + [((begin + _int(t.prefill_last) + _int(t.decode_last)) * US, last)]
    many = [(0.0, full * resident)] if full else []
    total = case.requests

    def two(of_full: int, of_last: int) -> Distribution:
        return _distribution([(of_full * US, n) for _, n in many] + [(of_last * US, last)], total)

    return Times(
        prefill_s=(_int(t.prefill_full) if full else _int(t.prefill_last)) * US, rounds=_int(at.k.rounds),
        round_s=(_int(t.round_full) if full else _int(t.round_last)) * US, waves=full + 1, makespan_s=_int(at.outcome.makespan_us) * US,
        ttft_s=_distribution(first, total), e2e_s=_distribution(ends, total), itl_s=two(_int(t.round_full), _int(t.round_last)),
        tpot_s=two(-(-_int(t.decode_full) // gaps), -(-_int(t.decode_last) // gaps)),
    )  # fmt: skip


def _throughput(case: Case, outcome: Outcome) -> Throughput:
    seconds = _int(outcome.makespan_us) * US
    served = _int(outcome.waves.admitted)
    tokens = served * case.request.samples * case.request.output_tokens
    return Throughput(
        output_tokens_per_s=tokens / seconds, requests_per_s=served / seconds, goodput_per_s=float(outcome.good.flat[0]) / seconds
    )


def _cost(case: Case, at: Point) -> Cost:
    outcome, devices = at.outcome, _int(at.k.devices)
    seconds, good, served = _int(outcome.busy_us) * US, float(outcome.good.flat[0]), _int(outcome.waves.admitted)
    watts, price = power_w(case), case.scenario.hardware.price_per_hour
    some = good > 0
    return Cost(
        gpu_s_per_request=devices * seconds / served, gpu_s_per_good=devices * seconds / good if some else None,
        joules_per_good=joules_bound(watts, devices, seconds) / good if some and watts is not None else None,
        price_per_good=price / 3600 * devices * seconds / good if some and price is not None else None,
    )  # fmt: skip


def _uncertainty(case: Case, configuration: Configuration, at: Point) -> tuple[float, dict[str, tuple[float, float]]]:
    """Probability that every deadline is met, and 90 % intervals: phases vary as wholes, log-normally, independently of each other.

    Deadlines of one run move together, so the joint probability is that of the tightest one. With a draft the slowest request of a wave
    decides: its rounds are drawn, not the mean (positions accept independently), and only then does the engine's own spread come on top.
    """
    u, o, t = case.calibration.uncertainty, at.outcome, at.outcome.times
    limits = Limits.of(case.request.slo, case.requests)
    decode = _int(o.waves.full) * _int(t.decode_full) + _int(t.decode_last)
    share = decode / max(_int(o.makespan_us), 1)
    sd = {
        "e2e": math.hypot((1 - share) * u.prefill_log_sd, share * u.decode_log_sd),
        "ttft": u.prefill_log_sd, "itl": u.decode_log_sd, "tpot": u.decode_log_sd,
    }  # fmt: skip
    if _int(o.waves.full):
        sd["ttft"] = sd["e2e"]
    values = {"e2e": _int(o.e2e_us), "ttft": _int(o.ttft_us), "itl": _int(o.itl_us), "tpot": _int(o.tpot_us)}
    stretch = _stretches(case, configuration, at)
    factors = {"e2e": 1 + share * (stretch[:, 0] - 1), "ttft": np.ones(len(stretch)), "itl": np.ones(len(stretch)), "tpot": stretch[:, 0]}
    probability = 1.0
    for name in case.request.slo.deadlines():
        chances = [_log_normal(getattr(limits, f"{name}_us"), round(values[name] * f), sd[name]) for f in factors[name].tolist()]
        probability = min(probability, float(np.dot(stretch[:, 1], chances)))
    reached = np.cumsum(stretch[:, 1])
    low, high = (min(int(np.searchsorted(reached, q)), len(stretch) - 1) for q in (0.05, 0.95))

    def at_quantile(name: str, value: int, which: int, sign: int) -> float:
        return value * US * float(factors[name][which]) * math.exp(sign * Z90 * sd[name])

    spread = {f"{n}_s": (at_quantile(n, v, low, -1), at_quantile(n, v, high, 1)) for n, v in values.items() if v < NEVER}
    return probability, spread


def _stretches(case: Case, configuration: Configuration, at: Point) -> npt.NDArray[np.float64]:
    """(decode time of the slowest request against the mean's, probability) pairs; (1, 1) without a draft."""
    given = case.request.speculation.get(configuration.draft)
    rounds = _int(at.k.rounds)
    if given is None or rounds == 0:
        return np.ones((1, 2))
    measured = case.calibration.drafts.get(configuration.draft)
    chain = acceptance_chain(given, configuration.draft_tokens, measured.draft_tokens if measured else None)
    sequences = _int(at.outcome.waves.resident) * case.request.samples
    done = slowest_rounds(chain, case.request.output_tokens - 1, sequences)
    chance = np.diff(done, prepend=0.0)
    some = np.flatnonzero(chance > 1e-9)
    return np.column_stack([some / rounds, chance[some] / chance[some].sum()])


def _log_normal(limit: int, value: int, sd: float) -> float:
    """P(T <= limit) for a log-normal T with median ``value``."""
    if value >= NEVER:
        return 0.0
    if sd == 0.0 or value <= 0:
        return float(value <= limit)
    return 0.5 * (1.0 + math.erf(math.log(limit / value) / (sd * math.sqrt(2.0))))


def _violation(constraint: Constraint, at: Point) -> Violation:
    value = _int(constraint.value(at))
    kib, us = constraint.unit == "KiB", constraint.unit == "us"
    factor, unit = (1024, "bytes") if kib else (US, "s") if us else (1, constraint.unit)
    never = us and value >= NEVER
    relaxed = None if never or constraint.relaxable is None else outward(value, constraint.unit)
    return Violation(
        constraint=constraint.name, value=None if never else value * factor, limit=constraint.limit * factor, unit=unit, relax_to=relaxed
    )


def outward(value: int, unit: str) -> str:
    """A limit as text that still admits ``value``: KiB as GiB or MiB, microseconds as s or ms, two decimals rounded up."""
    if unit == "KiB":
        return f"{ceil_to(value / 2**20, 2)} GiB" if value >= 2**20 else f"{ceil_to(value / 2**10, 2)} MiB"
    if unit == "us":
        return f"{ceil_to(value / 1e6, 2)} s" if value >= 1_000_000 else f"{ceil_to(value / 1e3, 2)} ms"
    return str(value)


def _conversion_known(calibration: Calibration, kv: KvFormat) -> bool:
    form = calibration.decode
    fitted = isinstance(form, Physical) and kv in form.kv_conversion_s_per_byte | form.short_pair_cost
    return fitted or calibration.kv_conversion_s.get(kv, 0.0) > 0


def assumptions(case: Case, configuration: Configuration) -> tuple[str, ...]:
    """What this configuration's numbers assume beyond what the calibration measured."""
    found: list[str] = []
    measured = case.calibration
    kv = configuration.kv_format
    if kv != "bf16" and not _conversion_known(measured, kv):
        found.append(f"conversion of {kv} KV costs no time (not measured)")
    if kv != "bf16" and case.request.quality is not None and kv.value not in case.request.quality.correct_by_kv_format:
        found.append(f"answers with {kv} KV are as correct as with bf16 (not measured)")
    draft = configuration.draft
    if draft is not DraftSource.NONE:
        cost, given = measured.drafts.get(draft), case.request.speculation.get(draft)
        if cost is None:
            found.append(f"cost of draft {draft} estimated from its shape")
        if given is not None and given.tokens_per_round is not None:
            reference = given.draft_tokens or (cost.draft_tokens if cost else None)
            if reference is not None and configuration.draft_tokens != reference:
                found.append(f"{configuration.draft_tokens} draft tokens accept as evenly as the measured {reference}")
            if reference is None:
                found.append(
                    f"{given.tokens_per_round:g} tokens a round hold at {configuration.draft_tokens} draft tokens; "
                    "the scenario's draft_tokens beside tokens_per_round says at how many they were counted"
                )
    if configuration.weight_format != case.stored_format:
        found.append(f"{configuration.weight_format} weights answer as correctly as {case.stored_format}")
    if case.scenario.hardware.count > configuration.tensor_parallel:
        found.append(f"{case.scenario.hardware.count - configuration.tensor_parallel} devices stay idle and are not charged")
    return tuple(found)


OBJECTIVE_UNIT = {
    Objective.GPU_SECONDS: "GPU-s a good request", Objective.GOODPUT: "s a good request (inverse goodput)",
    Objective.JOULES: "J a good request", Objective.COST: "a good request", Objective.LATENCY: "s end to end",
}  # fmt: skip
