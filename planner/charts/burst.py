"""The two charts of a plan, defined once: memory against time with the feasible region (figure 8-35), and the switch map.

``specification`` is Vega-Lite for any page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planner.answer import Answer
from planner.charts.burst_data import (
    BREAKS,
    ELSEWHERE,
    FIRST,
    MEETS,
    NOTHING,
    Limits,
    SwitchMap,
    labelled,
    limits_of,
    name_places,
    points,
    shared_words,
    switch_map,
)
from planner.charts.style import GREEN, INK, QUIET, headed, on, scale, specification_of, titled
from planner.resolve import CalibrationLookup, resolve
from planner.scenario_file import parse_scenario

WIDTH, HEIGHT = 400, 320
REGION, EMPTY = "#e3f3e6", "#eef0f2"
PALETTE = ("#7a6652", "#4c7fc0", "#b8566b", "#e0963f", "#5aa77d", "#8e6bb0", "#c9a227", "#4fa3b8", "#6b8e23", "#c46a9a")
SHAPES = {FIRST: "diamond", MEETS: "circle", BREAKS: "cross", ELSEWHERE: "square"}
LONG = 16
"""Labels longer than this go to the legend alone."""


def _silent(_: float) -> None:
    return


def specification(
    raw: Mapping[str, Any], answer: Answer, stored: CalibrationLookup | None = None, step: Callable[[float], None] = _silent
) -> dict[str, Any]:  # fmt: skip
    """Both charts side by side as one Vega-Lite specification."""
    import altair as alt  # noqa: PLC0415 - a second of import that only charts need

    case = resolve(parse_scenario(raw), stored)
    found = switch_map(raw, answer, case, stored, step)
    colours = _colours(answer, found)
    first, second = memory_time(answer, limits_of(case), colours), switches(found, limits_of(case), colours)
    title = headed(
        f"{case.scenario.model.rsplit('/', maxsplit=1)[-1]} on {case.device.name}",
        f"{answer.engine}, calibration {answer.calibration.name}", answer.explanation.why_winner.split("; runner-up")[0],
    )  # fmt: skip
    return specification_of(alt.hconcat(first, second, spacing=56, title=title).resolve_scale(color="independent", shape="independent"))


def _colours(answer: Answer, found: SwitchMap) -> dict[str, str]:
    """One colour for each name in both charts."""
    names = sorted({one.id for one in answer.configurations} | {cell["winner"] for cell in found.cells if cell["winner"] != NOTHING})
    winners = {cell["winner"] for cell in found.cells}
    if not winners - {NOTHING} <= {one.id for one in answer.configurations}:  # a space: the map names families, the points are its best few
        named = [name for name in dict.fromkeys(cell["winner"] for cell in found.cells) if name != NOTHING]
        return {one.id: GREEN if one.rank == 1 else QUIET for one in answer.configurations} | _in_turn(named)
    return _in_turn(names)


def _in_turn(names: list[str]) -> dict[str, str]:
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}


def memory_time(answer: Answer, limits: Limits, colours: Mapping[str, str]) -> Any:
    """Figure 8-35: inside the shaded region both limits hold; the whisker is the 90 % interval."""
    import altair as alt  # noqa: PLC0415

    rows = points(answer)[::-1]  # the first is drawn last, on top
    right = max([limits.memory_gib * 1.15, *(row["gib"] * 1.12 for row in rows)])
    top = max([(limits.deadline_s or 0) * 1.25, *(row["high"] * 1.08 for row in rows)])
    x = alt.X("gib:Q", title=f"{limits.memory_name} (GiB)", scale=alt.Scale(domain=[0, right], nice=False))
    y = alt.Y("seconds:Q", title="time to the last answer (s)", scale=alt.Scale(domain=[0, top], nice=False))
    own = scale({row["id"]: colours[row["id"]] for row in rows})
    present = {name: shape for name, shape in SHAPES.items() if any(row["standing"] == name for row in rows)}
    data = on(rows)
    colour = alt.Color("id:N", scale=own, legend=None)
    marks = data.mark_point(filled=True, size=160, opacity=1, stroke="white", strokeWidth=1).encode(
        x=x, y=y, color=colour, shape=alt.Shape("standing:N", title=None, scale=scale(present), legend=_legend()),
        tooltip=["id:N", alt.Tooltip("gib:Q", format=".2f"), alt.Tooltip("seconds:Q", format=".2f"), "standing:N", "settings:N"],
    )  # fmt: skip
    spread = data.mark_rule(strokeWidth=2, opacity=0.6).encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=colour)
    names = on(labelled(rows[::-1], right, top, (WIDTH, HEIGHT))).mark_text(
        align=alt.expr("datum.align"), dx=alt.expr("datum.dx"), dy=alt.expr("datum.dy"), fontSize=13, fontWeight="bold"
    )
    named = names.encode(x=x, y=y, text="label:N", color=colour)
    layers = [*_region(limits, right, top), spread, marks, named]
    return alt.layer(*layers).properties(
        width=WIDTH, height=HEIGHT, title=titled("Memory against time: both limits hold in the shaded area")
    )


def _legend(columns: int = 4) -> Any:
    import altair as alt  # noqa: PLC0415

    return alt.Legend(orient="bottom", columns=columns, offset=10, symbolFillColor=QUIET)


def _region(limits: Limits, right: float, top: float) -> list[Any]:
    """The shaded rectangle and its dashed edges, each with its limit written on it."""
    high = limits.deadline_s if limits.deadline_s is not None else top
    corner = {"x": 0.0, "x2": limits.memory_gib, "y": 0.0, "y2": high}
    region = on([corner]).mark_rect(color=REGION).encode(x="x:Q", x2="x2:Q", y="y:Q", y2="y2:Q")
    lines = [_line("x", limits.memory_gib, f"{limits.memory_gib:.4g} GiB", top)]
    if limits.deadline_s is not None:
        lines.append(_line("y", limits.deadline_s, f"{limits.deadline_s:.4g} s", right))
    return [region, *lines]


def _line(axis: str, value: float, words: str, end: float) -> Any:
    """A dashed limit along the whole chart with its value at the far end."""
    at = on([{"at": value, "end": end, "words": words}])
    rule = at.mark_rule(strokeDash=[5, 4], color=QUIET)
    if axis == "x":
        text = at.mark_text(align="left", baseline="top", dx=5, dy=2, color=QUIET).encode(x="at:Q", y="end:Q", text="words:N")
        return rule.encode(x="at:Q") + text
    text = at.mark_text(align="right", baseline="bottom", dx=-2, dy=-4, color=QUIET).encode(x="end:Q", y="at:Q", text="words:N")
    return rule.encode(y="at:Q") + text


def switches(found: SwitchMap, limits: Limits, colours: Mapping[str, str]) -> Any:
    """Who wins over memory limit x output length; the ring is the scenario itself."""
    import altair as alt  # noqa: PLC0415

    full = list(dict.fromkeys(cell["winner"] for cell in found.cells if cell["winner"] != NOTHING))
    common, short = shared_words(full)
    winners = [short[name] for name in full]
    cells = [{**cell, "winner": short.get(cell["winner"], NOTHING)} for cell in found.cells]
    winners_scale = scale({short[name]: colours[name] for name in full} | {NOTHING: EMPTY})
    x = alt.Scale(type="log", domain=[1, max(cell["to_tokens"] for cell in cells)], nice=False)
    y = alt.Scale(domain=[0, found.most_gib], nice=False)
    long = any(len(name) > LONG for name in winners)
    colour = alt.Color("winner:N", title=common or None, scale=winners_scale, sort=[*winners, NOTHING], legend=_legend(2 if long else 5))
    areas = on(cells).mark_rect(strokeWidth=0.7).encode(
        x=alt.X("from_tokens:Q", title="output tokens of a request", scale=x, axis=alt.Axis(format="~s", tickCount=6)), x2="to_tokens:Q",
        y=alt.Y("from_gib:Q", title=f"limit of {limits.memory_name} (GiB)", scale=y), y2="to_gib:Q",
        color=colour, stroke=alt.Stroke("winner:N", scale=winners_scale, legend=None),
        tooltip=["winner:N", "from_tokens:Q", alt.Tooltip("from_gib:Q", format=".2f")],
    )  # fmt: skip
    at = {"x": alt.X("tokens:Q", scale=x), "y": alt.Y("gib:Q", scale=y)}
    written = [{**place, "ink": QUIET if place["winner"] == NOTHING else "white"} for place in name_places(cells, WIDTH)]
    labels = on([place for place in written if not long or place["winner"] == NOTHING])
    names = labels.mark_text(fontSize=13, fontWeight="bold").encode(**at, text="winner:N", color=alt.Color("ink:N", scale=None))
    here = on([{"tokens": found.tokens, "gib": found.memory_gib, "words": "this scenario"}])
    ring = here.mark_point(size=130, color=INK, strokeWidth=2.2, opacity=1).encode(**at)
    label = here.mark_text(dy=-14, color=INK, fontSize=12).encode(**at, text="words:N")
    title = titled("Who wins at which memory limit and output length" + (" (a sample of the space)" if found.sampled else ""))
    return alt.layer(areas, names, ring, label).properties(width=WIDTH, height=HEIGHT, title=title)
