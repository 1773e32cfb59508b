"""/v1/catalog: what scenarios can name."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from api.documents import sent
from models.catalog.calibrations_catalog import calibration_names, load_calibration
from models.catalog.devices import catalogue_version, device_ids, load_device
from models.catalog.engines import engine_names, engine_versions, load_engine
from models.catalog.models_catalog import model_entry, model_names

router = APIRouter(prefix="/v1/catalog", tags=["catalogue"])


@router.get("/models")
def models() -> JSONResponse:
    """Names of models with the source of their shape."""
    return sent({"items": _models()})


@cache
def _models() -> list[dict[str, Any]]:
    entries = (model_entry(name) for name in model_names())
    return [
        {"name": one["name"], "family": one["config"].get("model_type"), "source": one.get("source"), "date": one.get("date")}
        for one in entries
    ]


@router.get("/devices")
def devices() -> JSONResponse:
    """Devices in SI units, with sources and where these disagree."""
    rows = [
        {
            "id": d.id, "name": d.name, "architecture": d.architecture, "memory_bytes": d.memory_bytes,
            "memory_bandwidth_bytes_per_s": d.memory_bandwidth_bytes_per_s, "peaks_flop_per_s": dict(d.peaks),
            "host_link_bytes_per_s": d.host_link_bytes_per_s, "gpu_link_bytes_per_s": d.gpu_link_bytes_per_s,
            "power_w": d.power_w, "sources": list(d.sources), "disagreements": list(d.disagreements), "note": d.note,
        }
        for d in map(load_device, device_ids())
    ]  # fmt: skip
    return sent({"version": catalogue_version(), "items": rows})


@router.get("/engines")
def engines() -> JSONResponse:
    """Engines and the versions with rules of their own."""
    newest = {name: load_engine(name) for name in engine_names()}
    rows = [{"name": n, "title": e.title, "newest": e.version, "versions": list(engine_versions(n))} for n, e in newest.items()]
    return sent({"items": rows})


@router.get("/calibrations")
def calibrations(request: Request) -> JSONResponse:
    """Shipped and stored calibrations; a stored version is asked for as ``name@version``, its newest by name alone."""
    shipped = [_calibration(one.name, one.version, one.model_dump(), stored=False) for one in map(load_calibration, calibration_names())]
    found = request.app.state.database.calibrations.list()
    return sent({"items": shipped + [_calibration(one.name, str(one.version), one.document["calibration"], stored=True) for one in found]})


def _calibration(name: str, version: str, description: dict[str, Any], *, stored: bool) -> dict[str, Any]:
    covered = {key: description.get(key) for key in ("device", "engine", "engine_version", "model")}
    return {"name": name, "version": version, "stored": stored, **covered}
