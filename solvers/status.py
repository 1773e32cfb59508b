"""How a search ended, kept apart from what it found, so that a timed-out solve cannot pass as optimal."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from solvers.grid import Cell


class Status(StrEnum):
    """What is known about the answer."""

    OPTIMAL = "optimal"  # proven: no feasible configuration of the space scores less
    FEASIBLE = "feasible"  # an answer without a proof
    INFEASIBLE = "infeasible"  # proven: nothing in the space satisfies every constraint
    TIME_LIMIT = "time_limit"  # ended by the clock, with whatever was found


class Termination(StrEnum):
    """Why the search stopped."""

    PROVEN = "proven"
    RANKED = "every named configuration evaluated"
    LIMIT = "time limit"
    NOT_APPLICABLE = "outside what the proof covers"


@dataclass(frozen=True)
class Solution:
    """A solver's answer. ``bound`` is the least score that any configuration can have, as far as was proven."""

    status: Status
    termination: Termination
    score: float
    bound: float
    cell: Cell | None
    evaluated: int

    @property
    def gap(self) -> float | None:
        """(score - bound) / score; None without an answer."""
        return None if self.cell is None else max(0.0, (self.score - self.bound) / self.score)
