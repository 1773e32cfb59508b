"""From stored runs to what a step model can be fitted on, in bytes and FLOPs of the model that ran.

Notation of ``models.kernels.step``. Pairs are attention FLOPs / f_q, so that windows and indexers count for what they compute.
A decode row reads the context before it; a chunk of c tokens after h cached ones reads h + c / 2 on average (as plans assume).
What cannot be read as a step or a closed loop is named with its reason, never dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from models.calibration.evidence import Evidence, StepObservation, from_serving, joined
from models.calibration.evidence import ServingObservation as ClosedLoop
from models.calibration.phases import Phase, from_phases
from models.calibration.served_run import ServedRun, from_runs
from models.calibration.template import step_template
from models.catalog.engines import load_engine
from models.catalog.step_prior import SINGLE
from models.describe.architecture import Architecture
from models.describe.configuration import KvFormat
from models.describe.hardware import Device
from models.errors import CalibrationError, GoodputError, NotCoveredError
from models.facts.formats import kv_format
from models.facts.reads import context_read_bytes, row_attention_flops, state_read_bytes
from models.kernels.step import StepModel
from models.lower import main_peak
from planner.ports import StoredRun
from planner.records import RunRecord, SequenceGroup, ServingObservation, StepKind, Workload
from planner.records import StepObservation as Measured
from planner.run_groups import Group, Unused
from planner.served_runs import MICRO_BATCH, Served, repeatable, served_run, typical


@dataclass
class Material:
    """What a group's runs say; ``evidence`` is empty when nothing could be used."""

    phases: list[Phase] = field(default_factory=list)
    runs: list[ServedRun] = field(default_factory=list)
    loops: list[ClosedLoop] = field(default_factory=list)
    unused: list[Unused] = field(default_factory=list)

    @property
    def evidence(self) -> Evidence:
        parts = [from_phases(self.phases)] if self.phases else []
        parts += [from_runs(self.runs)] if self.runs else []
        parts += [from_serving(self.loops)] if self.loops else []
        return joined(parts) if parts else from_phases([])


def template_of(architecture: Architecture, device: Device, tensor_parallel: int) -> StepModel:
    """The step model at its floor, at the peak that plans use for this model on this device."""
    precision = main_peak(device, architecture)
    template = step_template(architecture, device, precision=precision, tensor_parallel=tensor_parallel)
    return template._replace(flops_per_pair=max(template.flops_per_pair, 1.0))


def material(group: Group) -> Material:
    """Phases and closed loops of every run of ``group``."""
    found = Material()
    key = group.key
    template = template_of(group.architecture, group.device, key.tensor_parallel)
    shape = _Shape(Served(group.architecture, group.device, load_engine(key.engine), key.tensor_parallel), template)
    for run in group.runs:
        _take(run, shape, found)
    return found


@dataclass(frozen=True)
class _Shape:
    served: Served
    template: StepModel

    def tiled_from(self, stored: str) -> int:
        """New rows from which attention over a cache in ``stored`` runs its kernel for long chunks; 0 where there is but one."""
        return self.served.engine.tiled_from(self.served.device.architecture, configurable(stored))

    def read_bytes(self, tokens: int, stored: str) -> int:
        """Bytes of KV and state that all ranks read for a row over ``tokens`` of context."""
        architecture, ranks = self.served.architecture, self.served.ranks
        return ranks * (context_read_bytes(architecture, tokens, stored, ranks) + state_read_bytes(architecture, ranks))

    def step(self, groups: Sequence[SequenceGroup], heads: float, stored: str) -> StepObservation:
        """One execution batch of ``groups`` (new and cached tokens are totals over each group)."""
        pairs, short, read, tiled = 0.0, 0.0, 0.0, self.tiled_from(stored)
        for group in groups:
            assert group.context_tokens is not None
            new, cached = group.new_tokens / group.sequences, group.context_tokens / group.sequences
            middle = cached + (new + 1) / 2
            own = group.new_tokens * row_attention_flops(self.served.architecture, middle) / self.template.flops_per_pair
            pairs, short = pairs + own, short + own * (new < tiled)
            context = round(cached + (new / 2 if new > 1 else 1))
            one = context_read_bytes(self.served.architecture, context, stored, self.served.ranks) + state_read_bytes(
                self.served.architecture, self.served.ranks
            )
            read += group.sequences * self.served.ranks * one
        sequences = float(sum(group.sequences for group in groups))
        return StepObservation(sum(group.new_tokens for group in groups), heads, pairs, float(read), sequences, 1.0, short_pairs=short)

    def batches(self, groups: Sequence[SequenceGroup], rows: int) -> list[tuple[SequenceGroup, ...]]:
        """Execution batches of one step: all together, or (llama.cpp) the decoders and each prompt's ``rows`` apart."""
        if not self.served.engine.separate_batches:
            return [tuple(groups)]
        decoders = tuple(g for g in groups if g.new_tokens == g.sequences)
        found = [decoders] if decoders else []
        for group in groups:
            if group.new_tokens > group.sequences:
                found += _chunks([group], math.ceil(group.new_tokens / rows), rows)
        return found

    def kv_per_token(self, context: float, stored: str) -> float:
        """Bytes that a row reads for each token of ``context``."""
        tokens = max(round(context), 1)
        return self.read_bytes(tokens, stored) / tokens


