"""Charts of a simulated run, defined once: rows of requests over time (figures 8-5 to 8-7), pool and queue, goodput against rate.

The timeline shows the first requests; the pool and the queue the whole run; the curve appears where the knee was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.kernels.scheduler_state import PREFILL_ROW
from models.simulation_types import Records
from planner.charts.style import BLUE, FAINT, LEAF, RED, headed, on, scale, specification_of, titled
from planner.simulation.answer import KneeFound, SimulationAnswer
from planner.simulation.run import Simulated

SHOWN = 40
MOST_BANDS = 3000
WIDTH, ROW_HEIGHT = 720, 13
PREFILL, DECODE, ARRIVAL = BLUE, LEAF, RED
GIB = 2**30


def specification(raw: Mapping[str, Any], found: Simulated) -> dict[str, Any]:
    """All charts of the run as one Vega-Lite specification."""
    import altair as alt  # noqa: PLC0415 - a second of import that only charts need

    answer = found.answer
    charts = [timeline(found), *over_time(answer)]
    if answer.knee is not None:
        charts.append(curve(answer.knee))
    model = str(raw["model"]).rsplit("/", maxsplit=1)[-1]
    offered = f", {answer.offered_per_s:.4g} requests a second" if answer.offered_per_s else ""
    title = headed(
        f"{model} on {raw['hardware']['device']}: {answer.configuration}",
        f"{answer.engine}, {answer.policy} scheduling, calibration {answer.calibration.name}, seed {answer.seed}{offered}",
    )  # fmt: skip
    whole = alt.vconcat(*charts, spacing=28, title=title).resolve_scale(color="independent", shape="independent", x="independent")
    return specification_of(whole)


def bands(rows: Records, shown: int = SHOWN, most: int = MOST_BANDS) -> list[dict[str, Any]]:
    """Prefill and decode bands of the first ``shown`` requests; single steps, or joined where they would be too many to see."""
    kept = rows[rows["request"] < shown]
    kept = kept[np.lexsort((kept["start"], kept["request"]))]
    starts = np.ones(len(kept), np.bool_)
    if len(kept) > most:
        same = (kept["request"][1:] == kept["request"][:-1]) & (kept["kind"][1:] == kept["kind"][:-1])
        starts[1:] = ~(same & (kept["start"][1:] <= kept["end"][:-1] * (1 + 1e-12)))
    first = np.flatnonzero(starts)
    last = np.append(first, len(kept))[1:] - 1
    tokens = np.add.reduceat(kept["tokens"], first) if len(first) else np.zeros(0, np.int64)
    return [
        {
            "request": int(kept["request"][a]), "from": float(kept["start"][a]), "to": float(kept["end"][b]), "tokens": int(count),
            "phase": "prefill" if kept["kind"][a] == PREFILL_ROW else "decode",
        }
        for a, b, count in zip(first, last, tokens, strict=True)
    ]  # fmt: skip


def timeline(found: Simulated) -> Any:
    """One row for each request: waiting is empty, prefill blue, decode green, a triangle where it arrives."""
    import altair as alt  # noqa: PLC0415

    records = found.trial.result.records
    shown = min(SHOWN, len(records))
    steps = bands(found.trial.result.rows, shown)
    arrivals = [{"request": i, "at": float(records["arrival"][i])} for i in range(shown) if records["arrival"][i] >= 0]
    last = max([step["to"] for step in steps] + [one["at"] for one in arrivals], default=0.0) or 1.0
    axis = alt.Axis(ticks=False, domain=False, labelOverlap=True, offset=6)
    y = alt.Y("request:O", title="request", sort=list(range(shown)), axis=axis)
    x = _seconds("from:Q", last)
    bars = on(steps).mark_bar(height={"band": 0.72}, stroke="white", strokeWidth=0.4 if len(steps) < MOST_BANDS else 0).encode(
        x=x, x2="to:Q", y=y, color=_colours("phase:N", {"prefill": PREFILL, "decode": DECODE}),
        tooltip=["request:O", "phase:N", "from:Q", "to:Q", "tokens:Q"],
    )  # fmt: skip
    marks = on(arrivals).mark_point(
        shape="triangle-right", filled=True, size=42, color=ARRIVAL, opacity=1, stroke="white", strokeWidth=0.6
    ).encode(x="at:Q", y=y)  # fmt: skip
    words = f"The first {shown} requests" if shown < len(records) else "Every request"
    title = titled(f"{words}: a triangle is an arrival, an empty stretch after it is queueing")
    return alt.layer(bars, marks).properties(width=WIDTH, height=max(60, ROW_HEIGHT * shown), title=title)


def _seconds(field: str, last: float) -> Any:
    """The time axis of a panel from 0 to ``last``, whole panels alike."""
    import altair as alt  # noqa: PLC0415

    return alt.X(field, title="seconds", scale=alt.Scale(domain=[0, last * 1.005], nice=False), axis=alt.Axis(tickCount=10))


def _colours(field: str, of: dict[str, str], symbol: str = "square") -> Any:
    """Colours by name, named above the panel."""
    import altair as alt  # noqa: PLC0415

    legend = alt.Legend(orient="top", symbolType=symbol, symbolSize=70, symbolOpacity=1, symbolStrokeWidth=2, offset=4)
    return alt.Color(field, title=None, scale=scale(of), legend=legend)


def over_time(answer: SimulationAnswer) -> list[Any]:
    """KV use against the pool, and running and waiting requests, over the whole run; a sample holds for the stretch that ends with it."""
    import altair as alt  # noqa: PLC0415

    samples = [{"at": s.time_s, "gib": s.kv_bytes / GIB, "running": s.running, "waiting": s.waiting} for s in answer.samples]
    if len(samples) < 2:
        return []
    samples.insert(0, {**samples[0], "at": 0.0})
    last = max(samples[-1]["at"], answer.makespan_s)
    pool = on([{"limit": answer.pool_bytes / GIB}]).mark_rule(strokeDash=[5, 4], color=FAINT).encode(y="limit:Q")
    used = on(samples).mark_area(color=PREFILL, opacity=0.35, line={"color": PREFILL}, interpolate="step-before").encode(
        x=_seconds("at:Q", last), y=alt.Y("gib:Q", title="KV (GiB)", axis=alt.Axis(tickCount=4))
    )  # fmt: skip
    long = [{"at": s["at"], "requests": s[name], "which": name} for s in samples for name in ("running", "waiting")]
    queue = on(long).mark_line(interpolate="step-before", strokeWidth=1.5).encode(
        x=_seconds("at:Q", last), y=alt.Y("requests:Q", title="requests", axis=alt.Axis(tickCount=4)),
        color=_colours("which:N", {"running": DECODE, "waiting": ARRIVAL}, "stroke"),
    )  # fmt: skip
    first = alt.layer(used, pool).properties(width=WIDTH, height=110, title=titled("KV in use; the dashed line is the pool"))
    return [first, queue.properties(width=WIDTH, height=110, title=titled("Requests running and waiting"))]


def curve(found: KneeFound) -> Any:
    """Goodput and throughput against the rate, with the knee and its interval (figures 8-33 and 8-34)."""
    import altair as alt  # noqa: PLC0415

    long = [
        {"rate": one.rate_per_s, "value": getattr(one, f"{name}_per_s"), "which": name}
        for one in found.curve
        for name in ("throughput", "goodput")
    ]
    last = max(one.rate_per_s for one in found.curve)
    x = alt.X("rate:Q", title="arrivals a second", scale=alt.Scale(domain=[0, last * 1.02], nice=False), axis=alt.Axis(tickCount=10))
    colour = _colours("which:N", {"throughput": FAINT, "goodput": DECODE}, "stroke")
    lines = on(long).mark_line(point={"size": 30}, strokeWidth=2).encode(x=x, y=alt.Y("value:Q", title="requests a second"), color=colour)
    words = f"knee {found.rate_per_s:.3g} /s ({found.low_per_s:.3g} to {found.high_per_s:.3g})"
    at = on([{"rate": found.rate_per_s, "low": found.low_per_s, "high": found.high_per_s, "words": words}])
    span = at.mark_rect(color=ARRIVAL, opacity=0.15).encode(x=alt.X("low:Q", title="arrivals a second"), x2="high:Q")
    rule = at.mark_rule(color=ARRIVAL, strokeWidth=1.5).encode(x=x)
    text = at.mark_text(align="right", dx=-6, y=8, color=ARRIVAL, fontWeight="bold").encode(x=alt.X("low:Q"), text="words:N")
    title = titled(f"Goodput against rate; the band is the {found.confidence:.0%} interval of the knee over {found.seeds} draws")
    return alt.layer(span, lines, rule, text).properties(width=WIDTH, height=220, title=title)
