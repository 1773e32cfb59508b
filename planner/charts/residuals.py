"""The residuals of fits: measured against predicted, run by run, with outliers named."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from planner.charts.style import BLUE, RED, on, render, specification_of, titled


def residual_specification(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Vega-Lite: one panel for each calibration document, predicted seconds against (measured / predicted - 1)."""
    import altair as alt  # noqa: PLC0415 - a second of import that only charts need

    panels = []
    for document in documents:
        outliers = set(document["fit"]["outliers"])
        rows = [
            {"run": name, "predicted": predicted, "error": math.expm1(residual), "standing": "outlier" if name in outliers else "fits"}
            for name, _, predicted, residual in document["points"]
        ]
        noise = document["fit"]["noise_sd"]
        band = on([{"low": math.expm1(-1.645 * noise), "high": math.expm1(1.645 * noise)}]).mark_rect(opacity=0.15)
        marks = on(rows).mark_point(filled=True, size=50).encode(
            x=alt.X("predicted:Q", scale=alt.Scale(type="log"), title="predicted (s)"),
            y=alt.Y("error:Q", axis=alt.Axis(format="+%"), title="measured against predicted"),
            color=alt.Color("standing:N", scale=alt.Scale(domain=["fits", "outlier"], range=[BLUE, RED]), title=None),
            tooltip=["run:N", "predicted:Q", alt.Tooltip("error:Q", format="+.1%")],
        )  # fmt: skip
        title = f"{document['name']}@{document['version']}: residuals of {len(rows)} measurements, 90 % of the noise shaded"
        panels.append(alt.layer(band.encode(y="low:Q", y2="high:Q"), marks).properties(width=520, height=260, title=titled(title)))
    return specification_of(alt.vconcat(*panels))


def draw_residuals(documents: Sequence[Mapping[str, Any]], kind: str) -> bytes:
    """The chart as ``.png``, ``.svg`` or self-contained ``.html``."""
    return render(residual_specification(documents), kind)
