"""Advice for people: how sure the order is, what to run, what it is expected to gain."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from api.views import parts
from planner.advise import Advice


def advice_view(found: Advice) -> list[Any]:
    """Everything that ``goodput advise`` prints."""
    used = f"calibration {found.calibration.name}@{found.calibration.version}"
    if found.second is None:
        return [Text(f"{found.first} is the only configuration that can run ({used}): no measurement changes the choice")]
    word = "is decided" if found.decided else "is not decided by the data"
    shown: list[Any] = [
        Text.assemble((f"the order of {found.first} and {found.second} {word}", parts.GOOD if found.decided else parts.BAD), f"  ({used})"),
        Text(f"{found.first} is no worse with probability {parts.percent(found.order_probability)}; from the {found.basis}"),
    ]
    chances = [(label, parts.percent(p)) for label, p in found.probability_best.items()]
    shown += parts.section("Probability of being the best", parts.listing(chances))
    shown += [Text(), Text(f"knowing every parameter would gain {found.perfect_gain:.2%} of the objective on average", parts.FAINT)]
    if not found.runs:
        return [*shown, Text("no single run is expected to change the choice")]
    for number, run in enumerate(found.runs, start=1):
        title = f"Run {number}: {run.configuration} at concurrency {run.concurrency}, {run.prompt_tokens} in, {run.output_tokens} out"
        words = f"expected gain {'with those before it ' if number > 1 else ''}{run.gain:.2%}"
        shown += [Text(), Text(title, parts.HEAD), Text(f"  {words}")]
        shown += [parts.Verbatim(parts.command_text(command) if ">" not in command else f"  {command}") for command in run.commands]
    return [*shown, Text(), Text("then: goodput calibrate, and plan again")]
