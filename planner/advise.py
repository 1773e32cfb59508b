"""The use case: which few runs would most change the decision, what they are expected to gain, and the commands that make them.

θ are the fitted parameters with their covariance, or the specification's with its widths, or a factor for each phase where the
calibration is a table; each KV format and draft that is not plain has a decode factor of its own, as wide as the noise of a run. Proposed
runs are such as ``goodput calibrate`` reads: without draft and shared prefix. See ``planner.decision``.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from models.calibration.posterior import Posterior
from models.case import Case
from models.catalog.step_prior import SINGLE, step_prior
from models.describe.calibration import Calibration, Physical
from models.describe.configuration import Configuration, DraftSource
from models.errors import InputError, NotCoveredError
from planner.answer import CalibrationUsed
from planner.decision import DECIDED, Belief, Choice, Floats, choices, evaluated, perfect, phase_seconds, value_of, variants
from planner.launch_commands import launch_commands
from planner.plan import Options, plan
from planner.resolve import resolve
from planner.scenario_file import parse_scenario
from solvers.grid import single

TOP = 6
MOST_RUNS = 3
_STEP = 0.02  # of the numeric gradient, in log space
_WORTHWHILE = 1e-4
_FIELDS = {"host_s": ("host_graph_s", "host_eager_s"), "collective_s": ("all_reduce_latency_s",)}
_PHASES = ("prefill", "decode")


class Measure(BaseModel):
    """One proposed run. ``gain``: expected improvement of the objective by deciding after it and those before it, a share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    configuration: str
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    gain: float
    commands: tuple[str, ...]


