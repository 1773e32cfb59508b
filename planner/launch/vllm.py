"""vLLM: variables to arguments of ``vllm serve`` (0.11, 0.17, 0.23, 0.28 and 0.33 were read)."""

from __future__ import annotations

from models.describe.engine import Admission, ChunkRule, parse_version
from models.units import GIB
from planner.launch import common
from planner.launch.base import Piece, Request, Table, flag, no_limit_argument, noted, served_checkpoint

_SPECULATIVE = "--speculative-config"


def _model(request: Request) -> Piece:
    return Piece((served_checkpoint(request),))


def _context(request: Request) -> Piece:
    return flag("--max-model-len", request.context.max_model_len)


def _memory(request: Request) -> Piece:
    context, engine = request.context, request.engine
    block = () if context.block_tokens is None else ("--block-size", str(context.block_tokens))
    if context.kv_pool_bytes is not None:
        return Piece(
            (*block, "--kv-cache-memory-bytes", str(context.kv_pool_bytes)),
            notes=("--kv-cache-memory-bytes sets the pool on each device; gpu_memory_utilization is then ignored",),
        )
    if context.gpu_memory_utilization is not None:
        return Piece((*block, "--gpu-memory-utilization", str(context.gpu_memory_utilization)))
    return Piece(block, notes=(f"memory: gpu_memory_utilization {engine.gpu_memory_utilization} by default",))


def _seqs(request: Request) -> Piece:
    return flag("--max-num-seqs", request.configuration.max_num_seqs)


def _budget(request: Request) -> Piece:
    return flag("--max-num-batched-tokens", request.configuration.max_num_batched_tokens)


def _chunk(request: Request) -> Piece:
    chunk = request.configuration.prefill_chunk
    if chunk is None:
        return Piece(("--enable-chunked-prefill",), notes=("prefill_chunk: only the token budget limits a prompt's tokens in a step",))
    alone = request.engine.prefill_chunk is ChunkRule.LONG_PROMPTS_ONLY
    notes = (f"prefill_chunk {chunk}: not applied to a prompt that is alone in its batch",)
    return Piece(("--enable-chunked-prefill", "--long-prefill-token-threshold", str(chunk)), notes=notes if alone else ())


def _prefix(request: Request) -> Piece:
    return flag("--enable-prefix-caching" if request.configuration.prefix_sharing else "--no-enable-prefix-caching")


def _offload(request: Request) -> Piece:
    piece = common.grouped_offload(request)
    if not piece.arguments:
        return piece
    modules = request.context.ffn_modules
    said = f"offload_layers: only weights under {', '.join(modules)} leave the device; where a model names its FFN otherwise, name that"
    return Piece(
        ("--offload-backend", "prefetch", *piece.arguments, "--offload-params", *modules),
        notes=(*piece.notes, said),
    )


def _offload_uva(request: Request) -> Piece:
    """Before the prefetching offloader: bytes, read through the link as they are used."""
    wanted, size = request.configuration.offload_layers, request.context.layer_bytes
    if wanted == 0:
        return noted("offload_layers 0: every layer stays on the device")
    if size is None:
        return noted(f"offload_layers {wanted}: the bytes of a layer are not known, so --cpu-offload-gb cannot be given")
    return Piece(
        ("--cpu-offload-gb", f"{wanted * size / GIB:.4f}"),
        notes=(f"offload_layers {wanted}: --cpu-offload-gb is a size in GiB on each device; vLLM picks the parameters",),
    )


def _no_prefetch_buffers(request: Request) -> Piece:
    wanted = request.configuration.prefetch_buffers
    return noted(f"prefetch_buffers {wanted}: this version has no prefetch" if wanted else "prefetch_buffers 0: nothing is copied")


def _draft(request: Request) -> Piece:
    said = common.without_draft(request)
    if said is not None:
        return said
    checkpoint, notes = request.draft_checkpoint()
    entries = {"method": request.engine.drafts[request.configuration.draft]} | ({} if checkpoint is None else {"model": checkpoint})
    return Piece(json_arguments={_SPECULATIVE: entries}, notes=notes)


def _draft_tokens(request: Request) -> Piece:
    said = common.without_draft_tokens(request)
    return said or Piece(json_arguments={_SPECULATIVE: {"num_speculative_tokens": request.configuration.draft_tokens}})


def _admission(request: Request) -> Piece:
    limit = request.configuration.admission_limit
    if limit is None or request.engine.admission is not Admission.IN_FLIGHT:
        return no_limit_argument(request)
    return Piece(("--max-num-queued-reqs", str(limit)), notes=(f"admission_limit {limit}: waiting and running, 503 beyond",))


def _tensor_parallel(request: Request) -> Piece:
    return flag("--tensor-parallel-size", request.configuration.tensor_parallel)


def _graphs(request: Request) -> Piece:
    return flag("--no-enforce-eager" if request.configuration.cuda_graphs else "--enforce-eager")


def _sizes(request: Request) -> Piece:
    return common.default_sizes(request) or flag("--cudagraph-capture-sizes", *request.configuration.captured_sizes)


def _sizes_as_json(request: Request) -> Piece:
    sizes = {"cudagraph_capture_sizes": list(request.configuration.captured_sizes)}
    return common.default_sizes(request) or Piece(json_arguments={"--compilation-config": sizes})


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
_BEFORE_PREFETCH: Table = {
    **_NEWEST,
    "offload_layers": _offload_uva,
    "prefetch_buffers": _no_prefetch_buffers,
    "captured_sizes": _sizes_as_json,
}
CONTEXT: Table = {"model": _model, "max_model_len": _context, "memory": _memory}


def table(rules_version: str) -> Table:
    """Renderers of the version whose rules apply."""
    return _NEWEST if parse_version(rules_version) >= (0, 17) else _BEFORE_PREFETCH
