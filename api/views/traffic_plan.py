"""What a plan over simulated traffic adds to the readable answer: its own ranking, and how the search went."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from rich.table import Table
from rich.text import Text

from api.views import parts
from models.units import format_bytes, format_seconds
from planner.answer import Answer, Ranked, Trials

HEADS = ("#", "id", "goodput/s", "p95 first", "p95 answer", "P(SLO)", "KV", "")
MOST_POINTS = 48
LEAST_GAIN = 5e-4
OBJECTIVES = {
    "goodput": "good answers/s", "gpu_seconds_per_good_request": "GPU-s/good", "joules_per_good_request": "J/good", "cost": "cost/good",
    "latency": "p95 answer",
}  # fmt: skip


def is_simulated(answer: Answer) -> bool:
    """Whether the figures come from simulated traffic."""
    return any(one.simulated is not None for one in answer.configurations)


def ranking(answer: Answer, won: str | None, cost: tuple[str, Callable[[Ranked], str]], standing: Callable[[Ranked], Text]) -> Table:
    """Goodput, the slow end of times, cost, probability and use of the pool; ``cost`` is the heading and figure of the objective."""
    table = Table.grid(padding=(0, 1), pad_edge=False)
    heads = [*HEADS[:5], cost[0], *HEADS[5:]]
    for head in heads:
        table.add_column(justify="left" if head in ("id", "") else "right", no_wrap=True, max_width=14 if head == "id" else None)
    table.add_row(*(Text(head, style=parts.FAINT) for head in heads))
    for one in answer.configurations:
        style = "bold green" if one.id == won else ""
        figures = (
            str(one.rank), one.id, parts.figure(one.throughput.goodput_per_s), parts.seconds(one.time.ttft_s.p95),
            parts.seconds(one.time.e2e_s.p95), cost[1](one),
        )  # fmt: skip
        table.add_row(*(Text(text, style) for text in figures), parts.percent(one.slo_probability), format_bytes(_kv(one)), standing(one))
    return table


def _kv(one: Ranked) -> int:
    return one.simulated.peak_kv_bytes if one.simulated is not None else 0


def why_lines(won: Ranked) -> list[Text]:
    """The winner's pool, its intervals, and overload or preemptions where there were any."""
    seen = won.simulated
    if seen is None:
        return []
    pool = f"KV peak {format_bytes(seen.peak_kv_bytes)} of {format_bytes(won.memory.kv_bytes)}, {parts.percent(seen.hit_rate)} prefix hits"
    again = f", {seen.preemptions:,} preemptions and {seen.recomputed_tokens:,} tokens computed again" if seen.preemptions else ""
    lines = [Text(pool + again, parts.FAINT)]
    named = {"ttft_p95_s": "p95 first token", "e2e_p95_s": "p95 answer"}
    shown = [f"{words} {_span(won.intervals[name])}" for name, words in named.items() if name in won.intervals]
    if shown:
        lines.append(Text(f"90 % interval: {', '.join(shown)}", parts.FAINT))
    return lines


def _span(interval: tuple[float, float]) -> str:
    return f"{format_seconds(interval[0])} to {format_seconds(interval[1])}"


def search_section(answer: Answer) -> list[Any]:
    """How many trials, how many abandoned, the best value so far as a line, and the gain over the closed form's choice."""
    trials = answer.trials
    if trials is None:
        return []
    tried = f"{trials.tried:,}" + (f" of {trials.wanted:,} trials, interrupted" if trials.interrupted else " trials")
    rows: list[tuple[str | Text, str | Text]] = [
        ("tried", f"{tried} of {trials.requests:,} requests each, {trials.pruned:,} abandoned after a tenth, seed {trials.seed}")
    ]
    if trials.history:
        first, last = trials.history[0], trials.history[-1]
        ends = f" {_objective(answer.objective, first[1])} to {_objective(answer.objective, last[1])} at trial {last[0] + 1}"
        line = Text.assemble((falling(trials), "cyan"), ends)
        rows.append(("best so far", line))
    rows.append(("closed form", _closed_form(answer.objective, trials)))
    return parts.section("Search", parts.listing(rows))


def _closed_form(objective: str, trials: Trials) -> str:
    """What the search gained over what the closed form alone would have chosen."""
    if trials.closed_form_late:
        return f"its best choice is late under this traffic: {', '.join(trials.closed_form_late)}"
    if trials.closed_form is None or trials.gain is None:
        return "none of its choices could run under this traffic"
    which = f"its best choice is {trials.closed_form_id or 'not shown'} ({_objective(objective, trials.closed_form)})"
    return f"{which}: the search gains {trials.gain:.1%}" if abs(trials.gain) >= LEAST_GAIN else f"{which}: the search gains nothing on it"


def front_section(answer: Answer) -> list[Any]:
    """The undominated configurations by every objective, in the order of the first."""
    if not answer.pareto_front:
        return []
    front = [one for one in answer.configurations if one.id in answer.pareto_front]
    names = list(front[0].objectives)
    table = Table.grid(padding=(0, 2), pad_edge=False)
    table.add_column(no_wrap=True)
    for _ in names:
        table.add_column(justify="right", no_wrap=True)
    table.add_row("", *(Text(OBJECTIVES[name], style=parts.FAINT) for name in names))
    for one in sorted(front, key=lambda row: row.objectives[names[0]] or 0.0):
        table.add_row(one.id, *(_objective(name, one.objectives[name]) for name in names))
    return parts.section(f"Pareto front: {len(front)} that no other beats in every objective", table)


def _objective(name: str, value: float | None) -> str:
    if value is None:
        return parts.NOTHING
    if name == "goodput":
        return f"{1.0 / value:.4g}"
    return format_seconds(value) if name == "latency" else f"{value:.4g}"


def falling(trials: Trials) -> str:
    """The best value so far over the trials, between its first and its last value."""
    from api.views.simulation import sparkline

    steps = [*trials.history, (trials.tried, trials.history[-1][1])]
    known = [value for (start, value), (end, _) in pairwise(steps) for _ in range(end - start)]
    least = trials.history[-1][1]
    stride = max(1, -(-len(known) // MOST_POINTS))
    return sparkline([value - least for value in known[::stride]], MOST_POINTS)
