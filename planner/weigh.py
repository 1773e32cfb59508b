"""How sure a plan's order is, and what that is worth: the first few options under one belief, for plans and for advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models.case import Case
from planner.answer import Ranked
from planner.belief import Believed, believe, slopes
from planner.decision import Floats, Option, Order, order_of
from planner.resolve import CalibrationLookup

TOP = 6
"""Most options that are weighed against each other."""


@dataclass(frozen=True)
class Weighed:
    """Options that differ, what is believed of their times, and how sure their order is."""

    options: tuple[Option, ...]
    slopes: tuple[Floats, ...]
    believed: Believed
    order: Order

    @property
    def chances(self) -> dict[str, float]:
        """P(best) by label; ties go to the earlier."""
        return dict(zip((one.label for one in self.options), self.order.chances.tolist(), strict=True))


def weigh(case: Case, options: Sequence[Option], stored: CalibrationLookup | None) -> Weighed:
    """The first ``TOP`` of ``options`` that differ; at least one is needed."""
    kept: dict[tuple[float, ...], Option] = {}
    for one in options:
        kept.setdefault(one.mark, one)
    first = tuple(kept.values())[:TOP]
    believed = believe(case, stored.posterior(case.calibration) if stored else None, [one.configuration for one in first])
    along = tuple(slopes(one.case, one.configuration, believed.names) for one in first)
    return Weighed(first, along, believed, order_of(first, along, believed.belief))


@dataclass(frozen=True)
class Standing:
    """A ranking with each one's probability of being the best; ``decided`` None where there is no first or nothing to compare."""

    ranked: tuple[Ranked, ...]
    decided: bool | None = None
    warnings: tuple[str, ...] = ()


def standing(case: Case, ranked: tuple[Ranked, ...], options: Sequence[Option], stored: CalibrationLookup | None) -> Standing:
    """What the data say of the order of ``ranked``; ``options`` are those of it that the engine can run."""
    if not options:
        return Standing(ranked)
    weighed = weigh(case, options, stored)
    known = tuple(one.model_copy(update={"probability_best": weighed.chances.get(one.id)}) for one in ranked)
    order = weighed.order
    if order.probability is None or not ranked[0].feasible:
        return Standing(known)
    first, rival = weighed.options[0].label, weighed.options[order.rival].label
    words = (
        f"the order of {first} and {rival} is not decided by the data: {first} is no worse with probability {order.probability:.0%}; "
        "goodput advise names the runs that would decide it"
    )
    return Standing(known, order.decided, () if order.decided else (words,))
