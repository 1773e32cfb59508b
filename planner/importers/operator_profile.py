"""Per-operator profiles (``models.readers.operator_profile``): tables of one layer become times of whole steps of the device.

The profile's own grid stays in the tables; what a fit reads are steps that cover it: decoders alone, a chunk alone, and both, wherever
the KV of the step fits the device. Several ranks: a profile holds no all-reduce, so that the specification's is added and said.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from models.calibration.operators import Link, operator_steps
from models.catalog.calibrations_catalog import SPECIFICATION, load_calibration
from models.catalog.devices import load_device
from models.describe.architecture import Architecture
from models.describe.calibration import Physical
from models.describe.hardware import Device
from models.errors import InputError
from models.facts.kv import kv_bytes_per_token
from models.facts.weights import weight_bytes
from models.readers.load import load_architecture
from models.readers.operator_profile import OperatorProfile, is_attention_header, read_operator_profile
from models.simulation_types import Floats
from planner.importers.common import Draft, text
from planner.importers.facts import set_fact, set_known_facts
from planner.records import SequenceGroup, StepKind, StepObservation

NAME = "operator profile"
_DECODERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CONTEXTS = (256, 1024, 4096, 16384)
_CHUNKS, _CACHED = (64, 256, 512, 1024, 2048), (0, 2048, 8192)
_BESIDE = tuple(itertools.product((256, 1024), (0, 2048), (16, 64, 128), (512, 2048)))


def matches(head: bytes) -> bool:
    """Whether a table begins as the attention table of a profile."""
    return is_attention_header(head.decode("utf-8", "replace").lstrip("\ufeff").partition("\n")[0])


def drafts(folder: Path | None, known: Mapping[str, str]) -> Iterator[Draft]:
    """One run of the steps that the profile in ``folder`` adds up to."""
    if folder is None:
        raise InputError("an operator profile is read from its folder", way_out="unpack the archive")
    profile = read_operator_profile(folder)
    draft = Draft(NAME)
    draft.setup["engine"] = "vllm"
    set_known_facts(draft, {k: v for k, v in profile.facts.items() if k in {"vllm_version", "model"}})
    set_fact(draft, "device", text(profile.facts.get("gpu")) or text(profile.facts.get("hardware")))
    set_fact(draft, "tensor_parallel", profile.degree)
    draft.measured_at = text(profile.facts.get("profiled_at"))
    model, device = known.get("model") or draft.setup.get("model"), known.get("device") or draft.setup.get("device")
    if model is None or device is None:
        raise InputError("the profile does not say which model and device it is of", way_out="give --model and --device")
    draft.steps.extend(_steps(profile, load_architecture(model), load_device(device)))
    if profile.degree > 1:
        draft.warnings.append("the profile holds no all-reduces: those of the specification were added")
    yield draft


def _steps(profile: OperatorProfile, architecture: Architecture, device: Device) -> Iterator[StepObservation]:
    asked = _covering(profile.attention, architecture, device, profile.degree)
    budget = int((asked[:, 0] + asked[:, 2]).max())
    link = _link(device, profile.degree) if profile.degree > 1 else None
    seconds = operator_steps(profile, architecture, budget=budget, device=device, link=link).seconds(asked)
    for (chunk, cached, decoders, context), time in zip(asked.tolist(), seconds.tolist(), strict=True):
        decode = SequenceGroup(sequences=int(decoders), new_tokens=decoders, context_tokens=decoders * context) if decoders else None
        prefill = SequenceGroup(sequences=1, new_tokens=chunk, context_tokens=cached) if chunk else None
        kind = StepKind.DECODE if prefill is None else StepKind.PREFILL if decode is None else StepKind.MIXED
        groups = tuple(group for group in (prefill, decode) if group is not None)
        yield StepObservation(kind=kind, groups=groups, seconds=time, includes_host=False)


def _covering(points: Floats, architecture: Architecture, device: Device, ranks: int) -> Floats:
    """Steps (chunk, cached, decoders, context) inside what was measured and what the device can hold."""
    steps = [(0, 0, n, x) for n, x in itertools.product(_DECODERS, _CONTEXTS)]
    steps += [(c, h, 0, 0) for c, h in itertools.product(_CHUNKS, _CACHED)] + list(_BESIDE)
    wanted = np.array(steps, np.float64)
    room = device.memory_bytes - weight_bytes(architecture, tp=ranks)
    held = (wanted[:, 0] + wanted[:, 1] + wanted[:, 2] * wanted[:, 3]) * kv_bytes_per_token(architecture, "bf16", ranks)
    inside = (wanted <= points[:, :4].max(axis=0)).all(axis=1) & (held <= room)
    found: Floats = wanted[inside]
    return found


def _link(device: Device, ranks: int) -> Link:
    """The all-reduce that plans assume before anything is measured."""
    form: Any = load_calibration(SPECIFICATION).decode
    assert isinstance(form, Physical)
    rate = device.gpu_link_bytes_per_s or device.host_link_bytes_per_s
    if rate is None:
        raise InputError("no link between devices is known", path="device", value=device.id)
    return Link(rate * form.link_efficiency, form.all_reduce_latency_s / (2 * (ranks - 1)))
