"""``goodput advise``: what to measure next."""

from __future__ import annotations

import typer

from api.commands.plan import AsJson, Assignments, Calibration, Scenario


def advise(scenario: Scenario, assignments: Assignments = None, calibration: Calibration = None, as_json: AsJson = False) -> None:
    """Name the few runs whose result would most change the decision on SCENARIO, with the expected gain and the commands."""
    from api import output, scenarios, storage
    from api.views.advise import advice_view
    from planner.advise import advise as use_case

    raw = scenarios.read(scenario, assignments or (), calibration)
    with storage.stored_calibrations() as stored, output.progress("weighing runs"):
        found = use_case(raw, scenarios.options(time_limit=30.0, proof=False, explain=False, stored=stored))
    if as_json:
        output.write_json(found)
    else:
        output.show(advice_view(found))


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("advise")(advise)
