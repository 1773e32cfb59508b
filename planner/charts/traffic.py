"""Charts of a plan over simulated traffic: the best so far over the trials, how sure each configuration is, the objectives' trade-off."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from planner.answer import Answer, Ranked, Trials
from planner.charts.labels import placed
from planner.charts.style import BLUE, FAINT, GREEN, INK, QUIET, RED, headed, on, scale, specification_of, titled

WIDTH, HEIGHT = 400, 300
FIRST, FINE, LATE = "first", "on time", "late"
STATES = {FIRST: GREEN, FINE: BLUE, LATE: RED}
NAMES = {
    "goodput": "goodput (good answers a second)", "gpu_seconds_per_good_request": "GPU-seconds for each good answer",
    "joules_per_good_request": "joules for each good answer", "cost": "cost of each good answer", "latency": "p95 answer (s)",
}  # fmt: skip


def specification(raw: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """All charts side by side as one Vega-Lite specification."""
    import altair as alt  # noqa: PLC0415 - a second of import that only charts need

    names = list(answer.configurations[0].objectives)
    charts = [certainty(answer), *([front(answer, names[0], other) for other in names[1:]] or [waiting(answer)])]
    if answer.trials is not None and answer.trials.history:
        charts.insert(0, progress(answer.trials, answer.objective))
    title = headed(
        f"{str(raw['model']).rsplit('/', maxsplit=1)[-1]} on {raw['hardware']['device']}",
        f"{answer.engine}, calibration {answer.calibration.name}", answer.explanation.why_winner.split("; runner-up")[0],
    )  # fmt: skip
    return specification_of(alt.concat(*charts, columns=3, spacing=48, title=title).resolve_scale(color="independent"))


def shown_value(objective: str, value: float) -> float:
    """An objective as people say it: what is minimised for goodput is seconds for each good answer."""
    return 1.0 / value if objective == "goodput" else value


def progress(trials: Trials, objective: str) -> Any:
    """The best feasible value so far; the dashed line is the closed form's choice under the same traffic."""
    import altair as alt  # noqa: PLC0415

    steps = [{"trial": number + 1, "best": shown_value(objective, value)} for number, value in trials.history]
    end = {"trial": trials.tried, "best": steps[-1]["best"]}
    x = alt.X("trial:Q", title="trial", scale=alt.Scale(domain=[0, trials.tried], nice=False), axis=alt.Axis(tickMinStep=1))
    y = alt.Y("best:Q", title=NAMES[objective], scale=alt.Scale(zero=False, padding=12))
    line = on([*steps, end]).mark_line(interpolate="step-after", color=GREEN, strokeWidth=2).encode(x=x, y=y)
    layers = [line, on(steps).mark_point(filled=True, size=36, color=GREEN, opacity=1).encode(x=x, y=y)]
    if trials.closed_form is not None:
        at = on([{"best": shown_value(objective, trials.closed_form), "trial": trials.tried, "words": "the closed form's choice"}])
        layers.append(at.mark_rule(strokeDash=[5, 4], color=FAINT).encode(y=y))
        layers.append(at.mark_text(align="right", dy=-7, color=QUIET, fontSize=11).encode(x=x, y=y, text="words:N"))
    words = f"Best so far of {trials.tried} trials, {trials.pruned} of them abandoned"
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=titled(words))


def certainty(answer: Answer) -> Any:
    """P(SLO) against the p95 answer: up and to the left is better; the whisker is the 90 % interval of the time."""
    import altair as alt  # noqa: PLC0415

    rows = [
        row | {"low": low, "high": high}
        for row, one in _rows(answer, lambda one: one.time.e2e_s.p95, lambda one: one.slo_probability)
        for low, high in (one.intervals.get("e2e_p95_s", (row["x"], row["x"])),)
    ]
    y = alt.Y("y:Q", title="P(SLO)", scale=alt.Scale(domain=[0, 1.05], nice=False), axis=alt.Axis(format="%", values=_TENTHS))
    return _scatter(rows, "p95 answer (s)", y, (0.0, 1.05), "How sure each is, and how long an answer takes")


_TENTHS = [i / 5 for i in range(6)]


