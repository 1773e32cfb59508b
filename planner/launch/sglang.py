"""SGLang: variables to arguments of ``sglang.launch_server`` (0.5.10 and 0.5.23 were read)."""

from __future__ import annotations

from models.describe.configuration import DraftSource
from models.describe.engine import parse_version
from planner.launch import common
from planner.launch.base import Piece, Request, Table, flag, front_end_limit, noted, served_checkpoint


def _model(request: Request) -> Piece:
    return flag("--model-path", served_checkpoint(request))


def _context(request: Request) -> Piece:
    return flag("--context-length", request.context.max_model_len)


def _memory(request: Request) -> Piece:
    context = request.context
    arguments = [] if context.block_tokens is None else ["--page-size", str(context.block_tokens)]
    notes = []
    if context.gpu_memory_utilization is not None:
        arguments += ["--mem-fraction-static", str(context.gpu_memory_utilization)]
        notes.append("memory: --mem-fraction-static covers weights and pool; activations and graphs take what is left")
    if context.kv_pool_tokens is not None:
        arguments += ["--max-total-tokens", str(context.kv_pool_tokens)]
    elif context.kv_pool_bytes is not None:
        notes.append(f"memory: the pool of {context.kv_pool_bytes} bytes is counted in tokens here, and their number is not known")
    if not arguments:
        notes.append("memory: --mem-fraction-static is computed at start")
    return Piece(tuple(arguments), notes=tuple(notes))


def _seqs(request: Request) -> Piece:
    limit, seqs = request.configuration.admission_limit, request.configuration.max_num_seqs
    return flag("--max-running-requests", seqs if limit is None else min(seqs, limit))


def _budget(request: Request) -> Piece:
    configuration = request.configuration
    budget = configuration.max_num_batched_tokens
    if configuration.draft is DraftSource.NONE:
        return Piece(
            ("--max-prefill-tokens", str(budget), "--enable-mixed-chunk"),
            notes=(f"max_num_batched_tokens {budget}: bounds the prefill of a step; decode rows come on top",),
        )
    return Piece(
        ("--max-prefill-tokens", str(budget)),
        notes=(f"max_num_batched_tokens {budget}: bounds the prefill of a step; with a draft, prefill and decode run in separate steps",),
    )


def _chunk(request: Request) -> Piece:
    configuration = request.configuration
    chunk = min(configuration.prefill_chunk or configuration.max_num_batched_tokens, configuration.max_num_batched_tokens)
    return Piece(
        ("--chunked-prefill-size", str(chunk)),
        notes=(f"prefill_chunk: {chunk} tokens of all prompts together in a step, SGLang has no chunk for each prompt",),
    )


def _prefix(request: Request) -> Piece:
    return noted("prefix_sharing: on by default") if request.configuration.prefix_sharing else flag("--disable-radix-cache")


def _offload(request: Request) -> Piece:
    piece = common.grouped_offload(request)
    families = ", ".join(request.engine.offload.families)
    said = f"offload_layers: SGLang offloads the experts or the FFN of {families} only; other models fail at start"
    return Piece(piece.arguments, notes=(*piece.notes, said)) if piece.arguments else piece


def _draft(request: Request) -> Piece:
    said = common.without_draft(request)
    if said is not None:
        return said
    checkpoint, notes = request.draft_checkpoint()
    own = () if checkpoint is None else ("--speculative-draft-model-path", checkpoint)
    return Piece(("--speculative-algorithm", request.engine.drafts[request.configuration.draft], *own), notes=notes)


def _draft_tokens(request: Request) -> Piece:
    """SGLang counts the verified window, the draft and the token before it; a chain has one branch."""
    said = common.without_draft_tokens(request)
    if said is not None:
        return said
    configuration = request.configuration
    window = ("--speculative-num-draft-tokens", str(request.rows))
    note = (f"draft_tokens {configuration.draft_tokens}: SGLang counts the verified window of {request.rows}",)
    if configuration.draft in {DraftSource.LOOKUP, DraftSource.DFLASH}:
        return Piece(window, notes=note)
    chain = ("--speculative-num-steps", str(configuration.draft_tokens), "--speculative-eagle-topk", "1")
    return Piece((*chain, *window), notes=note)


def _admission(request: Request) -> Piece:
    limit, seqs = request.configuration.admission_limit, request.configuration.max_num_seqs
    if limit is None:
        return noted("admission_limit: none, the queue is not bounded")
    if limit > seqs:
        return Piece(
            ("--max-queued-requests", str(limit - seqs)),
            notes=(f"admission_limit {limit}: {seqs} running and {limit - seqs} waiting, 503 beyond",),
        )
    return Piece(
        ("--max-queued-requests", "1"),
        notes=(front_end_limit(limit, f"{limit} running, and SGLang lets at least one more wait"),),
    )


def _tensor_parallel(request: Request) -> Piece:
    return flag("--tp-size", request.configuration.tensor_parallel)


def _graphs(request: Request) -> Piece:
    if request.configuration.cuda_graphs:
        return noted("cuda_graphs: on by default")
    return flag("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled")


def _graphs_before_backends(request: Request) -> Piece:
    return noted("cuda_graphs: on by default") if request.configuration.cuda_graphs else flag("--disable-cuda-graph")


def _sizes_under(name: str, request: Request) -> Piece:
    said = common.default_sizes(request)
    if said is not None:
        return said
    requests, notes = common.whole_requests(request)
    return Piece((name, *(str(size) for size in requests)) if requests else (), notes=notes)


def _sizes(request: Request) -> Piece:
    return _sizes_under("--cuda-graph-bs-decode", request)


def _sizes_before_backends(request: Request) -> Piece:
    return _sizes_under("--cuda-graph-bs", request)


_NEWEST: Table = {
    "max_num_seqs": _seqs,
    "max_num_batched_tokens": _budget,
    "prefill_chunk": _chunk,
    "kv_format": common.kv_format,
    "weight_format": common.weight_format,
    "prefix_sharing": _prefix,
    "offload_layers": _offload,
    "prefetch_buffers": common.prefetch_step,
    "draft": _draft,
    "draft_tokens": _draft_tokens,
    "admission_limit": _admission,
    "tensor_parallel": _tensor_parallel,
    "cuda_graphs": _graphs,
    "captured_sizes": _sizes,
}
_BEFORE_BACKENDS: Table = {**_NEWEST, "cuda_graphs": _graphs_before_backends, "captured_sizes": _sizes_before_backends}
CONTEXT: Table = {"model": _model, "max_model_len": _context, "memory": _memory}


def table(rules_version: str) -> Table:
    """Renderers of the version whose rules apply."""
    return _NEWEST if parse_version(rules_version) >= (0, 5, 23) else _BEFORE_BACKENDS
