"""``goodput model``: what a model's shape means in parameters, bytes and FLOPs."""

from __future__ import annotations

from typing import Annotated

import typer

from api.commands.plan import AsJson


def model(
    name: Annotated[str, typer.Argument(metavar="NAME_OR_PATH", help="Catalogue name, config.json, folder or .gguf (header only).")],
    tokens: Annotated[int, typer.Option(help="Tokens that a sequence holds.")] = 8192,
    rows: Annotated[int, typer.Option(help="Rows (sequences) of a decode step.")] = 1,
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks.")] = 1,
    new: Annotated[int | None, typer.Option(help="New tokens of a prefill; default: all.")] = None,
    cached: Annotated[int, typer.Option(help="Tokens already in the cache before them.")] = 0,
    kv_format: Annotated[str, typer.Option(help="How KV is stored.")] = "bf16",
    as_json: AsJson = False,
) -> None:
    """Show parameters, weight bytes, reads of a step, KV and FLOPs of a model; weights are never loaded."""
    from api import output
    from models.describe.configuration import KvFormat
    from models.errors import UnknownNameError
    from models.model_report import model_report
    from models.readers.load import load_architecture

    if kv_format not in list(KvFormat):
        raise UnknownNameError.suggest("KV format", kv_format, list(KvFormat), path="--kv-format")
    report = model_report(load_architecture(name), tokens=tokens, rows=rows, tp=tp, new=new, cached=cached, kv_format=kv_format)
    if as_json:
        return output.write_json(report)
    from api.views.model import model_view

    return output.show(model_view(report))


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("model")(model)