def waiting(answer: Answer) -> Any:
    """Goodput, from zero, against the p95 first token."""
    import altair as alt  # noqa: PLC0415

    rows = [row for row, _ in _rows(answer, lambda one: one.time.ttft_s.p95, lambda one: one.throughput.goodput_per_s)]
    top = 1.12 * max((row["y"] for row in rows), default=1.0) or 1.0
    y = alt.Y("y:Q", title=NAMES["goodput"], scale=alt.Scale(domain=[0, top], nice=False))
    return _scatter(rows, "p95 first token (s)", y, (0.0, top), "Goodput and the wait for the first token")


def front(answer: Answer, name: str, other: str) -> Any:
    """One objective against another; a ring marks what no other beats in all objectives."""
    import altair as alt  # noqa: PLC0415

    rows = [row for row, _ in _rows(answer, lambda one: _value(one, other), lambda one: _value(one, name))]
    values = [row["y"] for row in rows] or [1.0]
    spread = max(max(values) - min(values), 0.01 * max(values))
    ends = (min(values) - 0.1 * spread, max(values) + 0.15 * spread)
    y = alt.Y("y:Q", title=NAMES[name], scale=alt.Scale(domain=list(ends), nice=False))
    best = [row for row in rows if row["id"] in answer.pareto_front]
    title = f"Pareto front: the {len(best)} ringed are beaten by none in everything"
    drawn = _scatter(rows, NAMES[other], y, ends, title)
    ring = on(best).mark_point(size=210, color=INK, strokeWidth=1.2).encode(x="x:Q", y="y:Q")
    return alt.layer(drawn, ring).properties(width=WIDTH, height=HEIGHT, title=titled(title))


def _value(one: Ranked, name: str) -> float | None:
    value = one.objectives[name]
    return None if value is None else shown_value(name, value)


def _rows(answer: Answer, x: Any, y: Any) -> list[tuple[dict[str, Any], Ranked]]:
    """Points of the configurations that have both values, the first last so that it is drawn on top."""
    found = []
    for one in answer.configurations[::-1]:
        at = (x(one), y(one))
        if None not in at and at[0] > 0:
            state = LATE if not one.feasible else FIRST if one.rank == 1 else FINE
            found.append(({"id": one.id, "x": at[0], "y": at[1], "state": state}, one))
    return found


def _scatter(rows: list[dict[str, Any]], title: str, y: Any, ends: tuple[float, float], words: str) -> Any:
    """Labelled points over a logarithmic time or cost."""
    import altair as alt  # noqa: PLC0415

    reach = [row[name] for row in rows for name in ("low", "x", "high") if name in row] or [1.0]
    low, high = min(reach) / 1.25, max(reach) * 1.25
    x = alt.X("x:Q", title=title, scale=alt.Scale(type="log", domain=[low, high], nice=False), axis=alt.Axis(tickCount=5, format="~g"))
    colour = alt.Color(
        "state:N", title=None, scale=scale({name: STATES[name] for name in STATES if any(row["state"] == name for row in rows)}),
        legend=alt.Legend(orient="bottom", symbolOpacity=1, offset=10),
    )  # fmt: skip
    marks = (
        on(rows)
        .mark_point(filled=True, size=110, opacity=1, stroke="white", strokeWidth=1)
        .encode(x=x, y=y, color=colour, tooltip=["id:N", "x:Q", "y:Q"])
    )
    across, up = WIDTH / math.log(high / low), HEIGHT / (ends[1] - ends[0])
    points = [(str(row["id"]), across * math.log(row["x"] / low), up * (row["y"] - ends[0])) for row in rows[::-1]]
    labels = [{**rows[::-1][one.row], "x": low * math.exp(one.x / across), **one.mark} for one in placed(points)]
    names = on(labels).mark_text(
        align=alt.expr("datum.align"), dx=alt.expr("datum.dx"), dy=alt.expr("datum.dy"), fontSize=11, color=INK
    ).encode(x=x, y=y, text="label:N")  # fmt: skip
    layers = [marks, names]
    if any("low" in row for row in rows):
        layers.insert(0, on(rows).mark_rule(opacity=0.3).encode(x=alt.X("low:Q"), x2="high:Q", y=y, color=colour))
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=titled(words))
