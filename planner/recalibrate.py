"""The use case: stored runs in, a calibration with its covariance out, checked against physics; drift of new runs.

The fit is ``models.calibration.step_fit``. A calibration document holds the description that plans read (``calibration``), the posterior
(``fit``), what was measured against what is predicted (``points``), and what was not used with its reason (``unused``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.calibration.document import Scope, calibrated, from_document, to_document
from models.calibration.evidence import Evidence, from_steps, step_of
from models.calibration.posterior import Drift, Posterior, drift, interval
from models.calibration.prior import Prior
from models.calibration.step_fit import fit_steps
from models.catalog.calibrations_catalog import SPECIFICATION, load_calibration
from models.catalog.engines import load_engine
from models.catalog.step_prior import step_prior
from models.describe.calibration import Calibration, Physical, Source
from models.errors import CalibrationError, InputError
from models.facts.kv import kv_bytes_per_token
from models.kernels.step import StepModel
from planner.coverage import covered_by
from planner.observations import collective, fitted_names, material, template_of
from planner.ports import CalibrationStore, RunStore, StoredCalibration, StoredRun
from planner.relatives import Relative, borrowed, relatives_of
from planner.run_groups import Group, Key, Unused, Wanted, grouped
from planner.stored_calibrations import plain_json

_PREFILLS = ([(512, 0)], [(2048, 0)], [(8192, 0)], [(2048, 8192)])
_DECODES = tuple([(1, context)] * batch for batch in (1, 8, 32) for context in (512, 4096))


@dataclass(frozen=True)
class Fitted:
    """A calibration before it is stored. ``points``: (name, measured seconds, predicted seconds, log residual)."""

    key: Key
    calibration: Calibration
    posterior: Posterior
    points: tuple[tuple[str, float, float, float], ...]
    unused: tuple[Unused, ...]
    run_ids: tuple[int, ...]
    borrowed: tuple[str, ...]

    @property
    def document(self) -> dict[str, Any]:
        """Plain JSON for the store."""
        described = self.calibration.model_dump(mode="json", exclude={"name", "version"})
        return {
            "calibration": described, "fit": to_document(self.posterior), "points": [list(p) for p in self.points],
            "unused": [{"run": u.run, "reason": u.reason} for u in self.unused], "borrowed_from": list(self.borrowed),
        }  # fmt: skip


def recalibrate(
    runs: RunStore, calibrations: CalibrationStore, wanted: Wanted, *, name: str | None = None, today: str
) -> tuple[tuple[StoredCalibration, Fitted], ...]:  # fmt: skip
    """Fit a calibration for every wanted group of runs and store each that says something new; all are fitted before the first is stored.

    A fit that repeats the newest version of its name comes back as that version.
    """
    groups, unused = grouped(runs.list(), wanted)
    if not groups:
        why = f"; {len(unused)} runs belong to no group, run {unused[0].run}: {unused[0].reason}" if unused else ""
        raise InputError(f"no stored run fits{why}", path="runs", way_out="import runs first, or widen the choice (goodput runs)")
    if name is not None and len(groups) > 1:
        listed = "; ".join(str(g.key) for g in groups[:4])
        raise InputError(
            f"{len(groups)} groups of runs fit: {listed}", path="--name", value=name, way_out="choose one with --device, --model, --tp"
        )
    known = tuple(calibrations.newest())
    fitted = [fit_group(g, name or g.key.default_name, relatives=relatives_of(g.key, known), today=today) for g in groups]
    return tuple((_repeated(f, known) or calibrations.append(f.calibration.name, f.document, f.run_ids), f) for f in fitted)


def _repeated(fitted: Fitted, known: Sequence[StoredCalibration]) -> StoredCalibration | None:
    """The newest version of this name where it says the same of the same runs; the day of the fit does not count."""
    newest = next((s for s in known if s.name == fitted.calibration.name), None)
    same = newest is not None and newest.run_ids == fitted.run_ids and _undated(newest.document) == _undated(fitted.document)
    return newest if same else None


def _undated(document: Mapping[str, Any]) -> dict[str, Any]:
    described = plain_json(document, "calibration")
    for source in described["calibration"]["sources"]:
        del source["date"]
    return described


def fit_group(group: Group, name: str, *, relatives: Sequence[Relative], today: str) -> Fitted:
    """The posterior of one group as a calibration; no usable run is an error that says why each was not used."""
    found = material(group)
    evidence = found.evidence
    if not len(evidence):
        reasons = "; ".join(dict.fromkeys(u.reason for u in found.unused))
        raise InputError(f"no run of {group.key} can be fitted: {reasons}", path="runs", way_out="import step times or closed-loop results")
    base = load_calibration(SPECIFICATION)
    assert isinstance(base.decode, Physical)
    template = _template(group, base.decode)
    posterior = fit_steps(evidence, template, _prior(group, relatives))
    used = tuple(sorted({int(n.split()[1]) for n in evidence.names}))
    calibration = calibrated(posterior, base, _scope(group), name=name, version="0", sources=_sources(group.runs, used, today))
    calibration = _with_spread(calibration, posterior, template, group)
    covered = covered_by(run.record for run in group.runs if run.id in used)
    calibration = calibration.model_copy(update={"covered": covered})
    _check_physics(calibration)
    measured, predicted = np.exp(evidence.measured), np.exp(evidence.measured - posterior.residuals)
    points = tuple(
        (n, float(m), float(p), float(r)) for n, m, p, r in zip(evidence.names, measured, predicted, posterior.residuals, strict=True)
    )
    return Fitted(group.key, calibration, posterior, points, tuple(found.unused), used, tuple(map(str, relatives)))


def _template(group: Group, base: Physical) -> StepModel:
    ranks = group.key.tensor_parallel
    per_token = collective(group.architecture, group.device, ranks, base.link_efficiency)
    return template_of(group.architecture, group.device, ranks)._replace(collective_per_token_s=per_token)


def _prior(group: Group, relatives: Sequence[Relative]) -> Prior:
    """The specification, narrowed by what calibrations of this device and of its class say."""
    peak = group.key.tensor_parallel * group.device.memory_bandwidth_bytes_per_s
    return borrowed(relatives, step_prior(fitted_names(group), peak_bytes_per_s=peak))


def _scope(group: Group) -> Scope:
    key = group.key
    versions = {run.record.setup.engine_version for run in group.runs}
    return Scope(
        device=key.device, engine=key.engine, engine_version=versions.pop() if len(versions) == 1 else None, model=key.model,
        weight_format=key.weight_format, tensor_parallel=key.tensor_parallel, cuda_graphs=key.cuda_graphs,
        layers=group.architecture.layer_count, notes=_assumed(group),
    )  # fmt: skip


def _assumed(group: Group) -> tuple[str, ...]:
    """What the runs do not say and the fit takes for granted."""
    silent = [str(run.id) for run in group.runs if run.record.setup.cuda_graphs is None]
    if not silent or load_engine(group.key.engine).capture is None:
        return ()
    listed = ", ".join(silent[:8]) + (", …" if len(silent) > 8 else "")
    return (f"runs {listed} do not say whether they used CUDA graphs; taken as on, the engine's default (--cuda-graphs at import says)",)


def _sources(runs: Sequence[StoredRun], used: Sequence[int], today: str) -> tuple[Source, ...]:
    """One source for each file, naming its runs."""
    files: dict[str, list[StoredRun]] = {}
    for run in runs:
        if run.id in used:
            files.setdefault(run.record.source.file, []).append(run)
    return tuple(
        Source(
            what=f"{found[0].record.format}, runs {', '.join(str(r.id) for r in found[:20])}{', …' if len(found) > 20 else ''}",
            reference=f"{file} (sha256 {found[0].record.source.file_sha256[:12]})", date=found[0].record.measured_at or today,
        )
        for file, found in files.items()
    )  # fmt: skip


def _with_spread(calibration: Calibration, posterior: Posterior, template: StepModel, group: Group) -> Calibration:
    """Log standard deviation of each phase: root mean square of the predictive spread over usual steps."""
    kv = kv_bytes_per_token(group.architecture, "bf16", group.key.tensor_parallel) * group.key.tensor_parallel

    def spread(shapes: Sequence[Sequence[tuple[int, int]]]) -> float:
        asked = from_steps([step_of(s, kv_bytes_per_token=kv, seconds=1.0) for s in shapes])
        return math.sqrt(float(np.mean(interval(posterior, asked, template).log_sd ** 2)))

    found = calibration.uncertainty.model_copy(update={"prefill_log_sd": spread(_PREFILLS), "decode_log_sd": spread(_DECODES)})
    return calibration.model_copy(update={"uncertainty": found})


def _check_physics(calibration: Calibration) -> None:
    """The description's own bounds once more: no efficiency above 1, no negative time."""
    try:
        Calibration.parse(calibration.model_dump(mode="json"), "calibration")
    except InputError as problem:
        raise CalibrationError(f"the fit breaks physics: {problem}", way_out="check units and device of the runs") from problem


