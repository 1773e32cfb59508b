"""``goodput what-if``: before and after side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from api.commands.plan import AsJson, Assignments, Calibration, NoProof, Scenario, TimeLimit


def what_if(
    scenario: Scenario,
    assignments: Assignments = None,
    sweep: Annotated[str | None, typer.Option(metavar="PATH=A,B,C", help="Plan at each of these values instead.")] = None,
    as_json: AsJson = False,
    calibration: Calibration = None,
    time_limit: TimeLimit = 30.0,
    no_proof: NoProof = False,
) -> None:
    """Plan SCENARIO with and without the changes of --set, or along the values of --sweep."""
    from api import output, scenarios, storage
    from models.errors import InputError
    from planner import what_if as use_case
    from planner.scenario_file import parse_assignment

    changes = [parse_assignment(text) for text in assignments or ()]
    if not changes and sweep is None:
        raise InputError("nothing to change", path="--set", way_out="write for example --set hardware.kv_budget=6GiB")
    raw = scenarios.read(scenario, (), calibration)
    with storage.stored_calibrations() as stored:
        options = scenarios.options(time_limit=time_limit, proof=not no_proof, explain=False, stored=stored)
        if sweep is not None:
            path, values = scenarios.parse_sweep(sweep)
            raw = scenarios.changed(raw, changes)
            with output.progress(f"planning {len(values)} values"):
                swept = use_case.sweep(raw, path, values, options)
            if as_json:
                return output.write_json(swept)
            from api.views.what_if import sweep_view

            return output.show(sweep_view(swept))
        with output.progress("planning twice" if "candidates" not in raw else None):
            found = use_case.what_if(raw, changes, options)
    if as_json:
        return output.write_json(found)
    from api.views.what_if import what_if_view

    return output.show(what_if_view(found))


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("what-if")(what_if)
