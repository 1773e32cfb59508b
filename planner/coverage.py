"""What measured runs cover, and how far a plan or a simulation goes beyond that: batch, context, prompt, new tokens of a step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from models.case import Case
from models.describe.calibration import Calibration, Covered, EfficiencyTable, Span
from models.describe.configuration import Configuration
from models.simulation_types import SimulationResult, Status
from planner.records import RunRecord, ServingObservation, StepKind, StepObservation, Workload

SAME = 1.05
"""Factors up to this count as inside."""
WORDS = {
    "batch": "batches of {} sequences", "context": "contexts of {} tokens", "prompt": "prompts of {} tokens",
    "step_tokens": "steps of {} new tokens",
}  # fmt: skip
Values = dict[str, list[float]]


def covered_by(records: Iterable[RunRecord]) -> Covered:
    """The spans of everything that was measured."""
    values: Values = {name: [] for name in Covered.model_fields}
    for record in records:
        for step in record.steps:
            _take_step(values, step)
        for load in record.serving:
            _take_load(values, load, record.workload)
    return Covered(**{name: _span(found) for name, found in values.items()})


def _take_step(values: Values, step: StepObservation) -> None:
    decoding = step.kind in (StepKind.DECODE, StepKind.VERIFY)
    for group in step.groups:
        new, context = group.new_tokens / group.sequences, (group.context_tokens or 0.0) / group.sequences
        if decoding or new <= 1:
            values["batch"].append(group.sequences)
            if group.context_tokens is not None:
                values["context"].append(context)
        else:
            values["prompt"].append(context + new)
            values["step_tokens"].append(group.new_tokens / step.parts)


def _take_load(values: Values, load: ServingObservation, workload: Workload) -> None:
    prompt, output = workload.prompt_tokens, workload.output_tokens
    together = workload.concurrency or load.in_flight
    if together is not None:
        values["batch"].append(float(together))
    if prompt is not None:
        values["prompt"].append(prompt)
        values["step_tokens"].append(prompt)
        values["context"] += [prompt, prompt + (output or 0.0)]


def _span(values: list[float]) -> Span | None:
    return Span(least=min(values), most=max(values)) if values else None


def known_of(calibration: Calibration) -> Covered:
    """What a calibration states, or the points of its table of prefill efficiencies."""
    if calibration.covered is not None:
        return calibration.covered
    if isinstance(calibration.prefill, EfficiencyTable):
        return Covered(prompt=_span([float(point.prompt) for point in calibration.prefill.points]))
    return Covered()


def asked_of_run(result: SimulationResult) -> Covered:
    """What a simulated run went through, without requests that never ran."""
    ran = np.isin(result.records["status"], (Status.FINISHED, Status.PENDING))
    prompt, output = result.requests.prompt[ran], result.requests.output[ran]
    if not len(prompt):
        return Covered()
    running = max(1.0, float(result.samples["running"].max(initial=0)))
    return Covered(
        batch=Span(least=1.0, most=running), context=_span([float(prompt.min()), float((prompt + output).max())]),
        prompt=_span([float(prompt.min()), float(prompt.max())]),
        step_tokens=Span(least=1.0, most=float(min(result.engine.token_budget, prompt.sum()))),
    )  # fmt: skip


def asked_of_burst(case: Case, configuration: Configuration) -> Covered:
    """What a burst in closed form goes through at its fullest."""
    request = case.request
    together = min(configuration.max_num_seqs, case.requests * request.samples)
    prompt, last = float(request.prompt_tokens), float(request.prompt_tokens + request.output_tokens)
    return Covered(
        batch=Span(least=together, most=together), context=Span(least=prompt, most=last), prompt=Span(least=prompt, most=prompt),
        step_tokens=Span(least=1.0, most=min(float(configuration.max_num_batched_tokens), case.requests * prompt)),
    )  # fmt: skip


def extrapolation(calibration: Calibration, asked: Covered) -> list[str]:
    """One warning for each quantity that leaves what the calibration was measured on, with the distance as a factor.

    Small batches, short contexts and small steps within a run are no extrapolation of their own: only their upper ends count.
    """
    known, found = known_of(calibration), []
    for name, words in WORDS.items():
        inside, wanted = getattr(known, name), getattr(asked, name)
        if inside is None or wanted is None:
            continue
        factor, side = inside.distance(wanted)
        if factor > SAME and (side == "above" or name == "prompt"):
            value = wanted.most if side == "above" else wanted.least
            what = words.format(f"{inside.least:,.0f} to {inside.most:,.0f}")
            found.append(
                f"calibration {calibration.name} was measured on {what}; {value:,.0f} here is {factor:.3g} times {side} that: extrapolated"
            )
    return found
