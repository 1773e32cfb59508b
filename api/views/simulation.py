"""What a simulated run came to: percentiles by class, goodput and cost, use of the pool over time, the knee and its curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from api.views import parts
from models.units import format_bytes, format_seconds
from planner.simulation.answer import Curve, KneeFound, Percentiles, SimulationAnswer
from planner.simulation.budget import StepBudget

METRICS = (("ttft", "first token"), ("tpot", "mean gap"), ("max_itl", "longest gap"), ("e2e", "answer"), ("queue", "queue"))
COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 48


def simulation_view(raw: Mapping[str, Any], answer: SimulationAnswer) -> list[Any]:
    """Everything that ``goodput simulate`` prints."""
    return [
        *_head(raw, answer), *_percentiles(answer), *parts.section("Outcome", parts.listing(_outcome(answer))),
        *parts.section("Pool and cache", parts.listing(_pool(answer))), *_over_time(answer), *_knee(answer.knee),
        *parts.section("Settings", parts.listing(parts.settings_rows({answer.configuration: answer.settings}))), *_mind(answer.warnings),
        Text(), Text(_provenance(answer), style=parts.FAINT),
    ]  # fmt: skip


def _head(raw: Mapping[str, Any], answer: SimulationAnswer) -> list[Any]:
    first = Text.assemble((str(raw["model"]), parts.HEAD), f" on {raw['hardware']['device']}, {answer.engine}, {answer.policy} scheduling")
    offered = f"{parts.figure(answer.offered_per_s)} requests a second" if answer.offered_per_s else "requests as they come"
    words = f"{answer.overall.requests:,} requests, {offered}, seed {answer.seed}"
    state = Text(" overload ", "bold white on red") if answer.overload else Text("")
    if answer.late and not answer.overload:
        state = Text(" late ", "bold white on red")
    elif not answer.overload:
        state = Text(" on time ", "bold white on green")
    late = [f"{name} {parts.seconds(value)} against {format_seconds(limit)}" for name, (value, limit) in answer.late.items()]
    verdict = Text.assemble(state, f"  {answer.configuration}", f": {'; '.join(late)}" if late else "")
    return [first, Text(words, style=parts.FAINT), Text(), verdict]


def _percentiles(answer: SimulationAnswer) -> list[Any]:
    classes = answer.classes or {"all requests": answer.overall}
    table = Table.grid(padding=(0, 1), pad_edge=False)
    table.add_column(no_wrap=True, min_width=14)
    for _ in COLUMNS:
        table.add_column(justify="right", no_wrap=True, min_width=8)
    table.add_row("", *(Text(name, style=parts.FAINT) for name in COLUMNS))
    for name, one in classes.items():
        if len(classes) > 1:
            table.add_row(Text(f"{name} ({one.finished:,} of {one.requests:,})", parts.HEAD))
        for metric, words in METRICS:
            table.add_row(words, *_figures(getattr(one, f"{metric}_s")))
    table.add_row("every gap", *_figures(answer.itl_s))
    return parts.section("Times", table)


def _figures(one: Percentiles) -> list[str]:
    return [parts.seconds(getattr(one, name)) for name in COLUMNS]


def _outcome(answer: SimulationAnswer) -> list[tuple[str | Text, str | Text]]:
    o = answer.overall
    share = o.good / o.requests if o.requests else 0.0
    rows: list[tuple[str | Text, str | Text]] = [
        ("on time", f"{o.good:,} of {o.requests:,} requests ({parts.percent(share)}), {answer.good_requests:,.1f} of them correct"),
        ("throughput", f"{parts.figure(o.requests_per_s)} requests/s, {parts.figure(o.output_tokens_per_s)} output tokens/s"),
        ("goodput", f"{parts.figure(o.goodput_per_s)} requests/s"),
        ("for each good one", _cost(answer)),
        (
            "engine",
            f"busy {answer.busy_s / max(answer.makespan_s, 1e-12):.0%} of {format_seconds(answer.makespan_s)}, {answer.iterations:,} steps",
        ),
    ]
    if answer.refused:
        rows.append(("no answer here", ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in answer.refused.items())))
    if answer.overload:
        rows.append(("queue grows by", f"{parts.figure(answer.queue_growth_per_s)} requests/s"))
    return rows


def _cost(answer: SimulationAnswer) -> str:
    if answer.gpu_s_per_good is None:
        return "nothing was good"
    joules = f", at most {parts.figure(answer.joules_per_good)} J" if answer.joules_per_good is not None else ""
    return f"{parts.figure(answer.gpu_s_per_good)} GPU-s{joules}"


def _pool(answer: SimulationAnswer) -> list[tuple[str | Text, str | Text]]:
    used = Text.assemble(parts.bar(answer.peak_kv_bytes, answer.pool_bytes), f" {_of(answer.peak_kv_bytes, answer.pool_bytes)} at the peak")
    return [
        ("KV", used), ("prefix cache", f"{parts.percent(answer.hit_rate)} of prompt tokens hit, {answer.evicted_blocks:,} blocks evicted"),
        ("preemptions", f"{answer.preemptions:,}, {answer.recomputed_tokens:,} tokens computed again"),
    ]  # fmt: skip


def _of(used: int, limit: int) -> str:
    return f"{format_bytes(used)} of {format_bytes(limit)}"


def _over_time(answer: SimulationAnswer) -> list[Any]:
    """KV use, running and waiting requests over the run, as one line each."""
    if len(answer.samples) < 3:
        return []
    last = answer.samples[-1].time_s
    rows: list[tuple[str | Text, str | Text]] = []
    for words, name, written in (("KV", "kv_bytes", format_bytes), ("running", "running", str), ("waiting", "waiting", str)):
        values = [float(getattr(s, name)) for s in answer.samples]
        rows.append((words, Text.assemble((sparkline(values), "cyan"), f" up to {written(int(max(values)))}")))
    return parts.section(f"Over {format_seconds(last)}", parts.listing(rows))


def sparkline(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """Values as one line of blocks from 0 to their maximum, the largest of each bin."""
    if not values:
        return ""
    width = min(width, len(values))
    bins = [values[i * len(values) // width : max((i + 1) * len(values) // width, i * len(values) // width + 1)] for i in range(width)]
    top = max(values) or 1.0
    return "".join(SPARKS[min(len(SPARKS) - 1, int(max(one) / top * (len(SPARKS) - 1) + 0.5))] for one in bins)


def _knee(found: KneeFound | None) -> list[Any]:
    if found is None:
        return []
    interval = f"{found.confidence:.0%} interval {found.low_per_s:.3g} to {found.high_per_s:.3g} /s over {found.seeds} seeds"
    words = f"every deadline holds at its percentile up to {found.rate_per_s:.3g} requests a second; {interval}"
    if not found.bounded:
        words = f"every deadline holds at every rate tried, up to {found.rate_per_s:.3g} requests a second"
    if not found.rate_per_s:
        words = f"at no rate does every deadline hold at its percentile, not even at {found.high_per_s:.3g} requests a second"
    top = max(point.goodput_per_s for point in found.curve) or 1.0
    return parts.section("Knee", Group(Text(words), Padding(_curve(found.curve, top), (1, 0, 0, 0))))


def _curve(curve: Sequence[Curve], top: float) -> Table:
    table = Table.grid(padding=(0, 2), pad_edge=False)
    for _ in range(6):
        table.add_column(justify="right", no_wrap=True)
    table.add_row(*(Text(name, style=parts.FAINT) for name in ("rate /s", "goodput /s", "", "on time", "p95 first", "p95 answer")))
    for one in curve:
        table.add_row(
            parts.figure(one.rate_per_s), parts.figure(one.goodput_per_s), parts.bar(one.goodput_per_s, top), parts.percent(one.share_good),
            parts.seconds(one.ttft_p95_s), parts.seconds(one.e2e_p95_s),
        )  # fmt: skip
    return table


def _mind(warnings: Sequence[str]) -> list[Any]:
    return parts.section("Mind", parts.listing((Text("!", "yellow"), note) for note in warnings)) if warnings else []


def _provenance(answer: SimulationAnswer) -> str:
    used = answer.calibration
    drafts = f"{answer.acceptance} acceptance · " if answer.settings["draft_tokens"] else ""
    return (
        f"calibration {used.name} version {used.version} · {drafts}"
        f"{answer.iterations:,} steps simulated in {format_seconds(answer.elapsed_s)}"
    )


def budget_view(answer: StepBudget) -> list[Any]:
    """Everything that ``goodput budget`` prints."""
    head = Text.assemble(
        (f"a gap of {format_seconds(answer.gap_s)}", parts.HEAD),
        f" for {answer.running} running at {answer.context_tokens:,} tokens of context, {answer.configuration} on {answer.engine}",
    )
    rows: list[tuple[str | Text, str | Text]] = [("the decoders take", format_seconds(answer.decode_s))]
    if answer.delivery_s:
        rows.append(("delivery takes", format_seconds(answer.delivery_s)))
    rows.append(("left for a prompt", format_seconds(answer.left_s) if answer.left_s > 0 else "nothing: the decoders alone exceed the gap"))
    table = Table.grid(padding=(0, 2), pad_edge=False)
    for _ in range(4):
        table.add_column(justify="right", no_wrap=True)
    table.add_row(*(Text(name, style=parts.FAINT) for name in ("cached before", "new tokens", "rows run", "step")))
    for one in answer.chunks:
        table.add_row(f"{one.cached_tokens:,}", f"{one.new_tokens:,}", f"{one.executed_rows:,}", format_seconds(one.step_s))
    last = (
        f"max_num_batched_tokens up to {answer.largest_budget:,} keeps every chunk of this prompt within the gap"
        if answer.largest_budget
        else "no chunk of the longest context fits: allow a longer gap or fewer running requests"
    )
    note = Text(f"calibration {answer.calibration.name} version {answer.calibration.version}", style=parts.FAINT)
    return [
        head,
        *parts.section("Time", parts.listing(rows)),
        *parts.section("New tokens", table),
        Text(),
        Text(last),
        *_mind(answer.warnings),
        Text(),
        note,
    ]
