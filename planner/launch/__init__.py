"""From a configuration to the engines' own arguments, by engine and version.

One table for each engine and version renders every decision variable: as arguments, or as a note that says what the engine does instead.
Nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from models.catalog.engines import engine_names, load_engine
from models.describe.configuration import Configuration
from models.describe.engine import Engine, not_launchable
from planner.launch import llama_cpp, sglang, trtllm, vllm
from planner.launch.base import LaunchCommand, LaunchContext, Request, Table, merged

__all__ = ["REGISTRY", "LaunchCommand", "LaunchContext", "launch", "launch_all"]


@dataclass(frozen=True, slots=True)
class Renderers:
    """How one engine's command is made: the context first, then every variable by the version's table."""

    context: Table
    table: Callable[[str], Table]


REGISTRY: dict[str, Renderers] = {
    "llama_cpp": Renderers(llama_cpp.CONTEXT, llama_cpp.table),
    "sglang": Renderers(sglang.CONTEXT, sglang.table),
    "trtllm": Renderers(trtllm.CONTEXT, trtllm.table),
    "vllm": Renderers(vllm.CONTEXT, vllm.table),
}


def launch(configuration: Configuration, context: LaunchContext, engine: Engine) -> LaunchCommand:
    """The command that starts ``engine`` with ``configuration``; ``launchable`` False and the reasons where it cannot."""
    request = Request(configuration, context, engine)
    renderers = REGISTRY[engine.name]
    table = renderers.table(engine.rules_version)
    pieces = [render(request) for render in renderers.context.values()]
    pieces += [table[variable](request) for variable in Configuration.model_fields]
    whole = merged(pieces)
    reasons = not_launchable(configuration, engine, context.family)
    return LaunchCommand(
        engine=engine.name,
        version=engine.version,
        rules_version=engine.rules_version,
        program=engine.program,
        arguments=whole.arguments,
        config=whole.config,
        environment=whole.environment,
        notes=((engine.version_note,) if engine.version_note else ()) + whole.notes,
        launchable=not reasons,
        reasons=reasons,
    )


def launch_all(configuration: Configuration, context: LaunchContext, chosen: Engine | None = None) -> dict[str, LaunchCommand]:
    """A command for every engine of the catalogue by name; ``chosen`` gives its engine's version, the others are the newest known."""
    engines = {name: load_engine(name) for name in engine_names()}
    if chosen is not None:
        engines[chosen.name] = chosen
    return {name: launch(configuration, context, engine) for name, engine in engines.items()}
