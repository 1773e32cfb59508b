"""What is uncertain about a plan's times, and how each configuration's phases depend on it: one belief for plans and advice.

θ are the fitted parameters with their covariance, or the specification's with its widths, or a factor for each phase where the
calibration is a table; each KV format and draft that is not plain has a decode factor of its own, as wide as the noise of a run.
G is d log (prefill, decode seconds) / dθ; see ``planner.decision`` for what is made of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from models.case import Case
from models.catalog.step_prior import SINGLE, step_prior
from models.describe.calibration import Calibration, Physical
from models.describe.configuration import Configuration
from planner.decision import Belief, Floats, evaluated, phase_seconds

if TYPE_CHECKING:
    from models.calibration.posterior import Posterior

_STEP = 0.02  # of the numeric gradient, in log space
_FIELDS = {
    "host_s": ("host_graph_s", "host_eager_s"), "collective_s": ("all_reduce_latency_s",),
    "conversion_s_per_byte": ("kv_conversion_s_per_byte",),
}  # fmt: skip
_PHASES = ("prefill", "decode")


@dataclass(frozen=True)
class Believed:
    """Names of θ, their covariance with the noise of one run, and where that comes from, in words."""

    names: tuple[str, ...]
    belief: Belief
    basis: str


def believe(case: Case, posterior: Posterior | None, configurations: Sequence[Configuration]) -> Believed:
    """θ of ``case`` under ``posterior`` (None: what its calibration states), with a factor for what sets configurations apart."""
    calibration, prior = case.calibration, step_prior(SINGLE)
    noise = prior.noise_sd
    if isinstance(calibration.prefill, Physical) and isinstance(calibration.decode, Physical):
        names, sd = prior.names, np.array(prior.sd)
        covariance = np.diag(sd**2)
        basis = "widths of the specification's parameters"
        if posterior is not None:
            names, covariance, noise = posterior.names, posterior.covariance, posterior.noise_sd
            basis = f"covariance of a fit of {posterior.runs} measurements"
    else:
        spread = calibration.uncertainty
        names, covariance = _PHASES, np.diag([spread.prefill_log_sd**2, spread.decode_log_sd**2])
        basis = f"spread of each phase as calibration {calibration.name} states it"
    own = tuple(dict.fromkeys(v for c in configurations for v in variants(c)))
    whole = np.zeros((len(names) + len(own),) * 2)
    whole[: len(names), : len(names)] = covariance
    whole[range(len(names), len(whole)), range(len(names), len(whole))] = prior.noise_sd**2
    return Believed((*names, *own), Belief(whole, noise), basis)


def variants(configuration: Configuration) -> tuple[str, ...]:
    """What sets a configuration's decode steps apart from plain ones: a KV format, a draft."""
    kv, draft = configuration.kv_format.value, configuration.draft.value
    return (*((f"KV {kv}",) if kv != "bf16" else ()), *((f"draft {draft}",) if draft != "none" else ()))


def slopes(case: Case, configuration: Configuration, names: Sequence[str]) -> Floats:
    """G of one configuration by backward differences (an efficiency of 1 has nothing above it)."""
    base = np.log(np.maximum(phase_seconds(evaluated(case, configuration)), 1e-9))
    mine = variants(configuration)
    columns = []
    for name in names:
        if name in _PHASES:
            columns.append(np.eye(2)[_PHASES.index(name)])
        elif name.startswith(("KV ", "draft ")):
            columns.append(np.array([0.0, 1.0 if name in mine else 0.0]))
        else:
            lower = replace(case, calibration=_lowered(case.calibration, name))
            columns.append((base - np.log(np.maximum(phase_seconds(evaluated(lower, configuration)), 1e-9))) / _STEP)
    return np.stack(columns, axis=1)


def _lowered(calibration: Calibration, name: str) -> Calibration:
    """The calibration with one parameter lowered by ``_STEP`` in log space, in both phases; one that plans do not read changes nothing."""
    return calibration.model_copy(update={phase: _lower(getattr(calibration, phase), name) for phase in _PHASES})


def _lower(form: Physical, name: str) -> Physical:
    plain, _, kv = name.partition("@")  # "parameter@format" holds for that KV format alone
    factor, changed = float(np.exp(-_STEP)), dict[str, object]()
    for field in _FIELDS.get(plain, (plain,)):
        value = getattr(form, field, None)
        if isinstance(value, dict) and kv in value:
            changed[field] = value | {kv: value[kv] * factor}
        elif isinstance(value, float):
            changed[field] = value * factor
    return form.model_copy(update=changed)
