"""The registry of decision variables: what each may be by default, in which unit, and what it does.

A variable's domain is what the model, the engine, the card and the calibration allow and what the scenario says enough about. Formats
of KV or weights whose answers nobody calls as right as the model's own are no part of it: whoever trusts them lists them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from models.case import Case
from models.describe.configuration import DraftSource, KvFormat
from models.describe.engine import PrefixSharing
from models.errors import ContradictionError
from models.facts import check_tensor_parallel

CHUNK_STEP = 16
LARGEST_BUDGET = 32768
LONGEST_DRAFT = 15


ENGINE_FLAGS: dict[str, tuple[str | None, str | None, str | None, str | None]] = {
    "max_num_seqs": ("--max-num-seqs", "--max-running-requests", "--parallel", "max_batch_size"),
    "max_num_batched_tokens": ("--max-num-batched-tokens", "--max-prefill-tokens", "--batch-size", "max_num_tokens"),
    "prefill_chunk": ("--long-prefill-token-threshold", "--chunked-prefill-size", None, None),
    "kv_format": ("--kv-cache-dtype", "--kv-cache-dtype", "--cache-type-k", "kv_cache_config"),
    "weight_format": ("--quantization", "--quantization", None, None),
    "prefix_sharing": ("--enable-prefix-caching", "--disable-radix-cache", "--cache-prompt", "enable_block_reuse"),
    "offload_layers": ("--offload-group-size", "--offload-group-size", "--gpu-layers", None),
    "prefetch_buffers": ("--offload-prefetch-step", "--offload-prefetch-step", None, None),
    "draft": ("--speculative-config", "--speculative-algorithm", "--spec-type", "decoding_type"),
    "draft_tokens": ("num_speculative_tokens", "--speculative-num-draft-tokens", "--spec-draft-n-max", "max_draft_len"),
    "admission_limit": ("--max-num-queued-reqs", "--max-queued-requests", None, None),
    "tensor_parallel": ("--tensor-parallel-size", "--tp-size", "--tensor-split", "tensor_parallel_size"),
    "cuda_graphs": ("--enforce-eager", "--cuda-graph-backend-decode", "GGML_CUDA_DISABLE_GRAPHS", "cuda_graph_config"),
    "captured_sizes": ("--cudagraph-capture-sizes", "--cuda-graph-bs-decode", None, "batch_sizes"),
}


@dataclass(frozen=True)
class Variable:
    """One decision variable: its name in scenarios, unit, meaning and whole domain for a case."""

    name: str
    unit: str
    meaning: str
    domain: Callable[[Case], tuple[Any, ...]]
    default: Callable[[Case], Any]

    @property
    def flags(self) -> dict[str, str | None]:
        """The newest release's own argument by engine; None where it has none (``planner.launch`` renders by version)."""
        return dict(zip(("vllm", "sglang", "llama_cpp", "trtllm"), ENGINE_FLAGS[self.name], strict=True))


def _sequences(case: Case) -> tuple[int, ...]:
    return tuple(range(1, most_sequences(case) + 1))


def most_sequences(case: Case) -> int:
    """Upper end of ``max_num_seqs``: the engine's limit, or its largest default where it states none."""
    tiers = [tier.max_num_seqs or 0 for tier in case.engine.size_tiers]
    return case.engine.max_num_seqs_limit or max(*tiers, 1024)


def _budgets(_case: Case) -> tuple[int, ...]:
    return tuple(range(CHUNK_STEP, LARGEST_BUDGET + 1, CHUNK_STEP))


def _kv_formats(case: Case) -> tuple[KvFormat, ...]:
    """The model's own format, and those for which the scenario states a correctness of their own: others must be asked for."""
    stated = case.request.quality.correct_by_kv_format if case.request.quality is not None else {}
    return tuple(f for f in KvFormat if f in case.engine.kv_formats and (f is KvFormat.BF16 or f.value in stated))


def _sharing(case: Case) -> tuple[bool, ...]:
    something = case.request.shared_prefix_tokens > 0 or case.request.samples > 1
    return (False, True) if something and case.engine.prefix_sharing is PrefixSharing.SHARED else (False,)


def _offload(case: Case) -> tuple[int, ...]:
    possible = case.engine.offload.kind == "prefetch" and case.host_link is not None
    return tuple(range(case.architecture.layer_count + 1)) if possible else (0,)


def _buffers(case: Case) -> tuple[int, ...]:
    return tuple(range(case.engine.offload.max_prefetch_buffers + 1)) if len(_offload(case)) > 1 else (0,)


def _drafts(case: Case) -> tuple[DraftSource, ...]:
    return (DraftSource.NONE, *(d for d in DraftSource if d in case.request.speculation and d in case.engine.drafts))