def _take(run: StoredRun, shape: _Shape, found: Material) -> None:
    record, label = run.record, f"run {run.id}"
    try:
        stored = kv_format(record.setup.kv_format or "bf16").name
        configurable(stored)
    except GoodputError as error:
        found.unused.append(Unused(run.id, str(error)))
        return
    for number, step in enumerate(record.steps, start=1):
        name = label if len(record.steps) == 1 else f"{label} step {number}"
        try:
            found.phases.append(_phase(step, record, shape, stored, name))
        except GoodputError as error:
            found.unused.append(Unused(run.id, str(error)))
    for number, seen in enumerate(record.serving, start=1):
        name = label if len(record.serving) == 1 else f"{label} window {number}"
        try:
            notes = _load_test(seen, record, shape, stored, name, found)
        except GoodputError as error:
            found.unused.append(Unused(run.id, str(error)))
            continue
        found.unused += [Unused(run.id, note) for note in notes]
    if record.memory and not (record.steps or record.serving):
        found.unused.append(Unused(run.id, "memory only: it says nothing of times"))


def _phase(step: Measured, record: RunRecord, shape: _Shape, stored: str, name: str) -> Phase:
    drafting = record.setup.draft not in (None, "none") and step.kind is not StepKind.VERIFY
    if drafting:
        raise NotCoveredError("a step with a draft beside it is not the model's alone", path=name, value=record.setup.draft)
    groups = _known(step, name)
    rows = record.setup.flags.get("n_ubatch")
    stated = rows is not None and rows.isdecimal() and shape.served.engine.separate_batches
    micro = int(rows) if rows is not None and stated else MICRO_BATCH
    chunks = shape.batches(groups, micro) if stated or step.parts == 1 else list(_chunks(groups, step.parts))
    steps = []
    for index, chunk in enumerate(chunks):
        emits = index == len(chunks) - 1 or all(g.new_tokens == g.sequences for g in chunk)
        heads = sum(g.new_tokens for g in chunk) if step.kind is StepKind.VERIFY else float(sum(g.sequences for g in chunk)) * emits
        steps.append(shape.step(chunk, heads, stored))
    return Phase(tuple(steps), step.seconds, name, step.includes_host, configurable(stored))


def _known(step: Measured, name: str) -> tuple[SequenceGroup, ...]:
    """Groups with their context; a sum over all sequences is spread evenly where only that is known."""
    if all(group.context_tokens is not None for group in step.groups):
        return step.groups
    if step.resident_tokens is None:
        raise NotCoveredError("the context of the step is not known, so its reads are not either", path=name)
    share = step.resident_tokens / step.sequences
    return tuple(g if g.context_tokens is not None else g.model_copy(update={"context_tokens": share * g.sequences}) for g in step.groups)


def _chunks(groups: Sequence[SequenceGroup], parts: int, rows: int = 0) -> Iterator[tuple[SequenceGroup, ...]]:
    """The steps of a prefill in ``parts`` chunks, of ``rows`` each where that is known: all of its sequences advance alike."""
    for index in range(parts):
        chunk = []
        for g in groups:
            size = rows or math.ceil(g.new_tokens / parts)
            new = min(size, g.new_tokens - index * size)
            if new > 0:
                before = (g.context_tokens or 0.0) + index * size
                chunk.append(g.model_copy(update={"new_tokens": new, "context_tokens": before}))
        if chunk:
            yield tuple(chunk)


