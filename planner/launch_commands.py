"""The winner's settings as commands: a case turned into the launch context of every engine."""

from __future__ import annotations

from pathlib import PurePath

from models import facts
from models.case import Case
from models.describe.configuration import Configuration
from planner.answer import Launch
from planner.launch import LaunchCommand, LaunchContext, launch_all
from solvers.grid import single


def launch_commands(case: Case, configuration: Configuration) -> dict[str, Launch]:
    """One command for each engine, ready to paste; what an engine cannot do stands in its notes."""
    made = launch_all(configuration, context_of(case, configuration), case.engine)
    return {name: _launch(command) for name, command in made.items()}


def context_of(case: Case, configuration: Configuration) -> LaunchContext:
    """What the flags need beside the configuration."""
    given = case.request.speculation.get(configuration.draft)
    tp = configuration.tensor_parallel
    architecture = case.weights[configuration.weight_format]
    length = case.request.prompt_tokens + case.request.output_tokens
    pool = _pool_bytes(case, configuration)
    per_token = max(facts.kv_bytes_per_token(architecture, configuration.kv_format, tp), 1)
    return LaunchContext(
        model=case.scenario.model, max_model_len=case.scenario.engine.max_model_len or length, layers=architecture.layer_count,
        layer_bytes=facts.layer_bytes(architecture, tp=tp), gpu_memory_utilization=case.scenario.engine.gpu_memory_utilization,
        kv_pool_bytes=pool, kv_pool_tokens=None if pool is None else pool // per_token, block_tokens=case.scenario.engine.block_tokens,
        draft_model=given.draft_model if given else None,
        checkpoints=_checkpoints(case), stored_format=case.stored_format,
        family=architecture.family,
    )  # fmt: skip


def _checkpoints(case: Case) -> dict[str, str]:
    """Weight format -> what the engine loads; a model that was given as a path is loaded from there, not by the name of its folder."""
    found = {name: variant.name for name, variant in case.weights.items()}
    given = PurePath(case.scenario.model)
    if case.stored_format not in found:
        return found
    if given.name == "config.json":
        found[case.stored_format] = str(given.parent)
    elif given.suffix == ".gguf" or (case.scenario.model.startswith((".", "/", "~")) and given.suffix != ".json"):
        found[case.stored_format] = case.scenario.model
    return found


def _pool_bytes(case: Case, configuration: Configuration) -> int | None:
    """KV pool left by the budget: the draft and prefetch buffers take their share, freed weights add theirs."""
    budget = case.scenario.hardware.kv_budget
    if budget is None:
        return None
    grid, _ = single(case, configuration)
    at = grid.point(grid.columns, grid.b, grid.a, grid.c, grid.o)
    used = int(at.outcome.memory.pool.flat[0]) - int(at.outcome.memory.kv.flat[0])
    return budget - used * 1024


def _launch(command: LaunchCommand) -> Launch:
    return Launch(
        command=command.command, config=command.config_text or None, launchable=command.launchable, notes=(*command.reasons, *command.notes)
    )