class Advice(BaseModel):
    """What is not decided and what to measure. ``perfect_gain``: expected improvement if every parameter were known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    calibration: CalibrationUsed
    first: str
    second: str | None
    order_probability: float
    decided: bool
    probability_best: dict[str, float]
    perfect_gain: float
    runs: tuple[Measure, ...]
    basis: str


@dataclass(frozen=True)
class _Believed:
    names: tuple[str, ...]
    belief: Belief
    basis: str


def advise(raw: Mapping[str, Any], options: Options | None = None, posterior: Mapping[str, Posterior] | None = None) -> Advice:
    """Plan, then ask what would change the plan. ``posterior``: fits by calibration name and version (``NAME@VERSION``)."""
    options = replace(options or Options(), explain=False, prove=False)
    scenario = parse_scenario(raw)
    if not scenario.is_burst:
        raise NotCoveredError(
            "only bursts can be advised on", path="workload", way_out="describe the peak as a burst: arrivals: {burst: N}"
        )
    answer = plan(raw, options)
    case = resolve(scenario, options.stored)
    found = _distinct(choices(case, answer.configurations))[:TOP]
    if not found:
        raise InputError("no configuration fits the memory, whatever its speed", path="scenario", way_out="see goodput plan for the limits")
    used = f"{case.calibration.name}@{case.calibration.version}"
    believed = _believe(case, (posterior or {}).get(used), found)
    slopes = [_slopes(case, one.configuration, believed.names) for one in found]
    chances, order, gain = perfect(found, slopes, believed.belief)
    return Advice(
        calibration=answer.calibration, first=found[0].label, second=found[1].label if len(found) > 1 else None, order_probability=order,
        decided=order >= DECIDED, probability_best=dict(zip((c.label for c in found), chances.tolist(), strict=True)), perfect_gain=gain,
        runs=_runs(case, found, slopes, believed) if len(found) > 1 else (), basis=believed.basis,
    )  # fmt: skip


def _distinct(found: Sequence[Choice]) -> list[Choice]:
    """Configurations whose times differ: token budgets that change nothing are one."""
    kept: dict[tuple[float, ...], Choice] = {}
    for one in found:
        kept.setdefault((round(one.prefill_s, 5), round(one.decode_s, 5), one.worth), one)
    return list(kept.values())


def _believe(case: Case, posterior: Posterior | None, found: Sequence[Choice]) -> _Believed:
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
    own = tuple(dict.fromkeys(v for c in found for v in variants(c.configuration)))
    whole = np.zeros((len(names) + len(own),) * 2)
    whole[: len(names), : len(names)] = covariance
    whole[range(len(names), len(whole)), range(len(names), len(whole))] = prior.noise_sd**2
    return _Believed((*names, *own), Belief(whole, noise), basis)


def _slopes(case: Case, configuration: Configuration, names: Sequence[str]) -> Floats:
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
    """The calibration with one parameter lowered by ``_STEP`` in log space, in both phases."""
    fields = _FIELDS.get(name, (name,))
    forms = {}
    for phase in _PHASES:
        form = getattr(calibration, phase)
        forms[phase] = form.model_copy(update={f: getattr(form, f) * float(np.exp(-_STEP)) for f in fields})
    return calibration.model_copy(update=forms)


def _runs(case: Case, found: Sequence[Choice], slopes: Sequence[Floats], believed: _Believed) -> tuple[Measure, ...]:
    """Greedy: the run that gains most, then the one that gains most beside it, while each still adds something."""
    proposals = _proposals(case, found, believed.names)
    rows, gained = np.zeros((0, len(believed.names))), 0.0
    chosen: list[Measure] = []
    while proposals and len(chosen) < MOST_RUNS:
        scored = [(value_of(found, slopes, believed.belief, np.vstack([rows, g])), i) for i, (_, _, g) in enumerate(proposals)]
        gain, at = max(scored, key=lambda pair: (pair[0], -pair[1]))
        if gain - gained < _WORTHWHILE:
            break
        label, configuration, measured = proposals.pop(at)
        rows, gained = np.vstack([rows, measured]), gain
        chosen.append(_measure(case, label, configuration, gain))
    return tuple(chosen)


def _proposals(case: Case, found: Sequence[Choice], names: Sequence[str]) -> list[tuple[str, Configuration, Floats]]:
    """Plain runs that a calibration can read: formats and graphs of each choice, no draft or shared prefix, under its load and alone."""
    proposals, seen = [], set()
    plain = {"draft": DraftSource.NONE, "draft_tokens": 0, "prefix_sharing": False, "admission_limit": None, "captured_sizes": ()}
    for one in found:
        for sequences in dict.fromkeys((min(one.configuration.max_num_seqs, case.requests), 1)):
            configuration = Configuration.model_validate(one.configuration.model_dump() | plain | {"max_num_seqs": sequences})
            grid, _ = single(case, configuration)
            at = evaluated(case, configuration)
            fits = all(bool(np.all(limit.holds(at))) for limit in grid.limits if limit.unit == "KiB")
            if configuration not in seen and fits:
                seen.add(configuration)
                proposals.append((one.label, configuration, _slopes(case, configuration, names)))
    return proposals


def _measure(case: Case, label: str, configuration: Configuration, gain: float) -> Measure:
    prompt, output = case.request.prompt_tokens, case.request.output_tokens
    return Measure(
        configuration=label, concurrency=configuration.max_num_seqs, prompt_tokens=prompt, output_tokens=output, gain=gain,
        commands=(launch_commands(case, configuration)[case.engine.name].command, *_load(case, label, configuration)),
    )  # fmt: skip


def _load(case: Case, label: str, configuration: Configuration) -> tuple[str, ...]:
    """The load test and the import of its result."""
    name = f"{label}-{configuration.max_num_seqs}"
    r, clients = case.request, configuration.max_num_seqs
    same = configuration.weight_format == case.stored_format
    model = case.scenario.model if same else case.weights[configuration.weight_format].name
    known = ["--device", case.device.id, "--model", model, "--engine", case.engine.name, "--tp", str(configuration.tensor_parallel)]
    known += ["--kv-format", configuration.kv_format.value, "--cuda-graphs", str(configuration.cuda_graphs).lower()]
    known += ["--max-num-seqs", str(clients)]
    if case.engine.name == "llama_cpp":
        bench = ["llama-bench", "-m", model, "-p", str(r.prompt_tokens), "-n", str(r.output_tokens), "-d", f"0,{r.prompt_tokens}"]
        kept = f"{shlex.join([*bench, '-o', 'jsonl'])} > {shlex.quote(name)}.jsonl"
        return kept, shlex.join(["goodput", "import", f"{name}.jsonl", *known])
    bench = ["vllm", "bench", "serve", "--backend", "vllm" if case.engine.name == "vllm" else "openai", "--model", model]
    bench += ["--dataset-name", "random", "--random-input-len", str(r.prompt_tokens), "--random-output-len", str(r.output_tokens)]
    bench += ["--num-prompts", str(max(4 * clients, 8)), "--max-concurrency", str(clients), "--ignore-eos"]
    kept = shlex.join([*bench, "--save-result", "--result-filename", f"{name}.json"])
    return kept, shlex.join(["goodput", "import", f"{name}.json", *known])
