"""What all charts share: colours, type, titles, and the rendering of a Vega-Lite specification to a file."""

from __future__ import annotations

import json
from typing import Any

from models.errors import InputError

INK, FAINT, QUIET = "#24292f", "#8b949e", "#57606a"
GREEN, BLUE, RED, LEAF = "#1a7f4b", "#4c7fc0", "#b8566b", "#5aa77d"
THEME = {
    "font": "Helvetica, Arial, sans-serif", "padding": 20, "background": "white", "view": {"stroke": None},
    "axis": {
        "grid": False, "domainColor": FAINT, "tickColor": FAINT, "labelColor": QUIET, "titleColor": INK, "titleFontWeight": "normal",
        "labelFontSize": 11, "titleFontSize": 12,
    },
    "legend": {
        "labelColor": INK, "labelFontSize": 11, "labelLimit": 700, "symbolSize": 90, "titleColor": QUIET,
        "titleFontWeight": "normal", "titleLimit": 600,
    },
    "title": {"color": INK, "fontWeight": "normal"},
}  # fmt: skip


def on(rows: list[dict[str, Any]]) -> Any:
    """A chart over plain rows."""
    import altair as alt  # noqa: PLC0415 - a second of import that only charts need

    return alt.Chart(alt.Data(values=rows))  # type: ignore[no-untyped-call]


def titled(text: str) -> Any:
    """The title of one panel."""
    import altair as alt  # noqa: PLC0415

    return alt.TitleParams(text, anchor="start", frame="group", fontSize=13, offset=10)


def headed(text: str, *lines: str) -> Any:
    """The title above all panels, with quieter lines under it."""
    import altair as alt  # noqa: PLC0415

    return alt.TitleParams(
        text, anchor="start", fontSize=17, subtitleFontSize=12, subtitle=list(lines), subtitleColor=QUIET, offset=18, frame="group"
    )


def scale(of: dict[str, str]) -> Any:
    """Names to their colours or shapes."""
    import altair as alt  # noqa: PLC0415

    return alt.Scale(domain=list(of), range=list(of.values()))


def specification_of(whole: Any) -> dict[str, Any]:
    """The finished chart as Vega-Lite with the common theme."""
    described: dict[str, Any] = json.loads(whole.to_json())
    return described | {"config": THEME}


def render(whole: dict[str, Any], suffix: str) -> bytes:
    """A specification as a ``.png``, ``.svg`` or self-contained ``.html`` file."""
    import vl_convert  # noqa: PLC0415

    if suffix == ".png":
        return bytes(vl_convert.vegalite_to_png(whole, scale=2))
    if suffix == ".svg":
        return str(vl_convert.vegalite_to_svg(whole)).encode()
    if suffix == ".html":
        return str(vl_convert.vegalite_to_html(whole, bundle=True)).encode()
    raise InputError("unknown kind of chart file", path="--plot", value=suffix, way_out="end it in .png, .svg or .html")
