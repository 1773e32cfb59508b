"""The use case: from a largest gap to a token budget (section 8.2.4), with the calibration behind it and its warnings.

Gap -> milliseconds left beside the decoders -> new tokens of a prompt (``models.scheduling``), for prompts cached to several shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.describe.calibration import Covered, Span
from models.errors import InputError
from models.lower_simulation import lower_simulation
from models.scheduling import MOST_TOKENS, executed_rows, largest_chunk, mixed_step_s
from models.simulation_types import SimulationInputs
from planner.answer import CalibrationUsed, Part
from planner.coverage import extrapolation
from planner.options import Options
from planner.scenario_file import parse_scenario
from planner.simulation.options import SimulationOptions
from planner.simulation.run import choose
from planner.traffic.load import Traffic, load

STATED = (0.0, 0.25, 0.5, 0.75)
"""Shares of the prompt that are cached already: the chunk shrinks as they grow."""


class Chunk(Part):
    """The most new tokens behind ``cached_tokens``, the rows that the step really runs, and its time."""

    cached_tokens: int
    new_tokens: int
    executed_rows: int
    step_s: float


class StepBudget(Part):
    """What a gap allows. ``decode_s`` is the step of the decoders alone, ``left_s`` what remains of the gap."""

    configuration: str
    engine: str
    calibration: CalibrationUsed
    gap_s: float
    delivery_s: float
    running: int
    context_tokens: int
    decode_s: float
    left_s: float
    chunks: tuple[Chunk, ...]
    warnings: tuple[str, ...]
    largest_budget: int  # max_num_batched_tokens that keeps every chunk of the longest prompt within the gap; 0: none does


def step_budget(
    raw: Mapping[str, Any], options: SimulationOptions, *, gap_s: float, running: int = 1, context: int | None = None
) -> StepBudget:  # fmt: skip
    """Raises ``InputError`` for a gap or counts that mean nothing."""
    traffic, label, inputs = _lowered(raw, options)
    request, rows = traffic.case.request, inputs.engine.draft_tokens + 1
    length = context if context is not None else request.prompt_tokens + request.output_tokens // 2
    if gap_s <= 0:
        raise InputError("must be above 0", path="--gap", value=gap_s)
    if not 0 <= running <= inputs.engine.max_num_seqs or not 0 <= length <= MOST_TOKENS:
        raise InputError(
            f"needs 0 to {inputs.engine.max_num_seqs} running requests and a context of at most {MOST_TOKENS} tokens",
            path="budget", value=(running, length),
        )  # fmt: skip
    left = gap_s - inputs.engine.delivery_s
    alone = mixed_step_s(inputs, running, length, 0, 0) if running else 0.0
    cached = sorted({int(share * request.prompt_tokens) for share in STATED} | {max(0, request.prompt_tokens - 1)})
    chunks = tuple(_chunk(inputs, running, length, h, left) for h in cached)
    least = min(one.new_tokens for one in chunks)
    return StepBudget(
        configuration=label, engine=f"{traffic.case.engine.name} {traffic.case.engine.version}",
        calibration=CalibrationUsed(
            name=traffic.case.calibration.name, version=traffic.case.calibration.version, requested=traffic.case.scenario.calibration
        ),
        gap_s=gap_s, delivery_s=inputs.engine.delivery_s, running=running, context_tokens=length, decode_s=alone, left_s=left - alone,
        chunks=chunks, warnings=(*traffic.case.warnings, *_beyond(traffic, running, length, least)),
        largest_budget=running * rows + least if least else 0,
    )  # fmt: skip


def _beyond(traffic: Traffic, running: int, context: int, new: int) -> list[str]:
    """How far such a step goes beyond what the calibration was measured on."""
    asked = Covered(
        batch=Span(least=running, most=running), context=Span(least=context, most=context), step_tokens=Span(least=new, most=new)
    )
    return extrapolation(traffic.case.calibration, asked)


def _lowered(raw: Mapping[str, Any], options: SimulationOptions) -> tuple[Traffic, str, SimulationInputs]:
    scenario = parse_scenario(raw)
    traffic = load(scenario, Options(requests=options.requests, seed=options.seed, stored=options.stored))
    label, chosen = choose(raw, scenario, traffic.case, options)
    return traffic, label, lower_simulation(traffic.case, chosen, random=False)


def _chunk(inputs: SimulationInputs, running: int, context: int, cached: int, limit_s: float) -> Chunk:
    new = largest_chunk(inputs, running, context, cached, limit_s)
    beside = running * (inputs.engine.draft_tokens + 1) if inputs.prefill == inputs.decode else 0
    spent = mixed_step_s(inputs, running, context, new, cached) if new or running else 0.0
    return Chunk(cached_tokens=cached, new_tokens=new, executed_rows=executed_rows(inputs.engine, new + beside) if new else 0, step_s=spent)
