"""``goodput simulate`` and ``goodput budget``: one configuration under its traffic, and the step size that a gap allows."""

from __future__ import annotations

from typing import Annotated

import typer

from api.commands.plan import AsJson, Assignments, Calibration, Scenario

Requests = Annotated[int, typer.Option("--requests", metavar="N", help="Requests of a simulation, all classes together.")]
Seed = Annotated[int, typer.Option("--seed", metavar="S", min=0, max=2**31 - 1, help="Seed of arrivals, lengths and acceptance.")]
Trials = Annotated[int, typer.Option("--trials", metavar="N", help="Trials of the plan, where --config is a rank of it.")]
Config = Annotated[
    str | None,
    typer.Option("--config", metavar="NAME", help="A candidate, a rank of the plan, or engine: the engine block and its defaults."),
]
Policy = Annotated[
    str | None, typer.Option(help="fixed, continuous, chunked or prefill-first; default: the scenario's, else the engine's own.")
]


def simulate(
    scenario: Scenario,
    assignments: Assignments = None,
    config: Config = None,
    trials: Trials = 200,
    requests: Requests = 2000,
    seed: Seed = 0,
    rate: Annotated[str | None, typer.Option(metavar="RATE", help="Arrivals of all open classes together, e.g. '8 /s'.")] = None,
    policy: Policy = None,
    expected: Annotated[bool, typer.Option("--expected", help="Every speculative round emits its mean instead of a draw.")] = False,
    knee: Annotated[bool, typer.Option("--knee", help="Find the highest rate within the deadlines, with the curve around it.")] = False,
    as_json: AsJson = False,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Draw the timeline (and the curve): .png, .svg, .html.")] = None,
    calibration: Calibration = None,
) -> None:
    """Run one configuration of SCENARIO through its traffic, iteration by iteration: percentiles, goodput, KV use, the knee."""
    from api import output, scenarios, storage
    from planner.simulation.options import SimulationOptions
    from planner.simulation.run import simulate_scenario

    if plot is not None:
        output.check_plot(plot)
    raw = scenarios.read(scenario, assignments or (), calibration)
    with storage.stored_calibrations() as stored, output.bar("finding the knee" if knee else "simulating") as step:
        found = simulate_scenario(raw, SimulationOptions(
            configuration=config, trials=trials, requests=requests, seed=seed, rate=scenarios.rate(rate), policy=policy,
            expected=expected, knee=knee,
            timeline=plot is not None, progress=step, stored=stored,
        ))  # fmt: skip
    if as_json:
        output.write_json(found.answer)
    else:
        from api.views.simulation import simulation_view

        output.show(simulation_view(raw, found.answer))
    if plot is not None:
        from planner.charts.simulation import specification
        from planner.charts.style import render

        output.write_chart(plot, lambda suffix: render(specification(raw, found), suffix))


def budget(
    scenario: Scenario,
    gap: Annotated[str, typer.Option(metavar="TIME", help="Largest gap between two tokens of a running request, e.g. '50 ms'.")],
    assignments: Assignments = None,
    config: Config = None,
    trials: Trials = 200,
    requests: Requests = 2000,
    seed: Seed = 0,
    running: Annotated[int, typer.Option(metavar="N", help="Requests that decode in the same step.")] = 1,
    context: Annotated[int | None, typer.Option(metavar="TOKENS", help="Their context; default: prompt and half of the output.")] = None,
    as_json: AsJson = False,
    calibration: Calibration = None,
) -> None:
    """From the largest allowed gap to milliseconds for new tokens, and to how many of them at each cached context."""
    from api import output, scenarios, storage
    from models.units import parse_seconds
    from planner.simulation.budget import step_budget
    from planner.simulation.options import SimulationOptions

    raw = scenarios.read(scenario, assignments or (), calibration)
    with storage.stored_calibrations() as stored, output.bar("planning") as step:
        options = SimulationOptions(configuration=config, trials=trials, requests=requests, seed=seed, stored=stored, progress=step)
        answer = step_budget(raw, options, gap_s=parse_seconds(gap, "--gap"), running=running, context=context)
    if as_json:
        output.write_json(answer)
        return
    from api.views.simulation import budget_view

    output.show(budget_view(answer))


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("simulate")(simulate)
    app.command("budget")(budget)
