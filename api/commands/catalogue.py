"""``goodput devices``, ``engines``, ``models``: what the catalogue holds, with its sources."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from api.commands.plan import AsJson

Part = Annotated[str | None, typer.Argument(metavar="[WORD]", help="Only names that contain this word.")]


def devices(word: Part = None, as_json: AsJson = False) -> None:
    """List the devices: memory, bandwidth, dense peaks, links."""
    from api import output
    from models.catalog.devices import device_ids, load_device

    found = [load_device(name) for name in device_ids()]
    rows = [
        {
            "id": d.id, "name": d.name, "architecture": d.architecture, "memory_bytes": d.memory_bytes,
            "memory_bandwidth_bytes_per_s": d.memory_bandwidth_bytes_per_s, "peaks_flop_per_s": dict(d.peaks),
            "host_link_bytes_per_s": d.host_link_bytes_per_s, "gpu_link_bytes_per_s": d.gpu_link_bytes_per_s,
            "power_w": d.power_w, "sources": list(d.sources), "disagreements": list(d.disagreements), "note": d.note,
        }
        for d in found if _matches(word, d.id, d.name)
    ]  # fmt: skip
    if as_json:
        return output.write_json(rows)
    from api.views.catalogue import devices_view

    return output.show(devices_view(rows))


def engines(word: Part = None, as_json: AsJson = False) -> None:
    """List the engines and the versions whose rules are known."""
    from api import output
    from models.catalog.engines import engine_names, engine_versions, load_engine

    rows: list[dict[str, Any]] = []
    for name in engine_names():
        newest = load_engine(name)
        if _matches(word, name, newest.title):
            rows.append({"name": name, "title": newest.title, "newest": newest.version, "versions": list(engine_versions(name))})
    return _listed(rows, as_json, output, (("name", "name"), ("title", "engine"), ("versions", "versions with rules of their own")))


def models(word: Part = None, as_json: AsJson = False) -> None:
    """List the models of the catalogue; any config.json, folder or .gguf works as well."""
    from api import output
    from models.catalog.models_catalog import model_entry, model_names

    rows: list[dict[str, Any]] = []
    for name in model_names():
        if _matches(word, name):
            entry = model_entry(name)
            rows.append(
                {"name": name, "family": entry["config"].get("model_type"), "source": entry.get("source"), "date": entry.get("date")}
            )
    return _listed(rows, as_json, output, (("name", "name"), ("family", "family"), ("date", "read on")))


def _matches(word: str | None, *names: str) -> bool:
    return word is None or any(word.lower() in name.lower() for name in names)


def _listed(rows: list[dict[str, Any]], as_json: bool, output: Any, columns: tuple[tuple[str, str], ...]) -> None:
    if as_json:
        output.write_json(rows)
        return
    from api.views.catalogue import table_view

    output.show(table_view(rows, columns))


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (devices, engines, models):
        app.command(command.__name__)(command)
