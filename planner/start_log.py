"""What a start-up log measured of an engine's memory, to stand in for the estimates of ``models.capacity``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from models.capacity import Measured
from models.errors import FileFormatError
from models.units import GIB
from planner.importers import import_paths
from planner.records import MemoryObservation

PRINTED = GIB // 200  # engines print hundredths of a GiB: half of one is open


def measured_from_log(path: str | Path, *, pool: bool = False) -> Measured:
    """Weights, non-torch memory, activation peak and graphs as the log says, of the rank with the least left for the pool.

    ``pool``: take the logged pool as well, so that only its arithmetic is predicted. Errors: FileFormatError without such a line.
    """
    seen = [observation for run in import_paths([path]).imported for observation in run.memory]
    if not seen:
        raise FileFormatError("no memory line of an engine's start", path=str(path), way_out="give the server's own start-up log")
    one = min(seen, key=lambda observation: (observation.kv_pool_bytes is None, observation.kv_pool_bytes or 0))
    return Measured(
        total=_first(seen, "total_bytes"), weights=one.weights_bytes or _first(seen, "weights_bytes"), non_torch=one.non_torch_bytes,
        activation=one.activation_bytes, graph=one.graph_bytes,
        available=one.kv_pool_bytes if pool else None, resolution=PRINTED if pool and one.kv_pool_bytes else 0,
    )  # fmt: skip


def _first(seen: Sequence[MemoryObservation], name: str) -> int | None:
    return next((getattr(observation, name) for observation in seen if getattr(observation, name) is not None), None)
