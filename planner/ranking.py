"""The order of an answer's configurations, who wins, and the Pareto front of several objectives."""

from __future__ import annotations

from models.case import Case
from planner.answer import Ranked


def wins(case: Case, ranked: tuple[Ranked, ...]) -> bool:
    """Whether the first configuration is feasible and its engine can run it."""
    return bool(ranked) and ranked[0].feasible and ranked[0].launchable[case.engine.name] is True and ranked[0].objective is not None


def order(case: Case, found: list[Ranked]) -> tuple[Ranked, ...]:
    """Feasible before infeasible, launchable before not, then by the objective, then by how little is violated."""

    def key(one: Ranked) -> tuple[object, ...]:
        able = one.launchable[case.engine.name] is True
        score = one.objective if one.objective is not None else float("inf")
        return (not one.feasible, not able, score, len(one.violations), one.time.makespan_s, len(one.id), one.id)

    return tuple(one.model_copy(update={"rank": i}) for i, one in enumerate(sorted(found, key=key), start=1))


def pareto_front(ranked: tuple[Ranked, ...]) -> tuple[str, ...]:
    """Ids of feasible configurations that no other matches or beats in every objective."""
    able = [one for one in ranked if one.feasible and None not in one.objectives.values()]

    def beaten(one: Ranked) -> bool:
        mine = [v or 0.0 for v in one.objectives.values()]
        others = ([v or 0.0 for v in other.objectives.values()] for other in able if other is not one)
        return any(all(o <= m for o, m in zip(other, mine, strict=True)) and other != mine for other in others)

    return tuple(one.id for one in able if not beaten(one)) if able and len(able[0].objectives) > 1 else ()