@dataclass(frozen=True)
class Drifted:
    """New runs against a stored calibration."""

    name: str
    version: int
    runs: tuple[int, ...]
    found: Drift


def drift_of(runs: Sequence[StoredRun], known: Iterable[StoredCalibration]) -> tuple[Drifted, ...]:
    """Each group of ``runs`` against the newest calibration of its key that was not fitted on them."""
    newest = tuple(known)
    found = []
    for group in grouped(runs)[0]:
        stored = next((s for s in newest if matches(group.key, s)), None)
        if stored is None:
            continue
        fresh = tuple(run for run in group.runs if run.id not in stored.run_ids)
        evidence: Evidence = material(Group(group.key, group.architecture, group.device, fresh)).evidence
        if len(evidence):
            base = load_calibration(SPECIFICATION).decode
            assert isinstance(base, Physical)
            seen = drift(from_document(stored.document["fit"]), evidence, _template(group, base))
            found.append(Drifted(stored.name, stored.version, tuple(run.id for run in fresh), seen))
    return tuple(found)


def matches(key: Key, stored: StoredCalibration) -> bool:
    """Whether a stored calibration is one of this key, with its posterior."""
    described = stored.document.get("calibration", {})
    names = ("device", "engine", "model", "weight_format", "tensor_parallel", "cuda_graphs")
    return "fit" in stored.document and all(described.get(n) == getattr(key, n) for n in names)