def _load_test(
    seen: ServingObservation, record: RunRecord, shape: _Shape, stored: str, name: str, found: Material
) -> list[str]:  # fmt: skip
    """Simulated where it is known how its requests arrived, else a closed form of its time per output token; what is not used."""
    load = record.workload
    if repeatable(record) and load.prompt_tokens is not None and load.output_tokens is not None:
        per_token = shape.kv_per_token(load.prompt_tokens + load.output_tokens / 2, stored)
        read = served_run(seen, record, shape.served, configurable(stored), per_token, name)
        found.runs.append(read.run)
        return read.unused
    loop, note = _loop(seen, record, shape, stored, name)
    found.loops.append(loop)
    return [note] if note else []


def _loop(seen: ServingObservation, record: RunRecord, shape: _Shape, stored: str, name: str) -> tuple[ClosedLoop, str]:
    """Time per output token of a load whose arrivals are not known, beside the clients that Little's law counts; what is not used."""
    load, setup = record.workload, record.setup
    if setup.draft not in (None, "none"):
        raise NotCoveredError("speculation under a load whose arrivals are not known", path=name, value=setup.draft)
    if load.prompt_tokens is None or load.output_tokens is None or load.output_tokens < 2:
        raise NotCoveredError("prompt and output lengths (of two tokens or more) are not known", path=name)
    table = seen.tpot if typical(seen.tpot) else seen.itl
    statistic = typical(table)
    if statistic is None:
        raise NotCoveredError("it states no time that a closed form predicts without its arrivals", path=name)
    tpot = table[statistic]
    prompt, output = round(load.prompt_tokens), round(load.output_tokens)
    return ClosedLoop(
        concurrency=_running(seen, load, tpot, name), prompt=max(prompt, 1), output=output, tpot_s=tpot, source=name,
        kv_bytes_per_token=shape.kv_per_token(prompt + output / 2, stored), slots=float(setup.max_num_seqs or math.inf),
        kv_format=configurable(stored),
    ), f"{name}: TTFT not used, its queue depends on how requests arrived" if seen.ttft else ""  # fmt: skip


def _running(seen: ServingObservation, load: Workload, tpot_s: float, name: str) -> float:
    """Mean requests that decode together: X (n - 1) TPOT (Little's law on that part of a request, section 8.6.1); none that wait."""
    assert load.output_tokens is not None
    rate = seen.finished_per_s(load.output_tokens)
    if rate is None and seen.in_flight is not None and (e2e := seen.e2e.get("mean")):
        rate = seen.in_flight / e2e
    if rate is not None:
        return max(rate * (load.output_tokens - 1.0) * tpot_s, 1.0)
    if seen.in_flight is not None:
        return max(seen.in_flight, 1.0)
    raise NotCoveredError("how many requests ran together is not known", path=name)


def configurable(stored: str) -> KvFormat:
    """The format that a configuration would name: all 16-bit floats are one. One that it cannot name is an error."""
    name = "bf16" if stored == "fp16" else stored
    if name not in set(KvFormat):
        raise NotCoveredError("no configuration names this KV format", path="kv_format", value=stored)
    return KvFormat(name)


def fitted_names(group: Group) -> tuple[str, ...]:
    """Parameters that are fitted: of the step, of links where there are some (their time a token follows from the bandwidth), and of
    each KV format that the runs used: what a byte costs beyond plain reading, and its pairs where attention has a kernel for few rows (it
    reads head by head: decoders wait for their bytes, which further rows of a sequence find in the processor's cache).
    """
    found = [*SINGLE, *(["collective_s"] if group.key.tensor_parallel > 1 else [])]
    found += ["request_s"] if any(repeatable(run.record) for run in group.runs if run.record.serving) else []
    engine = load_engine(group.key.engine)
    for name in sorted({r.record.setup.kv_format or "bf16" for r in group.runs}):
        try:
            stored = configurable(kv_format(name).name)
        except GoodputError:
            continue  # ``material`` names these runs
        if engine.tiled_from(group.device.architecture, stored):
            found += [f"short_pair_cost@{stored}", f"conversion_s_per_byte@{stored}"]
        elif stored is not KvFormat.BF16:
            found.append(f"conversion_s_per_byte@{stored}")
    return tuple(dict.fromkeys(found))


def collective(architecture: Architecture, device: Device, ranks: int, link_efficiency: float) -> float:
    """Seconds a token of the all-reduces of a step, as plans compute it: 2 layers x 2 (tp - 1) / tp x 2 bytes x hidden / link."""
    if ranks == 1:
        return 0.0
    link = device.gpu_link_bytes_per_s or device.host_link_bytes_per_s
    if link is None:
        raise CalibrationError("no link between devices is known", path="device", value=device.id)
    return 2 * architecture.layer_count * 2 * (ranks - 1) / ranks * 2 * architecture.hidden / (link * link_efficiency)
