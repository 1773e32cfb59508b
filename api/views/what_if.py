"""What changed: before and after side by side with the reasons, or the winner along a sweep."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from api.views import parts
from planner.answer import Answer
from planner.what_if import ConfigurationChange, Sweep, WhatIf


def what_if_view(found: WhatIf) -> list[Any]:
    """Everything that ``goodput what-if --set`` prints."""
    rows: list[tuple[str | Text, str | Text]] = [
        (one.path, Text.assemble((_written(one.before), parts.FAINT), " → ", (_written(one.after), parts.HEAD)))
        for one in found.assignments
    ]
    verdict = Text.assemble(_badge(found.after), "  ", (found.summary, parts.HEAD))
    shown: list[Any] = [parts.listing(rows), verdict, Text(), _side_by_side(found)]
    shown += parts.section("What changed and why", parts.listing((one.id, one.why) for one in found.configurations))
    shown += _relaxations(found.after)
    added = [text for text in found.after.warnings if text not in found.before.warnings]
    if added:
        shown += parts.section("Mind", parts.listing((Text("!", "yellow"), text) for text in added))
    return shown


def _written(value: Any) -> str:
    return "not set" if value is None else str(value)


def _badge(answer: Answer) -> Text:
    if answer.winner is None or answer.status == "infeasible":
        return Text(" infeasible ", style="bold white on red")
    return Text(f" {answer.winner.id} ", style="bold white on green")


def _side_by_side(found: WhatIf) -> Table:
    table = Table.grid(padding=(0, 2), pad_edge=False)
    table.add_column(no_wrap=True)
    for _ in range(6):
        table.add_column(justify="right", no_wrap=True)
    faint = ("", "rank", "", "time", "", "memory", "")
    table.add_row(*(Text(name, style=parts.FAINT) for name in faint))
    table.add_row(*(Text(name, style=parts.FAINT) for name in ("id", "before", "after", "before", "after", "before", "after")))
    for one in found.configurations:
        table.add_row(*_row(one))
    return table


def _row(one: ConfigurationChange) -> list[Text]:
    def standing(i: int) -> Text:
        if one.rank[i] is None:
            return Text(parts.NOTHING)
        style = parts.BAD if not one.feasible[i] else parts.GOOD if one.rank[i] == 1 else ""
        return Text(f"{'✓' if one.feasible[i] else '✗'} {one.rank[i]}", style=style)

    def pair(values: tuple[Any, Any], shown: Any) -> list[Text]:
        moved = values[0] != values[1]
        return [Text(shown(values[0]), parts.FAINT if moved else ""), Text(shown(values[1]), parts.HEAD if moved else "")]

    return [
        Text(one.id), standing(0), standing(1), *pair(one.makespan_s, parts.seconds), *pair(one.total_bytes, parts.size),
    ]  # fmt: skip


def _relaxations(after: Answer) -> list[Any]:
    why = after.explanation
    if not why.relaxations:
        return []
    rows = [(Text(one.text, "cyan"), f"then {one.winner}") for one in why.relaxations]
    return parts.section("The smallest single change that helps", parts.listing(rows))


def sweep_view(found: Sweep) -> list[Any]:
    """One line for each value: who wins and with what figures."""
    table = Table.grid(padding=(0, 2), pad_edge=False)
    for justify in ("left", "left", "right", "right", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    names = (found.path, "winner", "time", "memory", "GPU-s/good", "P(SLO)")
    table.add_row(*(Text(name, style=parts.FAINT) for name in names))
    before: str | None = ""
    for value, winner, answer in zip(found.values, found.winners, found.answers, strict=True):
        one = answer.winner
        new = "bold green" if winner != before else ""
        if one is None or winner is None:
            table.add_row(str(value), Text("infeasible", parts.BAD))
        else:
            table.add_row(
                str(value), Text(winner, new), parts.seconds(one.time.makespan_s), parts.size(one.memory.total_bytes),
                parts.figure(one.cost.gpu_s_per_good), parts.percent(one.slo_probability),
            )  # fmt: skip
        before = winner
    return [table]
