"""``goodput import`` and ``goodput runs``: measured results into the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.commands.plan import AsJson
from models.errors import EXIT_BAD_INPUT

if TYPE_CHECKING:
    from planner.import_runs import Imported

Fact = "Where the files do not say it."
Text = Annotated[str | None, typer.Option(help=Fact)]
Number = Annotated[int | None, typer.Option(help=Fact)]
Column = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="MEANING=COLUMN[:UNIT]", help="Column of a CSV table, e.g. ttft.p50=TTFT:ms; repeatable."),
]


def import_(
    paths: Annotated[list[str], typer.Argument(metavar="PATHS...", help="Result files and folders of benchmark tools and engines.")],
    device: Annotated[str | None, typer.Option(help=f"{Fact} A name of the catalogue or a file that describes your own.")] = None,
    tp: Number = None,
    model: Annotated[str | None, typer.Option(help=f"{Fact} A name of the catalogue, a config.json or a .gguf.")] = None,
    engine: Text = None,
    engine_version: Text = None,
    precision: Text = None,
    weight_format: Text = None,
    kv_format: Text = None,
    cuda_graphs: Annotated[str | None, typer.Option(help="true or false, where the files do not say it.")] = None,
    pp: Number = None,
    max_num_seqs: Number = None,
    max_num_batched_tokens: Number = None,
    input_len: Number = None,
    output_len: Number = None,
    batch_size: Number = None,
    column: Column = None,
    fail_if_refused: Annotated[bool, typer.Option("--fail-if-refused", help="Exit with 2 if anything was not stored.")] = False,
    as_json: AsJson = False,
) -> None:
    """Store measured runs; what the files do not say is asked for by name, what cannot be used is listed with line and reason."""
    from api import output, storage
    from planner.import_runs import import_runs
    from planner.importers import parse_columns

    known = {
        "device": device, "tensor_parallel": tp, "model": model, "engine": engine, "engine_version": engine_version, "precision": precision,
        "weight_format": weight_format, "kv_format": kv_format, "cuda_graphs": cuda_graphs, "pipeline_parallel": pp,
        "max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens, "prompt_tokens": input_len,
        "output_tokens": output_len, "concurrency": batch_size,
    }  # fmt: skip
    facts = {name: str(value) for name, value in known.items() if value is not None}
    with storage.database() as opened, output.progress("reading results"):
        found = import_runs(paths, opened.runs, opened.calibrations, known=facts, columns=parse_columns(column) if column else None)
    _shown(found, as_json=as_json)
    if not (found.stored or found.duplicates) or (fail_if_refused and (found.refused or found.incomplete)):
        raise typer.Exit(EXIT_BAD_INPUT)


def _shown(found: Imported, *, as_json: bool) -> None:
    from api import output
    from api.views.runs import import_document, import_view

    if as_json:
        output.write_json(import_document(found))
    else:
        output.show(import_view(found))


def runs(
    device: Annotated[str | None, typer.Option(help="Only of this device.")] = None,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    engine: Annotated[str | None, typer.Option(help="Only of this engine.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most runs to list.")] = 200,
    as_json: AsJson = False,
) -> None:
    """List the stored runs, oldest first."""
    from api import output, storage
    from api.views.runs import run_row, runs_view
    from models.readers.device_file import is_device_file, read_device
    from planner.ports import RunFilter

    device = read_device(device).id if device and is_device_file(device) else device
    rows: list[dict[str, Any]] = []
    if storage.exists():
        with storage.database() as opened:
            which = RunFilter(model=model, device=device, engine=engine)
            rows = [run_row(one) for one in opened.runs.list(which, limit=limit)]
    if as_json:
        output.write_json(rows)
    else:
        output.show(runs_view(rows))


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("import")(import_)
    app.command("runs")(runs)