def _parallel(case: Case) -> tuple[int, ...]:
    fixed = case.calibration.tensor_parallel
    return tuple(
        tp for tp in range(1, case.scenario.hardware.count + 1)
        if (fixed in (None, tp)) and _divides(case, tp)
    )  # fmt: skip


def _divides(case: Case, tp: int) -> bool:
    try:
        check_tensor_parallel(case.architecture, tp)
    except ContradictionError:
        return False
    return True


def _graphs_allowed(case: Case) -> tuple[bool, ...]:
    fixed = case.calibration.cuda_graphs
    return (False, True) if fixed is None else (fixed,)


def _weight_formats(case: Case) -> tuple[str, ...]:
    """What the calibration was measured with, else the model as it is: whether another checkpoint answers as well is not known."""
    fixed = case.calibration.weight_format
    return (fixed,) if fixed in case.weights else (case.stored_format,)


def draft_lengths(case: Case, draft: DraftSource) -> tuple[int, ...]:
    """Lengths for which the scenario says what a draft yields: all up to 15, or the only one that a bare mean supports."""
    if draft is DraftSource.NONE or draft not in case.request.speculation:
        return (0,) if draft is DraftSource.NONE else (1,)
    given = case.request.speculation[draft]
    measured = case.calibration.drafts.get(draft)
    reference = given.draft_tokens or (measured.draft_tokens if measured else None)
    if given.tokens_per_round is not None and reference is None:
        return (max(1, math.ceil(given.tokens_per_round) - 1),)
    return tuple(range(1, max(LONGEST_DRAFT, reference or 0) + 1))


def default_draft_tokens(case: Case, draft: DraftSource) -> int:
    """The length at which the draft was measured, else the shortest that can yield the stated mean."""
    if draft is DraftSource.NONE:
        return 0
    given = case.request.speculation.get(draft)
    measured = case.calibration.drafts.get(draft)
    if given is not None and given.draft_tokens is not None:
        return given.draft_tokens
    if measured is not None and measured.draft_tokens is not None:
        return measured.draft_tokens
    if given is not None and given.acceptance is not None:
        return len(given.acceptance)
    return draft_lengths(case, draft)[0]


def capture_sets(case: Case) -> tuple[tuple[int, ...], ...]:
    """Captured sizes worth trying, in sequences: none (the engine's own list), powers of two, the one of a full round."""
    most = min(case.requests * case.request.samples, most_sequences(case))
    if case.engine.capture is None:
        return ((),)
    powers = tuple(1 << i for i in range(max(most - 1, 1).bit_length() + 1))
    return tuple(dict.fromkeys(((), powers, (most,))))


def default_sizes(case: Case) -> tuple[int, int]:
    """The engine's own ``max_num_seqs`` and ``max_num_batched_tokens`` on this device."""
    tier = case.engine.default_sizes(case.device.memory_bytes, case.device.id)
    return tier.max_num_seqs or most_sequences(case), tier.max_num_batched_tokens


VARIABLES: dict[str, Variable] = {v.name: v for v in (
    Variable("max_num_seqs", "sequences", "sequences that run at once", _sequences, lambda case: default_sizes(case)[0]),
    Variable("max_num_batched_tokens", "tokens", "token budget of a step: prefill chunks and decode rows together", _budgets,
             lambda case: default_sizes(case)[1]),
    Variable("prefill_chunk", "tokens", "most new tokens of one request in a step", lambda _case: (None,), lambda _case: None),
    Variable("kv_format", "format", "how cached keys and values are stored", _kv_formats, lambda _case: KvFormat.BF16),
    Variable("weight_format", "format", "which published checkpoint of the model is loaded", _weight_formats,
             lambda case: case.stored_format),
    Variable("prefix_sharing", "on or off", "keep a common prefix once", _sharing, lambda _case: False),
    Variable("offload_layers", "layers", "layers whose FFN weights stay in host memory", _offload, lambda _case: 0),
    Variable("prefetch_buffers", "buffers", "device buffers for the next offloaded layers", _buffers, lambda _case: 0),
    Variable("draft", "source", "where draft tokens come from", _drafts, lambda _case: DraftSource.NONE),
    Variable("draft_tokens", "tokens", "draft tokens of a round", lambda _case: (), lambda _case: None),
    Variable("admission_limit", "requests", "most requests in the system", lambda case: (None, *range(1, case.requests + 1)),
             lambda _case: None),
    Variable("tensor_parallel", "devices", "devices that share each layer", _parallel, lambda _case: 1),
    Variable("cuda_graphs", "on or off", "replay captured graphs instead of launching kernels", _graphs_allowed,
             lambda case: _graphs_allowed(case)[-1]),
    Variable("captured_sizes", "rows", "row counts of the captured graphs", capture_sets, lambda _case: ()),
)}  # fmt: skip
"""Every decision variable by name; a test holds it against ``Configuration``'s fields."""
