"""From a scenario to a ``Case``: names looked up in the catalogue and in storage, calibration chosen, assumptions named."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Protocol

from models import facts
from models.case import Case
from models.catalog.calibrations_catalog import SPECIFICATION, calibration_names, load_calibration
from models.catalog.devices import load_device
from models.catalog.engines import load_engine
from models.catalog.models_catalog import model_names
from models.describe.architecture import Architecture
from models.describe.calibration import Calibration
from models.describe.configuration import DraftSource
from models.describe.engine import Engine
from models.describe.hardware import Device
from models.describe.scenario import Scenario
from models.describe.workload import RequestClass
from models.errors import ContradictionError, GoodputError, InputError
from models.readers.load import load_architecture
from models.units import format_bytes

if TYPE_CHECKING:
    from models.calibration.posterior import Posterior


class CalibrationLookup(Protocol):
    """The stored calibrations that a plan may see."""

    def named(self, name: str, /) -> Calibration | None:
        """The newest version of ``NAME``, or version 3 of it for ``NAME@3``; None where it is not stored."""
        ...

    def newest(self) -> Iterable[Calibration]:
        """The newest version of every name, newest first."""
        ...

    def posterior(self, calibration: Calibration, /) -> Posterior | None:
        """The fit behind a stored calibration; None where it is not stored or was not fitted."""
        ...


def resolve(scenario: Scenario, stored: CalibrationLookup | None = None) -> Case:
    """Look up everything that the scenario names; what is assumed or not covered becomes a warning."""
    class_name, request = scenario.only_class()
    warnings: list[str] = []
    architecture = load_architecture(scenario.model)
    device = load_device(scenario.hardware.device)
    engine = load_engine(scenario.engine.name, scenario.engine.version)
    if engine.version_note:
        warnings.append(engine.version_note)
    _check_memory(scenario, device)
    _check_size(class_name, request)
    _check_quality(class_name, request)
    calibration = _calibration(scenario, architecture, device, engine, stored, warnings)
    weights = weight_variants(scenario.model, architecture)
    if request.weights is not None:
        warnings.append(f"weights taken as the stated {request.weights} bytes, not computed from the model's shape")
    drafts = {d: load_architecture(a.draft_model) for d, a in request.speculation.items() if a.draft_model is not None}
    _name_assumptions(scenario, calibration, warnings)
    return Case(
        scenario, class_name, request, weights, main_precision(architecture), device, engine, calibration, drafts, tuple(warnings),
    )  # fmt: skip


def _check_memory(scenario: Scenario, device: Device) -> None:
    """An instance cannot have more than its card, nor a pool more than its instance."""
    hardware = scenario.hardware
    if hardware.memory is not None and hardware.memory > device.memory_bytes:
        raise ContradictionError(
            f"is more than {device.id} has ({format_bytes(device.memory_bytes)})", path="hardware.memory",
            value=format_bytes(hardware.memory), way_out="leave it out for the whole card",
        )  # fmt: skip
    limit = hardware.memory or device.memory_bytes
    if hardware.kv_budget is not None and hardware.kv_budget > limit:
        raise ContradictionError(
            f"is more than the instance's memory ({format_bytes(limit)})", path="hardware.kv_budget",
            value=format_bytes(hardware.kv_budget), way_out="lower it, or raise hardware.memory",
        )  # fmt: skip


MOST_TOKENS = 10**11
"""Tokens of a whole burst beyond which times leave the range of exact microseconds."""


def _check_size(class_name: str, request: RequestClass) -> None:
    tokens = (request.arrivals.burst or 1) * request.samples * (request.prompt_tokens + request.output_tokens)
    if tokens > MOST_TOKENS:
        raise InputError(
            "is more than one engine could answer in years", path=f"workload.{class_name}", value=f"{tokens:.1e} tokens",
            way_out="use fewer or shorter requests",
        )  # fmt: skip


def _check_quality(class_name: str, request: RequestClass) -> None:
    quality = request.quality
    if quality is not None and quality.correct == 0 and not any(quality.correct_by_kv_format.values()):
        raise InputError("says that no answer is ever right, so none can be good", path=f"workload.{class_name}.quality.correct", value=0)


def main_precision(architecture: Architecture) -> str:
    """The format that most of the weight bytes have."""
    by_precision = facts.weight_bytes_by_precision(architecture)
    return max(by_precision, key=lambda name: by_precision[name])


@cache
def _family_names(base: str) -> tuple[str, ...]:
    short = base.rsplit("/", maxsplit=1)[-1].lower()
    return tuple(n for n in model_names() if n.split("/")[-1].lower().startswith(short + "-"))


_SUFFIXES = ("-fp8", "-nvfp4", "-awq", "-gptq-int4", "-gptq-int8", "-fp8-dynamic", "-int8", "-int4")


def weight_variants(name: str, architecture: Architecture) -> dict[str, Architecture]:
    """The model itself and its published quantised checkpoints in the catalogue, by main precision."""
    found = {main_precision(architecture): architecture}
    short = name.rsplit("/", maxsplit=1)[-1].lower()
    for other in _family_names(name):
        if other.split("/")[-1].lower().removeprefix(short) in _SUFFIXES:
            variant = load_architecture(other)
            found.setdefault(main_precision(variant), variant)
    return found


def _calibration(
    scenario: Scenario, architecture: Architecture, device: Device, engine: Engine, stored: CalibrationLookup | None, warnings: list[str]
) -> Calibration:  # fmt: skip
    """The named calibration, the best fitting one for ``latest``, or the specification with a warning."""
    name = scenario.calibration
    if name != "latest":
        found = (stored.named(name) if stored else None) or load_calibration(name)
        problem = _mismatch(found, architecture, device, engine)
        if problem is None:
            return found
        warnings.append(
            f"calibration {name} does not cover this scenario ({problem}); the specification is used instead, which is uncertain"
        )
        return load_calibration(SPECIFICATION)
    for newest in stored.newest() if stored else ():
        if _mismatch(newest, architecture, device, engine) is None:
            return newest
    for shipped in calibration_names():
        candidate = load_calibration(shipped)
        if candidate.answers_latest and _mismatch(candidate, architecture, device, engine) is None:
            return candidate
    warnings.append("no calibration covers this device, engine and model: planned from the specification alone, which is uncertain")
    return load_calibration(SPECIFICATION)


def _mismatch(calibration: Calibration, architecture: Architecture, device: Device, engine: Engine) -> str | None:
    """What a calibration was not measured on; None when it covers the scenario."""
    if calibration.device is not None and calibration.device != device.id:
        return f"it was measured on {calibration.device}, not {device.id}"
    if calibration.engine is not None and calibration.engine != engine.name:
        return f"it was measured with {calibration.engine}, not {engine.name}"
    if calibration.model is not None and not _same_shape(calibration.model, architecture):
        return f"it was measured with {calibration.model}, not {architecture.name}"
    return None


def _same_shape(name: str, architecture: Architecture) -> bool:
    """Another name for the same shape is the same model to a step-time calibration."""
    if name == architecture.name:
        return True
    try:
        measured = load_architecture(name)
    except GoodputError:
        return False
    same = ("hidden", "vocabulary", "layer_count", "heads")
    return all(getattr(measured, f) == getattr(architecture, f) for f in same) and facts.parameters(measured) == facts.parameters(
        architecture
    )


def _name_assumptions(scenario: Scenario, calibration: Calibration, warnings: list[str]) -> None:
    _, request = scenario.only_class()
    if request.quality is None:
        warnings.append("every answer is taken as correct: the scenario states no quality")
    if calibration.name == SPECIFICATION and scenario.calibration == SPECIFICATION:
        warnings.append("planned from the specification alone: " + calibration.uncertainty.source)
    for draft, given in request.speculation.items():
        measured = calibration.drafts.get(draft)
        if given.tokens_per_round is not None and measured is None and draft is not DraftSource.LOOKUP:
            warnings.append(f"draft {draft}: cost estimated from its shape, not measured by calibration {calibration.name}")
    graphs = scenario.engine.fixed.get("cuda_graphs")
    if calibration.cuda_graphs is not None and graphs is not None and graphs != calibration.cuda_graphs:
        warnings.append(
            f"calibration {calibration.name} was measured with cuda_graphs {calibration.cuda_graphs}, the scenario says {graphs}"
        )
    if calibration.request_s:
        warnings.append(
            f"a request spends {calibration.request_s * 1e3:.2g} ms outside the engine's steps (front end, first delivery); simulations "
            "include it, a burst's closed form does not"
        )
    if calibration.delivery_s:
        warnings.append(
            f"times are the engine's; a client saw {calibration.delivery_s * 1e3:.2f} ms more between two tokens at batch 1, "
            "which no deadline here includes"
        )
