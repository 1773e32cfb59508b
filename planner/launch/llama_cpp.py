"""llama.cpp: variables to arguments of ``llama-server`` (builds 8672 and 11549 were read)."""

from __future__ import annotations

from models.describe.configuration import DraftSource, KvFormat
from models.describe.engine import parse_version
from planner.launch import common
from planner.launch.base import Piece, Request, Table, flag, no_limit_argument, noted, served_checkpoint, weight_conversion


def _model(request: Request) -> Piece:
    checkpoint = served_checkpoint(request)
    notes = () if checkpoint.endswith(".gguf") else (f"model {checkpoint}: llama-server loads a GGUF file; give its path",)
    return Piece(("--model", checkpoint), notes=notes)


def _context(request: Request) -> Piece:
    """One number for all slots: the pool where it is known, shared by all; else room for the longest request in each."""
    context, slots = request.context, request.configuration.max_num_seqs
    if context.kv_pool_tokens is not None:
        return Piece(
            ("--ctx-size", str(context.kv_pool_tokens), "--kv-unified"),
            notes=(f"context: a pool of {context.kv_pool_tokens} tokens for all slots; the longest request takes {context.max_model_len}",),
        )
    return Piece(
        ("--ctx-size", str(slots * context.max_model_len), "--no-kv-unified"),
        notes=(f"context: --ctx-size is split among {slots} slots, {context.max_model_len} tokens each",),
    )


def _memory(request: Request) -> Piece:
    context = request.context
    if context.gpu_memory_utilization is not None or (context.kv_pool_bytes is not None and context.kv_pool_tokens is None):
        return noted("memory: llama-server takes what --ctx-size and --gpu-layers need; neither a share nor bytes can be given")
    return noted("memory: follows from --ctx-size and --gpu-layers")


def _seqs(request: Request) -> Piece:
    return Piece(("--parallel", str(request.configuration.max_num_seqs), "--cont-batching"))


def _budget(request: Request) -> Piece:
    budget = str(request.configuration.max_num_batched_tokens)
    return Piece(
        ("--batch-size", budget, "--ubatch-size", budget),
        notes=("max_num_batched_tokens: --ubatch-size is the same, so that a step is one pass; its compute buffer grows with it",),
    )


def _chunk(request: Request) -> Piece:
    configuration = request.configuration
    if configuration.prefill_chunk is None or configuration.prefill_chunk >= configuration.max_num_batched_tokens:
        return noted("prefill_chunk: only the token budget limits a prompt's tokens in a step")
    return noted(f"prefill_chunk {configuration.prefill_chunk}: llama-server has no chunk for each prompt; left out")


def _kv_format(request: Request) -> Piece:
    wanted = request.configuration.kv_format
    spelled = request.engine.kv_formats.get(wanted)
    if spelled is None:
        return noted(f"kv_format {wanted.value}: not available, left out")
    arguments = ("--cache-type-k", spelled, "--cache-type-v", spelled)
    if wanted is KvFormat.BF16:
        return Piece(arguments)
    return Piece((*arguments, "--flash-attn", "on"), notes=("kv_format: quantised values need flash attention",))


def _weight_format(request: Request) -> Piece:
    _conversion, notes = weight_conversion(request)
    return Piece(notes=notes)


def _prefix(request: Request) -> Piece:
    if not request.configuration.prefix_sharing:
        return flag("--no-cache-prompt")
    return Piece(("--cache-prompt",), notes=("prefix_sharing: a slot reuses its own prefix; slots do not share theirs",))


def _offload_layers(request: Request) -> Piece:
    """llama.cpp counts the layers that stay, the output layer among them."""
    wanted, layers = request.configuration.offload_layers, request.context.layers
    if wanted == 0:
        return flag("--gpu-layers", "all")
    if layers is None:
        return noted(f"offload_layers {wanted}: the model's layer count is not known, so --gpu-layers cannot be given")
    return Piece(
        ("--gpu-layers", str(max(0, layers - wanted) + 1)),
        notes=(f"offload_layers {wanted}: the first {min(wanted, layers)} of {layers} layers are computed on the host, not copied",),
    )


def _prefetch_buffers(request: Request) -> Piece:
    return noted(f"prefetch_buffers {request.configuration.prefetch_buffers}: llama-server copies no layers ahead")


def _draft(request: Request) -> Piece:
    said = common.without_draft(request)
    if said is not None:
        return said
    checkpoint, notes = request.draft_checkpoint()
    own = () if checkpoint is None else ("--spec-draft-model", checkpoint)
    return Piece(("--spec-type", request.engine.drafts[request.configuration.draft], *own), notes=notes)


def _draft_tokens(request: Request) -> Piece:
    said = common.without_draft_tokens(request)
    lookup = request.configuration.draft is DraftSource.LOOKUP
    name = "--spec-ngram-simple-size-m" if lookup else "--spec-draft-n-max"
    return said or flag(name, request.configuration.draft_tokens)


def _old_draft(request: Request) -> Piece:
    said = common.without_draft(request)
    if said is not None:
        return said
    checkpoint, notes = request.draft_checkpoint()
    if checkpoint is None:
        return flag("--spec-type", request.engine.drafts[request.configuration.draft])
    return Piece(("--model-draft", checkpoint), notes=notes)


def _old_draft_tokens(request: Request) -> Piece:
    said = common.without_draft_tokens(request)
    lookup = request.configuration.draft is DraftSource.LOOKUP
    return said or flag("--spec-ngram-size-m" if lookup else "--draft-max", request.configuration.draft_tokens)


def _tensor_parallel_as(mode: str, request: Request) -> Piece:
    ranks = request.configuration.tensor_parallel
    if ranks == 1:
        return flag("--split-mode", "none")
    note = {
        "tensor": "tensor_parallel: --split-mode tensor splits weights and KV; llama.cpp calls it experimental",
        "row": "tensor_parallel: --split-mode row splits the weights, the KV cache stays on the main device",
    }[mode]
    return Piece(("--split-mode", mode, "--tensor-split", ",".join(["1"] * ranks)), notes=(note,))


def _tensor_parallel(request: Request) -> Piece:
    return _tensor_parallel_as("tensor", request)


def _old_tensor_parallel(request: Request) -> Piece:
    return _tensor_parallel_as("row", request)


def _graphs(request: Request) -> Piece:
    if request.configuration.cuda_graphs:
        return noted("cuda_graphs: captured as shapes come, by default")
    return Piece(environment={"GGML_CUDA_DISABLE_GRAPHS": "1"}, notes=("cuda_graphs: off by the environment, there is no argument",))


def _sizes(request: Request) -> Piece:
    said = common.default_sizes(request)
    return said or noted("captured_sizes: llama.cpp takes no list, it captures every shape as it comes")


_NEWEST: Table = {
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
_OLDER: Table = {**_NEWEST, "draft": _old_draft, "draft_tokens": _old_draft_tokens, "tensor_parallel": _old_tensor_parallel}
CONTEXT: Table = {"model": _model, "max_model_len": _context, "memory": _memory}


def table(rules_version: str) -> Table:
    """Renderers of the build whose rules apply."""
    return _NEWEST if parse_version(rules_version) >= (11549,) else _OLDER
