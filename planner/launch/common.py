"""Renderers that more than one engine uses.

Grouped offload (vLLM and SGLang): the layers are cut into groups of ``group`` and the last ``offloaded`` of each go to the host, that is
layer i when i mod group >= group - offloaded.
"""

from __future__ import annotations

from models.describe.configuration import DraftSource
from planner.launch.base import Piece, Request, flag, noted, weight_conversion


def offloaded_count(layers: int, group: int, offloaded: int) -> int:
    """Layers in host memory: whole groups give ``offloaded`` each, the rest what reaches into its last ones."""
    whole, rest = divmod(layers, group)
    return whole * offloaded + max(0, rest - (group - offloaded))


def grouping(layers: int, wanted: int) -> tuple[int, int]:
    """(group, offloaded) that offloads exactly ``wanted`` of ``layers``, as evenly spread as groups allow.

    The smallest group spreads best; (layers, wanted) always fits, so an answer exists for 1 <= wanted <= layers.
    """
    for group in range(1, layers):
        # the count grows with ``offloaded`` from ``whole`` to ``layers``: the nearest candidates are tried
        whole = layers // group
        for offloaded in range(max(1, wanted // (whole + 1)), min(group, wanted // whole) + 1):
            if offloaded_count(layers, group, offloaded) == wanted:
                return group, offloaded
    return layers, wanted


def kv_format(request: Request) -> Piece:
    """``--kv-cache-dtype`` in the engine's spelling."""
    wanted = request.configuration.kv_format
    spelled = request.engine.kv_formats.get(wanted)
    return flag("--kv-cache-dtype", spelled) if spelled is not None else noted(f"kv_format {wanted.value}: not available, left out")


def weight_format(request: Request) -> Piece:
    """``--quantization`` or ``--dtype`` where the engine converts at load; else a note."""
    conversion, notes = weight_conversion(request)
    if conversion is None:
        return Piece(notes=notes)
    name, value = conversion.split("=")
    return Piece((f"--{name}", value), notes=notes)


def grouped_offload(request: Request) -> Piece:
    """Which layers go to the host, in groups."""
    wanted, layers = request.configuration.offload_layers, request.context.layers
    if wanted == 0:
        return noted("offload_layers 0: every layer stays on the device")
    if layers is None:
        return noted(f"offload_layers {wanted}: the model's layer count is not known, so its groups cannot be given")
    group, offloaded = grouping(layers, min(wanted, layers))
    return Piece(
        ("--offload-group-size", str(group), "--offload-num-in-group", str(offloaded)),
        notes=(f"offload_layers {wanted}: the last {offloaded} of every {group} layers, {min(wanted, layers)} of {layers}",),
    )


def prefetch_step(request: Request) -> Piece:
    """Buffers that hold layers on their way: as many as layers are fetched ahead."""
    wanted = request.configuration.prefetch_buffers
    return flag("--offload-prefetch-step", wanted) if wanted else noted("prefetch_buffers 0: nothing is copied")


def without_draft(request: Request) -> Piece | None:
    """What is said when nothing drafts, or the engine cannot draft this way; None when it drafts."""
    wanted = request.configuration.draft
    if wanted is DraftSource.NONE:
        return noted("draft none: one token of each request a step")
    if wanted not in request.engine.drafts:
        return noted(f"draft {wanted.value}: not available, left out")
    return None


def without_draft_tokens(request: Request) -> Piece | None:
    """The same for the number of draft tokens."""
    configuration = request.configuration
    if configuration.draft in request.engine.drafts:
        return None
    return noted(f"draft_tokens {configuration.draft_tokens}: nothing drafts")


def default_sizes(request: Request) -> Piece | None:
    """What is said of captured sizes that the engine chooses; None when the configuration names them."""
    configuration = request.configuration
    if configuration.captured_sizes:
        return None
    if not configuration.cuda_graphs:
        return noted("captured_sizes: none, CUDA graphs are off")
    sizes = request.engine.captured_sizes(configuration)
    if not sizes:
        return noted(f"captured_sizes: {request.engine.title} keeps no list of sizes")
    return noted(f"captured_sizes: {request.engine.title}'s own list, {len(sizes)} sizes up to {max(sizes)} rows where the memory allows")


def whole_requests(request: Request) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Captured sizes in requests for engines that count them; a note names the sizes that are no whole number of requests."""
    sizes = request.configuration.captured_sizes
    odd = [str(size) for size in sizes if size % request.rows]
    said = f"captured_sizes: {request.engine.title} counts requests of {request.rows} rows; left out, no multiples: {', '.join(odd)}"
    return tuple(size // request.rows for size in sizes if size % request.rows == 0), (said,) if odd else ()
