"""The readable answer of a plan: the ranking first, then why, then what to type."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from api.views import parts, traffic_plan
from models.units import format_bytes, format_seconds
from planner.answer import Answer, Launch, Memory, Ranked

_PER_GOOD = {"joules_per_good_request": "J/good", "cost": "cost/good"}


def plan_view(raw: Mapping[str, Any], answer: Answer, *, all_engines: bool = False) -> list[Any]:
    """Everything that ``goodput plan`` prints."""
    return [
        *_head(raw, answer), *_ranking(answer), *_why(answer), *traffic_plan.front_section(answer),
        *traffic_plan.search_section(answer), *_settings(answer), *_rejected(answer), *_limits(answer),
        *_mind(answer), *_launch(answer, all_engines=all_engines), Text(), Text(_provenance(answer), style=parts.FAINT),
    ]  # fmt: skip


def _won(answer: Answer) -> Ranked | None:
    return answer.winner if answer.status != "infeasible" else None


def _head(raw: Mapping[str, Any], answer: Answer) -> list[Text]:
    hardware = raw["hardware"]
    count = hardware.get("count", 1)
    device = f"{count} × {hardware['device']}" if count != 1 else str(hardware["device"])
    first = Text.assemble((str(raw["model"]), parts.HEAD), f" on {device}, {answer.engine}")
    traffic = Text("; ".join(_traffic(name, one) for name, one in raw["workload"].items()), style=parts.FAINT)
    won = _won(answer)
    if won is None:
        verdict = Text.assemble((" infeasible ", "bold white on red"), f"  {answer.explanation.why_winner}")
    else:
        verdict = Text.assemble((f" {won.id} ", "bold white on green"), f"  {_proof(answer)}")
    return [first, traffic, Text(), verdict]


def _traffic(name: str, one: Mapping[str, Any]) -> str:
    limits = [f"{metric} ≤ {_deadline(limit)}" for metric, limit in (one.get("slo") or {}).items() if limit is not None]
    lengths = f"{_length(one.get('prompt_tokens'))} tokens in, {_length(one.get('output_tokens'))} out"
    return f"{name}: {lengths}, {_arrivals(one['arrivals'])}, {', '.join(limits) or 'no deadline'}"


def _length(given: Any) -> str:
    """A number, the kind of a distribution, or that the trace knows."""
    return "recorded" if given is None else next(iter(given)) if isinstance(given, Mapping) else str(given)


def _arrivals(given: Mapping[str, Any]) -> str:
    kind, value = next(iter(given.items()))
    if kind == "burst":
        return f"{value} at once"
    inside = ", ".join(f"{name} {one}" for name, one in value.items()) if isinstance(value, Mapping) else str(value)
    return inside if kind == "rate" else f"{kind.replace('_', ' ')} {inside}"


def _deadline(limit: Any) -> str:
    if not isinstance(limit, Mapping):
        return str(limit)
    return f"{limit['limit']} at p{limit['percentile']:g}" if "percentile" in limit else str(limit["limit"])


def _proof(answer: Answer) -> str:
    """Status and termination apart, as the solver keeps them."""
    count = f"{answer.space:,}" if answer.space < 10**7 else f"{answer.space:.1e}".replace("e+", " × 10^")
    gap = f", gap {answer.gap:.1%}" if answer.gap else ""
    by = "" if answer.solver == "named candidates" else f" by {answer.solver}"
    unsure = "; the data do not decide who is first" if answer.order_decided is False else ""
    return f"{answer.status} among {count} configurations{gap}: {answer.termination}{by}{unsure}"


def _ranking(answer: Answer) -> list[Any]:
    """A row for each configuration; nothing where a search found none."""
    won = _won(answer)
    if traffic_plan.is_simulated(answer):
        cost = (_PER_GOOD.get(answer.objective, "GPU-s/good"), lambda one: _per_good(answer, one))
        table = traffic_plan.ranking(answer, won.id if won else None, cost, lambda one: _standing(answer, one, won.id if won else None))
        return [Text(), table]
    if not answer.configurations:
        return []
    memory = answer.configurations[0].memory
    table = Table.grid(padding=(0, 1), pad_edge=False)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("id", no_wrap=True, max_width=14)
    table.add_column("    time", justify="right", no_wrap=True, min_width=9)
    what, limit = _limit_heads(memory)
    table.add_column(what, no_wrap=True, min_width=12)
    table.add_column(limit, justify="right", no_wrap=True, min_width=9)
    table.add_column(f" {_PER_GOOD.get(answer.objective, 'GPU-s/good')}", justify="right", no_wrap=True)
    table.add_column(" P(SLO)", justify="right", no_wrap=True)
    table.add_column("")
    table.add_row(*(Text(str(column.header), style=parts.FAINT) for column in table.columns))
    for one in answer.configurations:
        table.add_row(*_row(answer, one, won.id if won else None))
    return [Text(), table]


def _limit_heads(memory: Memory) -> tuple[str, str]:
    """What the bar shows, and its limit."""
    if memory.pool_limit_bytes is not None:
        return "  pool", f"of {format_bytes(memory.pool_limit_bytes)}"
    return "  memory", f"of {format_bytes(memory.limit_bytes)}"


def _row(answer: Answer, one: Ranked, won: str | None) -> list[Any]:
    used, limit = one.memory.pool_bytes, one.memory.pool_limit_bytes
    if limit is None:
        used, limit = one.memory.total_bytes, one.memory.limit_bytes
    style = "bold green" if one.id == won else ""
    return [
        Text(str(one.rank), style), Text(one.id, style), Text(format_seconds(one.time.makespan_s), style),
        Text.assemble("  ", parts.bar(used, limit)), format_bytes(used), Text(_per_good(answer, one), style),
        parts.percent(one.slo_probability), Text.assemble(" ", _standing(answer, one, won)),
    ]  # fmt: skip


def _per_good(answer: Answer, one: Ranked) -> str:
    if answer.objective == "joules_per_good_request":
        return parts.figure(one.cost.joules_per_good)
    if answer.objective == "cost":
        return parts.figure(one.cost.price_per_good)
    return parts.figure(one.cost.gpu_s_per_good)


def _standing(answer: Answer, one: Ranked, won: str | None) -> Text:
    if one.id == won:
        return Text("✓ first", style="bold green")
    marks = [("✗ " + _brief(one), parts.BAD)] if one.violations else [("✓", parts.GOOD)]
    if one.violations and one.simulated is not None and one.simulated.overload:
        marks.append((" overload", parts.BAD))
    if one.launchable[answer.engine.split()[0]] is not True:
        marks.append((" ✗ launch", "yellow"))
    return Text.assemble(*marks)


def _brief(one: Ranked) -> str:
    """Broken limits in a word each; a deadline without its class where there is only one."""
    short = {"device_memory": "memory", "kv_budget": "pool"}
    if one.simulated is not None and len(one.simulated.classes) == 1:
        short |= {v.constraint: v.constraint.rsplit(".", maxsplit=1)[-1] for v in one.violations}
    return " ".join(dict.fromkeys(short.get(v.constraint, v.constraint) for v in one.violations))


def _why(answer: Answer) -> list[Any]:
    won, why = _won(answer), answer.explanation
    if won is None:
        return []
    lines = [Text(part) for part in why.why_winner.split("; ", 1)]
    if why.binding:
        lines.append(Text("tightest limit: " + ", ".join(why.binding)))
    lines.append(Text(f"memory: {_memory_line(won)} = {_of(won.memory.total_bytes, won.memory.limit_bytes)}", parts.FAINT))
    lines += traffic_plan.why_lines(won)
    if "e2e_s" in won.intervals:
        low, high = won.intervals["e2e_s"]
        lines.append(Text(f"90 % interval of the last answer: {format_seconds(low)} to {format_seconds(high)}", parts.FAINT))
    return parts.section(f"Why {won.id}", Group(*lines))


def _of(used: int, limit: int) -> str:
    return f"{format_bytes(used)} of {format_bytes(limit)}"


def _settings(answer: Answer) -> list[Any]:
    if not answer.configurations:
        return []
    return parts.section("Settings", parts.listing(parts.settings_rows({one.id: one.settings for one in answer.configurations})))


def _rejected(answer: Answer) -> list[Any]:
    """Broken limits with their figures; a configuration that only scores worse stands in the ranking."""
    rejected = {label: text for label, text in answer.explanation.rejected.items() if not text.startswith("feasible")}
    title = "Why not the others" if _won(answer) else "Why not"
    return parts.section(title, parts.listing(rejected.items())) if rejected else []


def _mind(answer: Answer) -> list[Any]:
    """Warnings and what the winner's figures assume; the others' assumptions are in the JSON."""
    won = _won(answer)
    notes = [*answer.warnings, *(f"assumed: {text}" for text in (won.assumptions if won else ()))]
    return parts.section("Mind", parts.listing((Text("!", "yellow"), note) for note in notes)) if notes else []


def _limits(answer: Answer) -> list[Any]:
    why = answer.explanation
    shown: list[Any] = []
    if why.conflicts:
        shown += parts.section("What conflicts", parts.listing(("", text) for text in why.conflicts))
    if why.relaxations:
        rows = [(Text(one.text, "cyan"), f"then {one.winner}") for one in why.relaxations]
        title = "The smallest single change that helps" if answer.trials is None else "A single change that helps, with what was tried"
        shown += parts.section(title, parts.listing(rows))
    if why.switch_points:
        paths: dict[str, list[tuple[str, str | None]]] = {}
        for point in why.switch_points:
            paths.setdefault(point.path, []).append((point.value, point.winner))
        rows_of = [(path, _switches(points)) for path, points in paths.items()]
        shown += parts.section(
            "Where the winner changes", Group(*(piece for path, body in rows_of for piece in (Text(path, "cyan"), body)))
        )
    return shown


def _switches(points: list[tuple[str, str | None]]) -> Padding:
    rows = []
    for value, winner in points:
        label = winner if winner is not None else "nothing is feasible"
        rows.append((Text(f"from {value}"), Text(label, style="" if winner is not None else parts.FAINT)))
    return Padding(parts.listing(rows), (0, 0, 0, 2))


def _launch(answer: Answer, *, all_engines: bool) -> list[Any]:
    own, shown = answer.engine.split()[0], list[Any]()
    for name, launch in sorted(answer.launch.items(), key=lambda row: row[0] != own):
        settings = answer.configurations[0].settings
        if name == own:
            shown += _command(f"Launch {answer.configurations[0].id} on {answer.engine}", launch, settings)
        elif all_engines:
            shown += _command(f"Launch on {name}" if launch.launchable else f"{name} cannot run it whole", launch, settings)
    return shown


def _command(title: str, launch: Launch, settings: Mapping[str, Any]) -> list[Any]:
    body: list[Any] = parts.section(title, parts.Verbatim(parts.command_text(launch.command)))
    if launch.config:
        body.append(parts.Verbatim("\n" + textwrap.indent(launch.config.rstrip(), "      ")))
    notes = [note for note in launch.notes if not _is_off(note, settings)]
    return [*body, Padding(parts.listing((("·", note) for note in notes), style=parts.FAINT), (0, 0, 0, 2))]


def _is_off(note: str, settings: Mapping[str, Any]) -> bool:
    """A remark about a setting that is off (the JSON holds every remark)."""
    name = note.split(":", maxsplit=1)[0].split(" ", maxsplit=1)[0]
    return name in settings and settings[name] in (0, None, [], ())


def _provenance(answer: Answer) -> str:
    used = answer.calibration
    asked = f" (asked for {used.requested})" if used.requested != used.name else ""
    return (
        f"calibration {used.name} version {used.version}{asked} · catalogue {answer.catalogue_version} · "
        f"{answer.evaluated:,} configurations evaluated in {format_seconds(answer.elapsed_s)}"
    )


def _memory_line(one: Ranked) -> str:
    """What one configuration's memory consists of, largest first."""
    m = one.memory
    named = {
        "weights": m.weights_bytes, "KV": m.kv_bytes, "draft": m.draft_bytes, "prefetch": m.prefetch_bytes,
        "activations": m.activation_bytes, "graphs": m.graph_bytes,
    }  # fmt: skip
    return " + ".join(f"{name} {format_bytes(size)}" for name, size in sorted(named.items(), key=lambda row: -row[1]) if size)
