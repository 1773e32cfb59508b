"""How a plan is searched; nothing here changes what is optimal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.resolve import CalibrationLookup

Progress = Callable[[int, int, float | None], None]
"""Called with (done, of, best value so far)."""


@dataclass(frozen=True)
class Options:
    """How to search; nothing here changes what is optimal."""

    time_limit_s: float = 30.0
    seed: int = 0
    prove: bool = True  # False: the full-resolution search alone, status feasible
    explain: bool = True  # switch points and relaxations
    launch: bool = True  # launch commands of the winner
    stored: CalibrationLookup | None = None
    trials: int = 200  # configurations simulated under rates
    requests: int = 2000  # requests of each simulation
    workers: int | None = None  # threads that simulate; None: all cores
    progress: Progress | None = None
