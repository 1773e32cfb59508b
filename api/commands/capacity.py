"""``goodput capacity``: the KV pool that an engine logs when it starts, before anybody has started it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.commands.plan import AsJson

if TYPE_CHECKING:
    from models.capacity import Measured

Rank = "GiB of one rank, as logged; replaces the estimate."


def capacity(
    model: Annotated[str, typer.Option(help="Catalogue name, config.json, folder or .gguf (header only).")],
    engine: Annotated[str, typer.Option(help="vllm, sglang, llama.cpp or trtllm.")] = "vllm",
    engine_version: Annotated[str | None, typer.Option(help="Release; default: the newest rules.")] = None,
    device: Annotated[str | None, typer.Option(help="Device of the catalogue; not needed where --available-kv is given.")] = None,
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages.")] = 1,
    attention_dp: Annotated[int, typer.Option(help="Data-parallel groups of attention (SGLang's dp attention).")] = 1,
    max_model_len: Annotated[int | None, typer.Option(help="Longest request; llama.cpp: context of all slots.")] = None,
    gpu_memory_utilization: Annotated[float | None, typer.Option(help="Share of the device (SGLang: static fraction).")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Most running requests.")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="Most tokens of a step.")] = None,
    kv_cache_dtype: Annotated[str, typer.Option(help="Number format of the cache; auto: the model's own.")] = "auto",
    weight_format: Annotated[str, typer.Option(help="Number format of the weights; stored: the checkpoint's.")] = "stored",
    block_size: Annotated[int | None, typer.Option(help="Tokens of a block.")] = None,
    enforce_eager: Annotated[bool, typer.Option("--enforce-eager", help="Without CUDA graphs.")] = False,
    prefix_caching: Annotated[
        bool | None, typer.Option("--enable-prefix-caching/--no-enable-prefix-caching", help="Default: by version.")
    ] = None,
    no_hybrid: Annotated[
        bool, typer.Option("--disable-hybrid-kv-cache-manager", help="vLLM: windowed layers keep every token (so with most KV connectors).")
    ] = False,
    enable_lora: Annotated[bool, typer.Option("--enable-lora", help="Adapters are served.")] = False,
    attention_backend: Annotated[str, typer.Option(help="SGLang: aiter takes a workspace before the pool.")] = "",
    draft: Annotated[str, typer.Option(help="none, lookup, eagle, mtp, dflash or model.")] = "none",
    draft_model: Annotated[str | None, typer.Option(help="The draft's own shape; default: shaped like the model's layers.")] = None,
    draft_tokens: Annotated[int, typer.Option(help="Drafted tokens of a step.")] = 0,
    parallel: Annotated[int, typer.Option(help="Slots (llama.cpp).")] = 1,
    micro_batch: Annotated[int, typer.Option(help="Tokens of a micro-batch (llama.cpp -ub).")] = 512,
    available_kv: Annotated[
        list[str] | None, typer.Option(help="Bytes of the pool, e.g. 16GiB (exact) or 3.81GiB (rounded); repeat it for each rank.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help=Rank)] = None,
    non_torch: Annotated[str | None, typer.Option(help=Rank)] = None,
    activation: Annotated[str | None, typer.Option(help=Rank)] = None,
    graphs: Annotated[str | None, typer.Option(help=Rank)] = None,
    log: Annotated[str | None, typer.Option(help="Start-up log whose measured parts replace the estimates.")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict available KV memory, tokens or blocks, block size and concurrency at start, or the refusal."""
    from api import output
    from api.views.capacity import capacity_view
    from models.capacity import capacity_report
    from models.catalog.devices import load_device
    from models.readers.load import load_architecture

    _refuse_foreign(engine, parallel=parallel, micro_batch=micro_batch, no_hybrid=no_hybrid, attention_backend=attention_backend)
    measured = _measured(log, available_kv or [], {"weights": weights, "non_torch": non_torch, "activation": activation, "graph": graphs})
    report = capacity_report(
        load_architecture(model), load_device(device) if device else None, engine, engine_version, measured=measured,
        tp=tp, pp=pp, attention_dp=attention_dp, max_model_len=max_model_len, gpu_memory_utilization=gpu_memory_utilization,
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, kv_cache_dtype=kv_cache_dtype,
        weight_format=weight_format, block_size=block_size, enforce_eager=enforce_eager, enable_prefix_caching=prefix_caching,
        hybrid_manager=not no_hybrid, enable_lora=enable_lora, attention_backend=attention_backend,
        draft=draft, draft_tokens=draft_tokens, draft_model=load_architecture(draft_model) if draft_model else None,
        parallel=parallel, micro_batch=micro_batch,
    )  # fmt: skip
    return output.write_json(report) if as_json else output.show(capacity_view(report))


def _refuse_foreign(engine: str, *, parallel: int, micro_batch: int, no_hybrid: bool, attention_backend: str) -> None:
    """A flag that only another engine knows would change nothing here, so it is an error."""
    from models.catalog.engines import canonical_name
    from models.errors import ContradictionError

    name = canonical_name(engine)
    owners = {
        "--parallel": (parallel != 1, "llama_cpp"), "--micro-batch": (micro_batch != 512, "llama_cpp"),
        "--disable-hybrid-kv-cache-manager": (no_hybrid, "vllm"), "--attention-backend": (bool(attention_backend), "sglang"),
    }  # fmt: skip
    for flag, (given, owner) in owners.items():
        if given and name != owner:
            raise ContradictionError(f"is a setting of {owner}, not of {name}", path=flag, way_out="leave it out")


def _measured(log: str | None, ranks: list[str], given: dict[str, str | None]) -> Measured:
    """What is given by hand, over what the log says; a number written with decimals is rounded to its last one."""
    from dataclasses import replace

    from models.capacity import Measured
    from models.capacity.settings import half_of_last_digit
    from models.units import parse_bytes
    from planner.start_log import measured_from_log

    sizes: dict[str, Any] = {name: parse_bytes(text, f"--{name.replace('_', '-')}") for name, text in given.items() if text is not None}
    if ranks:
        sizes["ranks"] = tuple(parse_bytes(text, "--available-kv") for text in ranks)
        sizes["resolution"] = max(half_of_last_digit(text) for text in ranks)
    return replace(measured_from_log(log) if log else Measured(), **sizes)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("capacity")(capacity)
