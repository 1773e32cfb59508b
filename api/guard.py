"""What a scenario from afar may not do: name files of the server. Over REST models and devices are catalogue names."""

from __future__ import annotations

from pathlib import Path

from models.catalog.models_catalog import model_entry
from models.describe.scenario import Scenario
from models.errors import InputError, UnknownNameError
from models.readers.device_file import is_device_file


def refuse_files(scenario: Scenario) -> None:
    """Raise ``InputError`` for every field that the planner would read a file for."""
    _catalogue_model(scenario.model, "model")
    if is_device_file(scenario.hardware.device):
        raise InputError(
            "only devices of the catalogue can be planned over REST, no files", path="hardware.device", value=scenario.hardware.device,
            way_out="see /v1/catalog/devices, or use the command line",
        )  # fmt: skip
    for name, request in scenario.workload.items():
        if request.arrivals.trace is not None:
            raise InputError(
                "a trace file is not read over REST", path=f"workload.{name}.arrivals.trace", value=request.arrivals.trace.file,
                way_out="use the command line on the machine that holds the file",
            )  # fmt: skip
        for draft, given in request.speculation.items():
            if given.draft_model is not None:
                _catalogue_model(given.draft_model, f"workload.{name}.speculation.{draft}.draft_model")


def _catalogue_model(name: str, path: str) -> None:
    """A known catalogue name that no file where the server runs happens to have (such a file would be read instead)."""
    try:
        model_entry(name)
        if Path(name).exists():
            raise InputError(
                "names a file of the server as well", path=path, value=name, way_out="tell who runs the server to start it elsewhere"
            )
    except UnknownNameError as error:
        if name.startswith((".", "/", "~")) or "\\" in name or name.endswith((".json", ".gguf", ".safetensors")):
            raise InputError(
                "only models of the catalogue can be planned over REST, no files", path=path, value=name,
                way_out="see /v1/catalog/models, or use the command line",
            ) from None  # fmt: skip
        raise UnknownNameError(error.message, path=path, value=name, way_out=error.way_out) from None
