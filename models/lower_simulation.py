"""A case and one configuration, lowered to what the simulator takes: engine parameters and step models.

A calibration with a single step model gives one formula for every mixed step. One that tells prefill and decode apart (the chapter's:
prefill = FLOPs / (peak x efficiency), decode = fixed + per byte x bytes) gives two models, and a mixed step costs their sum. The
verification bound of such a calibration, rows x FLOPs / (efficiency x peak), enters as the decode model's peak.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from models.case import BranchAxes, Case
from models.columns import Columns
from models.describe.calibration import Affine, EfficiencyTable, Table
from models.describe.configuration import Configuration, DraftSource
from models.describe.scheduler import BlockReserve, Retention, Scheduling, TurnedAway
from models.errors import ContradictionError, NotCoveredError
from models.facts.reads import context_read_bytes, state_read_bytes
from models.kernels.burst import footprint
from models.kernels.step import LINEAR, PHYSICAL, StepModel
from models.lower import captured_rows, lower
from models.memory import blocks, kib, kv_layout
from models.simulation_types import LARGE_BUDGET, Cache, EngineParameters, Policy, Reserve, SimulationInputs
from models.speculation import acceptance_chain
from models.step_time import efficiency, step_model

POLICIES = {
    Scheduling.FIXED: Policy.FIXED, Scheduling.CONTINUOUS: Policy.CONTINUOUS, Scheduling.CHUNKED: Policy.CHUNKED,
    Scheduling.PREFILL_FIRST: Policy.PREFILL_FIRST,
}  # fmt: skip
RESERVES = {BlockReserve.CHUNK: Reserve.CHUNK, BlockReserve.PROMPT: Reserve.PROMPT, BlockReserve.WHOLE: Reserve.WHOLE}
NO_BLOCKS = "the pool holds no KV block beside weights, draft and activations"


def lower_simulation(
    case: Case, configuration: Configuration, *, random: bool = True, policy: Scheduling | None = None, faster: Configuration | None = None
) -> SimulationInputs:  # fmt: skip
    """Lower one configuration; ``random`` draws acceptance position by position, else every round emits its mean.

    ``policy`` None is the scenario's, else the engine's own. Static batches and Orca's whole prompts know neither budget nor chunk
    cap. ``faster`` is the configuration of the second instance, where the scenario has one.

    Where prefill efficiency depends on the batch, a burst prefills as one batch and other traffic request by request.
    """
    k = lower(case, BranchAxes.of(configuration))
    prefill, decode = _models(case, k, min(case.request.arrivals.burst or 1, configuration.max_num_seqs))
    pool, per_token = _pool(case, k, configuration), _kv_kib_per_token(k, case, configuration)
    graphs = (configuration.cuda_graphs, configuration.captured_sizes, False)
    engine = EngineParameters(
        block_tokens=case.block_tokens, kv_blocks=_blocks(pool, per_token, case),
        max_model_len=case.scenario.engine.max_model_len or case.architecture.context,
        **_reads(case, configuration, k),
        shared_read_once=case.calibration.shared_prefix_read == "once", constant_context=_constant(case),
        graph_sizes=captured_rows(case, (configuration.draft, configuration.draft_tokens), graphs),
        micro_batch=configuration.max_num_batched_tokens if case.engine.separate_batches else 0,
        tiled_from=case.engine.tiled_from(case.device.architecture, configuration.kv_format),
        delivery_s=case.calibration.delivery_s + case.calibration.request_s, **_scheduling(case, configuration, policy),
        **_speculation(case, configuration, random=random), **_copies(k, configuration),
    )  # fmt: skip
    elsewhere = lower_simulation(case, faster, random=random, policy=policy) if faster is not None else None
    scheduler = case.scenario.engine.scheduler
    return SimulationInputs(engine, prefill, decode, configuration.tensor_parallel, pool * 1024, scheduler.turned_away, elsewhere)


def _reads(case: Case, configuration: Configuration, k: Columns) -> dict[str, Any]:
    """Bytes that attention reads for each token of context, and for each of the last ``window`` where layers look no further back.

    Beyond the window min(context, window) stays what it is. Several windows, compressed entries and indexers are spread over the
    context of a typical request instead.
    """
    attention = [group.attention for group in case.architecture.layers if group.attention is not None]
    windows = {one.window for one in attention if one.window is not None}
    plain = not any(one.indexer is not None or one.compress_ratio for one in attention)
    if len(windows) != 1 or not plain:
        return {"kv_bytes_per_token": float(((k.kv_private_read / k.samples + k.kv_shared_read) / k.context)[0])}
    window, tp = windows.pop(), configuration.tensor_parallel
    whole, beyond = (context_read_bytes(case.architecture, tokens, configuration.kv_format, tp) for tokens in (window, window + 1))
    growing = tp * (beyond - whole)
    return {
        "kv_bytes_per_token": float(growing), "window": window, "window_bytes_per_token": float(tp * whole / window - growing),
        "state_bytes_per_sequence": float(tp * state_read_bytes(case.architecture, tp)),
    }  # fmt: skip


def own_policy(engine: str) -> Scheduling:
    """What the engine does when nothing is said."""
    return Scheduling.PREFILL_FIRST if engine == "sglang" else Scheduling.CHUNKED


def _scheduling(case: Case, configuration: Configuration, policy: Scheduling | None) -> dict[str, Any]:
    """The scheduler's choices in the simulator's terms. Who may wait outside needs no limit inside, only fewer sequences at once."""
    given = case.scenario.engine.scheduler
    chosen = policy or given.policy or own_policy(case.engine.name)
    whole = chosen in (Scheduling.FIXED, Scheduling.CONTINUOUS)
    waits = given.turned_away is TurnedAway.QUEUE
    limit, seqs = configuration.admission_limit, configuration.max_num_seqs
    cache = Cache.VALUE if given.retention is Retention.VALUE else Cache.LRU
    return {
        "policy": POLICIES[chosen], "reserve": RESERVES[given.reserve], "cache": cache if configuration.prefix_sharing else Cache.OFF,
        "max_num_seqs": min(seqs, limit) if waits and limit is not None else seqs,
        "admission_limit": 0 if waits or limit is None else limit,
        "token_budget": LARGE_BUDGET if whole else configuration.max_num_batched_tokens,
        "chunk_cap": 0 if whole else configuration.prefill_chunk or 0,
        "deadline_aware": given.deadline_aware, "late_wait": waits, "async_scheduling": given.async_scheduling,
    }  # fmt: skip


def _constant(case: Case) -> bool:
    form = case.calibration.decode
    return isinstance(form, Affine | Table) and form.context == "prompt"


def _models(case: Case, k: Columns, together: int) -> tuple[StepModel, StepModel]:
    calibration = case.calibration
    if isinstance(calibration.decode, Table):
        raise NotCoveredError(
            "a table of rounds has no step model for mixed traffic", path="calibration", value=calibration.name,
            way_out="use a calibration whose decode is affine or physical",
        )  # fmt: skip
    per_pair = (k.prefill_flops - k.new_tokens * k.flops_per_token - k.flops_per_logit_row) / k.pairs
    extra = float((k.draft_seconds + k.kv_conversion_s)[0])
    if not isinstance(calibration.prefill, EfficiencyTable):
        one = _plain(step_model(calibration.prefill, k, per_pair))
        one = one._replace(fixed_s=one.fixed_s + extra) if one.form == LINEAR else one._replace(collective_s=one.collective_s + extra)
        return one, one
    form = calibration.decode
    assert isinstance(form, Affine)
    batch = np.full(1, together, dtype=np.int64)
    share = efficiency(calibration.prefill, batch, k.prompt_tokens) * k.reference_flops / k.peak_flops
    ratio = float((share / k.prefill_factor)[0])
    base = _plain(_bare(k, per_pair))
    prefill = base._replace(form=PHYSICAL, matmul_efficiency=ratio, attention_efficiency=ratio)
    decode = base._replace(
        form=LINEAR, fixed_s=form.fixed_s + extra, per_byte_s=form.per_byte_s, peak_flops=base.peak_flops * float(share[0])
    )
    return prefill, decode


def _bare(k: Columns, per_pair: Any) -> StepModel:
    work = (k.peak_flops, k.peak_bytes_per_s, k.flops_per_token, k.flops_per_logit_row, per_pair)
    return StepModel(PHYSICAL, *work, k.weight_read, k.expert_read, k.expert_fraction)  # type: ignore[arg-type]


def _plain(model: StepModel) -> StepModel:
    """The first branch of a model of arrays, as plain numbers."""
    numbers = {name: float(np.ravel(np.asarray(getattr(model, name)))[0]) for name in model._fields if name not in ("form", "by_format")}
    return model._replace(**numbers)  # type: ignore[arg-type]


def _pool(case: Case, k: Columns, configuration: Configuration) -> int:
    """KiB that remain for KV on one device under both limits."""
    one = np.ones(1, dtype=np.int64)
    m = footprint(k, np.zeros(1, dtype=np.int64), one * configuration.max_num_batched_tokens, one * configuration.offload_layers)
    rows = configuration.max_num_seqs * (configuration.draft_tokens + 1)
    logits = int(np.ceil(rows * k.logits_kib_per_row[0]))
    shared = int(k.kv_shared_kib[0])
    room = case.memory_limit // 1024 - (int(m.total[0]) - shared) - max(0, logits - int(m.activation[0]))
    budget = case.scenario.hardware.kv_budget
    return room if budget is None else min(room, budget // 1024 - (int(m.pool[0]) - shared))


def _kv_kib_per_token(k: Columns, case: Case, configuration: Configuration) -> float:
    """KiB of one stored token on one device, windows and drafts of a full-length request spread over its tokens."""
    stored = case.request.prompt_tokens + case.request.output_tokens - 1
    alone = kv_layout(
        case.architecture, configuration.kv_format, stored_tokens=stored, block_tokens=case.block_tokens, tp=configuration.tensor_parallel
    )
    whole = kib(alone.total(1)) + float((k.draft_kib_per_request / k.samples)[0])
    return whole / (blocks(stored, case.block_tokens) * case.block_tokens)


def _blocks(pool_kib: int, kib_per_token: float, case: Case) -> int:
    if kib_per_token <= 0:
        return 0
    count = int(pool_kib / (kib_per_token * case.block_tokens) + 1e-9)
    if count < 1:
        raise ContradictionError(
            NO_BLOCKS, path="hardware", value=f"{pool_kib} KiB", way_out="use more memory, fewer sequences or a smaller budget"
        )
    return count


def _speculation(case: Case, configuration: Configuration, *, random: bool) -> dict[str, Any]:
    """Acceptance by position, or tokens a round, in the simulator's terms."""
    m = configuration.draft_tokens
    if configuration.draft is DraftSource.NONE:
        return {}
    given = case.request.speculation[configuration.draft]
    measured = case.calibration.drafts.get(configuration.draft)
    chain = acceptance_chain(given, m, measured.draft_tokens if measured else None)
    if random:
        return {"draft_tokens": m, "acceptance": chain, "preparation_s": given.preparation}
    mean = 1.0 + float(np.cumprod(chain).sum())
    return {"draft_tokens": m, "tokens_per_round": mean, "preparation_s": given.preparation}


def _copies(k: Columns, configuration: Configuration) -> dict[str, Any]:
    """Copies of the offloaded layers in a step, and the share of its computation that they cannot overlap (section 8.4.3)."""
    layers = configuration.offload_layers
    serial = layers / int(k.model_layers[0]) if configuration.prefetch_buffers == 1 else 0.0
    return {"copy_s": layers * int(k.copy_us_per_layer[0]) * 1e-6, "copy_serial": serial} if layers else {}
