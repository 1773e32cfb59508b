"""``goodput calibrate``, ``goodput calibrations`` and ``goodput calibration show``: from stored runs to what plans use."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from api.commands.plan import AsJson


def calibrate(
    device: Annotated[str | None, typer.Option(help="Only runs of this device.")] = None,
    model: Annotated[str | None, typer.Option(help="Only runs of this model.")] = None,
    engine: Annotated[str | None, typer.Option(help="Only runs of this engine.")] = None,
    tp: Annotated[int | None, typer.Option(min=1, help="Only runs of this many tensor-parallel ranks.")] = None,
    exclude: Annotated[list[int] | None, typer.Option(metavar="RUN", help="Leave this run out; repeatable.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the calibration; default: made of device, engine and model.")] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Draw the residuals: .png, .svg, .html.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fit the step model to the stored runs of each device, engine and model; a fit that says something new is a new version."""
    from api import output, storage
    from api.views.calibrations import fitted_document, fitted_view
    from planner.recalibrate import recalibrate
    from planner.run_groups import Wanted

    if plot is not None:
        output.check_plot(plot)
    wanted = Wanted(device, engine, model, tp, frozenset(exclude or ()))
    today = datetime.now(UTC).date().isoformat()
    with storage.database() as opened, output.progress("fitting"):
        before = opened.calibrations.horizon()
        found = recalibrate(opened.runs, opened.calibrations, wanted, name=name, today=today)
    documents = [fitted_document(stored, fitted, new=stored.number > before) for stored, fitted in found]
    if as_json:
        output.write_json(documents)
    else:
        output.show([part for document in documents for part in fitted_view(document)])
    if plot is not None:
        from planner.charts.residuals import draw_residuals

        output.write_chart(plot, lambda kind: draw_residuals(documents, kind))


def calibrations(as_json: AsJson = False) -> None:
    """List the calibrations: those that ship with goodput and every stored version."""
    from api import output
    from api.views.calibrations import calibrations_view

    rows = _rows()
    if as_json:
        output.write_json(rows)
    else:
        output.show(calibrations_view(rows))


def _rows() -> list[dict[str, Any]]:
    from api import storage
    from api.views.calibrations import shipped_row, stored_row
    from models.catalog.calibrations_catalog import calibration_names, load_calibration

    rows = [shipped_row(load_calibration(one)) for one in calibration_names()]
    if storage.exists():
        with storage.database() as opened:
            rows += [stored_row(one) for one in opened.calibrations.list()]
    return rows


def show(
    name: Annotated[str, typer.Argument(metavar="NAME[@VERSION]", help="A calibration of goodput calibrations.")],
    as_json: AsJson = False,
) -> None:
    """Show one calibration: parameters, spread, sources, residuals and what was not used."""
    from api import output
    from api.views.calibrations import one_view

    document = _one(name)
    if as_json:
        output.write_json(document)
    else:
        output.show(one_view(document))


def _one(name: str) -> dict[str, Any]:
    from api import storage
    from models.catalog.calibrations_catalog import calibration_names, load_calibration
    from models.errors import InputError

    if name in calibration_names():
        shipped = load_calibration(name)
        return {"name": shipped.name, "version": shipped.version, "calibration": shipped.model_dump(mode="json")}
    plain, at, version = name.partition("@")
    if at and not version.isdecimal():
        raise InputError("is not a version", path="NAME", value=name, way_out="write NAME@NUMBER")
    if not storage.exists():
        load_calibration(name)  # says which names there are
    with storage.database() as opened:
        stored = opened.calibrations.get(plain, int(version) if at else None)
    return {"name": stored.name, "version": str(stored.version), "created_at": stored.created_at, "runs": list(stored.run_ids),
            **stored.document}  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("calibrate")(calibrate)
    app.command("calibrations")(calibrations)
    group = typer.Typer(no_args_is_help=True, help="One calibration.", rich_markup_mode=None)
    group.callback()(lambda: None)
    group.command("show")(show)
    app.add_typer(group, name="calibration")
