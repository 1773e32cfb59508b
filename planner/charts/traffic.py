"""Charts of a plan over simulated traffic: the best value over the trials, and where configurations stand between goodput and delay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.answer import Answer, Trials
from planner.charts.style import GREEN, INK, QUIET, headed, on, specification_of, titled

WIDTH, HEIGHT = 400, 300
METRICS = {"ttft_s": "p95 first token (s)", "e2e_s": "p95 answer (s)"}


def specification(raw: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """All charts side by side as one Vega-Lite specification."""
    import altair as alt  # noqa: PLC0415 - a second of import that only charts need

    charts = [standing(answer, name, title) for name, title in METRICS.items()]
    if answer.trials is not None and answer.trials.history:
        charts.insert(0, progress(answer.trials, answer.objective))
    title = headed(
        f"{str(raw['model']).rsplit('/', maxsplit=1)[-1]} on {raw['hardware']['device']}",
        f"{answer.engine}, calibration {answer.calibration.name}", answer.explanation.why_winner.split("; runner-up")[0],
    )  # fmt: skip
    return specification_of(alt.hconcat(*charts, spacing=48, title=title))


def progress(trials: Trials, objective: str) -> Any:
    """The best feasible value so far; the dashed line is the closed form's choice, simulated."""
    import altair as alt  # noqa: PLC0415

    steps = [{"trial": number + 1, "best": value} for number, value in trials.history]
    steps.append({"trial": trials.tried, "best": trials.history[-1][1]})
    y = alt.Y("best:Q", title=objective.replace("_", " "), scale=alt.Scale(zero=False))
    layers = [
        on(steps).mark_line(interpolate="step-after", color=GREEN, point=True).encode(
            x=alt.X("trial:Q", title="trial", scale=alt.Scale(domain=[0, trials.tried], nice=False)), y=y
        )
    ]  # fmt: skip
    if trials.closed_form is not None:
        layers.append(on([{"best": trials.closed_form}]).mark_rule(strokeDash=[5, 4], color=QUIET).encode(y="best:Q"))
    words = f"{trials.tried} trials, {trials.pruned} abandoned; dashed: the closed form's choice"
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=titled(words))


def standing(answer: Answer, metric: str, title: str) -> Any:
    """Goodput against the 95th percentile of a time; the whisker is its 90 % interval."""
    import altair as alt  # noqa: PLC0415

    key = metric.replace("_s", "_p95_s")
    rows = []
    for one in answer.configurations:
        value = getattr(one.time, metric).p95
        if value is not None:
            low, high = one.intervals.get(key, (value, value))
            state = "first" if one.rank == 1 and one.feasible else "on time" if one.feasible else "late"
            rows.append({"id": one.id, "goodput": one.throughput.goodput_per_s, "at": value, "low": low, "high": high, "state": state})
    colour = alt.Color(
        "state:N", title=None, scale=alt.Scale(domain=["first", "on time", "late"], range=[GREEN, "#4c7fc0", "#b8566b"]),
        legend=alt.Legend(orient="bottom"),
    )  # fmt: skip
    x = alt.X("at:Q", title=title, scale=alt.Scale(type="log", nice=False, padding=12))
    y = alt.Y("goodput:Q", title="goodput (requests a second)", scale=alt.Scale(zero=False, padding=14))
    marks = on(rows).mark_point(filled=True, size=110, opacity=1).encode(x=x, y=y, color=colour, tooltip=["id:N", "at:Q", "goodput:Q"])
    spread = on(rows).mark_rule(opacity=0.35).encode(x=alt.X("low:Q"), x2="high:Q", y=y, color=colour)
    names = on(rows).mark_text(dx=9, dy=-8, fontSize=11, color=INK).encode(x=x, y=y, text="id:N")
    return alt.layer(spread, marks, names).properties(width=WIDTH, height=HEIGHT, title=titled(f"Goodput against {title[:-4]}"))
