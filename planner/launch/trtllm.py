"""TensorRT-LLM: variables to the configuration file of ``trtllm-serve`` (PyTorch backend)."""

from __future__ import annotations

from planner.launch import common
from planner.launch.base import CONFIG_FILE, Piece, Request, Table, no_limit_argument, noted, served_checkpoint, weight_conversion


def _model(request: Request) -> Piece:
    return Piece(
        (served_checkpoint(request), "--extra_llm_api_options", CONFIG_FILE),
        notes=(f"{CONFIG_FILE} holds the configuration",),
    )


def _context(request: Request) -> Piece:
    return Piece(config={"max_seq_len": request.context.max_model_len})


def _memory(request: Request) -> Piece:
    context = request.context
    pool: dict[str, float | int] = {}
    if context.kv_pool_tokens is not None:
        pool["max_tokens"] = context.kv_pool_tokens
    if context.kv_pool_bytes is not None:
        pool["max_gpu_total_bytes"] = context.kv_pool_bytes
    if context.block_tokens is not None:
        pool["tokens_per_block"] = context.block_tokens
    said = f"memory: free_gpu_memory_fraction, {request.engine.gpu_memory_utilization} by default, is of what the weights leave; "
    share = context.gpu_memory_utilization
    said += "its default stays" if share is None else f"a share of {share} of the whole device cannot be given"
    return Piece(config={"kv_cache_config": pool}, notes=(said,))


def _seqs(request: Request) -> Piece:
    return Piece(config={"max_batch_size": request.configuration.max_num_seqs})


def _budget(request: Request) -> Piece:
    return Piece(config={"max_num_tokens": request.configuration.max_num_batched_tokens})


def _chunk(request: Request) -> Piece:
    configuration = request.configuration
    chunk = configuration.prefill_chunk
    said = "prefill_chunk: max_num_tokens cuts the prompts, there is no chunk for each"
    if chunk is not None and chunk < configuration.max_num_batched_tokens:
        said = f"prefill_chunk {chunk}: max_num_tokens cuts the prompts, there is no chunk for each; left out"
    return Piece(config={"enable_chunked_prefill": True}, notes=(said,))


def _kv_format(request: Request) -> Piece:
    wanted = request.configuration.kv_format
    spelled = request.engine.kv_formats.get(wanted)
    if spelled is None:
        return noted(f"kv_format {wanted.value}: not available, left out")
    notes = ("kv_format: auto follows the checkpoint where that names a KV format",) if spelled == "auto" else ()
    return Piece(config={"kv_cache_config": {"dtype": spelled}}, notes=notes)


def _weight_format(request: Request) -> Piece:
    conversion, notes = weight_conversion(request)
    if conversion is None:
        return Piece(notes=notes)
    name, value = conversion.split("=")
    return Piece(config={name: value}, notes=notes)


def _prefix(request: Request) -> Piece:
    return Piece(config={"kv_cache_config": {"enable_block_reuse": request.configuration.prefix_sharing}})


def _offload_layers(request: Request) -> Piece:
    wanted = request.configuration.offload_layers
    return noted(f"offload_layers {wanted}: TensorRT-LLM keeps every layer on the device" + ("; left out" if wanted else ""))


def _prefetch_buffers(request: Request) -> Piece:
    return noted(f"prefetch_buffers {request.configuration.prefetch_buffers}: TensorRT-LLM copies no weights")


def _draft(request: Request) -> Piece:
    said = common.without_draft(request)
    if said is not None:
        return said
    checkpoint, notes = request.draft_checkpoint()
    entries = {"decoding_type": request.engine.drafts[request.configuration.draft]}
    own = {} if checkpoint is None else {"speculative_model": checkpoint}
    return Piece(config={"speculative_config": entries | own}, notes=notes)


def _draft_tokens(request: Request) -> Piece:
    said = common.without_draft_tokens(request)
    return said or Piece(config={"speculative_config": {"max_draft_len": request.configuration.draft_tokens}})


def _tensor_parallel(request: Request) -> Piece:
    return Piece(config={"tensor_parallel_size": request.configuration.tensor_parallel})


def _graphs(request: Request) -> Piece:
    if request.configuration.cuda_graphs:
        return Piece(config={"cuda_graph_config": {"enable_padding": True}})
    return Piece(config={"cuda_graph_config": None})


def _sizes(request: Request) -> Piece:
    said = common.default_sizes(request)
    if said is not None:
        return said
    requests, notes = common.whole_requests(request)
    return Piece(config={"cuda_graph_config": {"batch_sizes": list(requests)}} if requests else {}, notes=notes)


_TABLE: Table = {
    "max_num_seqs": _seqs,
    "max_num_batched_tokens": _budget,
    "prefill_chunk": _chunk,
    "kv_format": _kv_format,
    "weight_format": _weight_format,
    "prefix_sharing": _prefix,
    "offload_layers": _offload_layers,
    "prefetch_buffers": _prefetch_buffers,
    "draft": _draft,
    "draft_tokens": _draft_tokens,
    "admission_limit": no_limit_argument,
    "tensor_parallel": _tensor_parallel,
    "cuda_graphs": _graphs,
    "captured_sizes": _sizes,
}
CONTEXT: Table = {"model": _model, "max_model_len": _context, "memory": _memory}


def table(rules_version: str) -> Table:
    """Renderers; one set of rules was read."""
    del rules_version
    return _TABLE
