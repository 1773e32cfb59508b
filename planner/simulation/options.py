"""Which configuration a simulation runs, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from planner.resolve import CalibrationLookup


@dataclass(frozen=True)
class SimulationOptions:
    """Which configuration runs, and how."""

    configuration: str | None = None  # a candidate, ``engine``, or a rank of the plan; None: first candidate or the plan's winner
    trials: int = 200  # of the plan, where its rank is asked for
    requests: int = 2000
    seed: int = 0
    rate: float | None = None  # 1/s of all open classes together
    policy: str | None = None  # None: the engine's own
    expected: bool = False  # every speculative round emits its mean
    knee: bool = False
    timeline: bool = False
    stored: CalibrationLookup | None = None
    progress: Callable[[float], None] = field(default=lambda _: None)
