"""The use case: which few runs would most change the decision, what they are expected to gain, and the commands that make them.

Proposed runs are such as ``goodput calibrate`` reads: closed loops without draft and shared prefix. What is believed of the times stands in
``planner.belief``, what a run is worth in ``planner.decision``.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from models.case import Case
from models.describe.configuration import Configuration, DraftSource
from models.errors import InputError
from planner.answer import CalibrationUsed
from planner.belief import slopes
from planner.decision import Floats, Option, choices, evaluated, value_of
from planner.launch_commands import launch_commands
from planner.plan import Options, plan
from planner.resolve import resolve
from planner.scenario_file import parse_scenario
from planner.traffic.decision import traffic_options
from planner.traffic.load import load
from planner.weigh import Weighed, weigh
from solvers.grid import single

MOST_RUNS = 3
_WORTHWHILE = 1e-4


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
    """What is not decided and what to measure. ``second``: the first whose order with ``first`` is open, else the runner-up;
    ``perfect_gain``: expected improvement if every parameter were known.
    """

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


def advise(raw: Mapping[str, Any], options: Options | None = None) -> Advice:
    """Plan, then ask what would change the plan."""
    options = replace(options or Options(), explain=False, prove=False)
    scenario = parse_scenario(raw)
    answer = plan(raw, replace(options, launch=False))
    if scenario.is_burst:
        case = resolve(scenario, options.stored)
        found: Sequence[Option] = choices(case, answer.configurations)
    else:
        traffic = load(scenario, options)
        case, found = traffic.case, traffic_options(traffic, answer.configurations, options)
    if not found:
        raise InputError("no configuration fits the memory, whatever its speed", path="scenario", way_out="see goodput plan for the limits")
    weighed = weigh(case, found, options.stored)
    order, alone = weighed.order, len(weighed.options) == 1
    return Advice(
        calibration=answer.calibration, first=weighed.options[0].label, second=None if alone else weighed.options[order.rival].label,
        order_probability=1.0 if order.probability is None else order.probability, decided=order.decided,
        probability_best=weighed.chances, perfect_gain=max(order.gain, 0.0), runs=() if alone else _runs(weighed),
        basis=weighed.believed.basis,
    )  # fmt: skip


def _runs(weighed: Weighed) -> tuple[Measure, ...]:
    """Greedy: the run that gains most, then the one that gains most beside it, while each still adds something."""
    belief = weighed.believed.belief
    proposals = _proposals(weighed)
    rows, gained = np.zeros((0, len(weighed.believed.names))), 0.0
    chosen: list[Measure] = []
    while proposals and len(chosen) < MOST_RUNS:
        scored = [(value_of(weighed.options, weighed.slopes, belief, np.vstack([rows, g])), i) for i, (_, _, g) in enumerate(proposals)]
        gain, at = max(scored, key=lambda pair: (pair[0], -pair[1]))
        if gain - gained < _WORTHWHILE:
            break
        option, configuration, measured = proposals.pop(at)
        rows, gained = np.vstack([rows, measured]), gain
        chosen.append(_measure(option.case, option.label, configuration, gain))
    return tuple(chosen)


def _proposals(weighed: Weighed) -> list[tuple[Option, Configuration, Floats]]:
    """Plain runs that a calibration can read: formats and graphs of each choice, no draft or shared prefix, under its load and alone."""
    proposals, seen = [], set()
    plain = {"draft": DraftSource.NONE, "draft_tokens": 0, "prefix_sharing": False, "admission_limit": None, "captured_sizes": ()}
    for one in weighed.options:
        for sequences in dict.fromkeys((min(one.configuration.max_num_seqs, one.case.requests), 1)):
            configuration = Configuration.model_validate(one.configuration.model_dump() | plain | {"max_num_seqs": sequences})
            grid, _ = single(one.case, configuration)
            at = evaluated(one.case, configuration)
            fits = all(bool(np.all(limit.holds(at))) for limit in grid.limits if limit.unit == "KiB")
            if configuration not in seen and fits:
                seen.add(configuration)
                proposals.append((one, configuration, slopes(one.case, configuration, weighed.believed.names)))
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
    known += ["--max-num-seqs", str(clients), "--max-num-batched-tokens", str(configuration.max_num_batched_tokens)]
    known += ["--engine-version", case.engine.version] if case.scenario.engine.version else []
    if case.engine.name == "llama_cpp":
        bench = ["llama-bench", "-m", model, "-p", str(r.prompt_tokens), "-n", str(r.output_tokens), "-d", f"0,{r.prompt_tokens}"]
        kept = f"{shlex.join([*bench, '-o', 'jsonl'])} > {shlex.quote(name)}.jsonl"
        return kept, shlex.join(["goodput", "import", f"{name}.jsonl", *known])
    bench = ["vllm", "bench", "serve", "--backend", "vllm" if case.engine.name == "vllm" else "openai", "--model", model]
    bench += ["--dataset-name", "random", "--random-input-len", str(r.prompt_tokens), "--random-output-len", str(r.output_tokens)]
    bench += ["--port", "30000"] if case.engine.name == "sglang" else []  # where its server listens unless told
    bench += ["--num-prompts", str(max(4 * clients, 8)), "--max-concurrency", str(clients), "--ignore-eos"]
    kept = shlex.join([*bench, "--save-result", "--result-filename", f"{name}.json"])
    return kept, shlex.join(["goodput", "import", f"{name}.json", *known])
