"""``goodput plan``: a scenario in, ranked configurations out."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

Scenario = Annotated[str, typer.Argument(metavar="SCENARIO", help="Scenario file (YAML or JSON); - reads standard input.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change one value, e.g. hardware.kv_budget=6GiB; repeatable.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON, and nothing else.")]
Calibration = Annotated[str | None, typer.Option("--calibration", metavar="NAME", help="Use this calibration; none: specification alone.")]
TimeLimit = Annotated[
    float,
    typer.Option(
        "--time-limit", metavar="SECONDS", help="Wall time for the proof of a burst's search; over traffic the number of trials bounds it."
    ),
]
NoProof = Annotated[bool, typer.Option("--no-proof", help="Search without CP-SAT's proof.")]


def plan(
    scenario: Scenario,
    assignments: Assignments = None,
    as_json: AsJson = False,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Draw memory against time, switch map: .png, .svg, .html.")] = None,
    calibration: Calibration = None,
    time_limit: TimeLimit = 30.0,
    no_proof: NoProof = False,
    fail_if_infeasible: Annotated[bool, typer.Option("--fail-if-infeasible", help="Exit 1 when nothing meets every limit.")] = False,
    trials: Annotated[int, typer.Option(metavar="N", help="Configurations to simulate where requests arrive over time.")] = 200,
    requests: Annotated[int, typer.Option(metavar="N", help="Requests of each simulation.")] = 2000,
    seed: Annotated[int, typer.Option(metavar="S", min=0, max=2**31 - 1, help="Seed of the search and of simulated traffic.")] = 0,
    all_engines: Annotated[bool, typer.Option("--all-engines", help="Show the launch commands of every engine.")] = False,
) -> None:
    """Rank the configurations of SCENARIO: which one returns the most correct, on-time answers, why, and how to launch it."""
    from api import output, scenarios, storage
    from planner import plan as use_case

    if plot is not None:
        output.check_plot(plot)
    raw = scenarios.read(scenario, assignments or (), calibration)
    with storage.stored_calibrations() as stored:
        options = replace(
            scenarios.options(time_limit=time_limit, proof=not no_proof, stored=stored), trials=trials, requests=requests, seed=seed
        )
        with output.trials("candidates" not in raw) as step:
            answer = use_case.plan(raw, replace(options, progress=step))
        if as_json:
            output.write_json(answer)
        else:
            from api.views.plan import plan_view

            output.show(plan_view(raw, answer, all_engines=all_engines))
        if plot is not None:
            output.write_plot(plot, raw, answer, stored)
    if fail_if_infeasible and answer.winner is None:
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("plan")(plan)
