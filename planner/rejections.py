"""Why the values of the search that are not in the answer are not: their best score, the limits they break, or the engine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from models.case import Case
from models.describe.engine import not_launchable
from solvers.full_resolution import unreachable
from solvers.grid import Cell, Grid
from solvers.space import left_out

Found = tuple[tuple[float, Cell], ...]


def rejected_values(grid: Grid, found: Found, able: npt.NDArray[np.bool_]) -> dict[str, str]:
    """One line for each value of a branch variable that the best configuration does not have."""
    if not found:
        return {}
    best, winner = found[0]
    lines: dict[str, str] = {}
    for name, label, branches in _values(grid):
        if branches[winner.branch]:
            continue
        score = min((s for s, cell in found if branches[cell.branch]), default=None)
        if not bool((branches & able).any()):
            lines[f"{name} {label}"] = "not launchable: " + _reason(grid, int(np.flatnonzero(branches)[0]))
        elif score is not None:
            lines[f"{name} {label}"] = f"its best is {score:.4g} ({score / best - 1:+.1%})"
        else:
            broken = unreachable(grid, branches & able)
            lines[f"{name} {label}"] = "nothing feasible: " + (" and ".join(broken) or "the limits together") + " cannot hold"
    return lines


def _values(grid: Grid) -> Iterator[tuple[str, str, npt.NDArray[np.bool_]]]:
    """(variable, value, its branches) for each variable that varies; drafts are told apart by source."""
    codes = np.unravel_index(np.arange(len(grid.columns.buffers)), grid.axes.shape)
    x = grid.axes
    named: list[tuple[str, list[str], npt.NDArray[np.intp]]] = [
        ("tensor_parallel", [str(v) for v in x.tensor_parallel], codes[0]),
        ("weight_format", list(x.weight_format), codes[1]),
        ("kv_format", [v.value for v in x.kv_format], codes[2]),
        ("prefix_sharing", ["on" if v else "off" for v in x.prefix_sharing], codes[3]),
        ("draft", [draft.value for draft, _ in x.speculation], codes[4]),
        ("cuda_graphs", ["on" if on else "off" for on, _, _ in x.graphs], codes[6]),
    ]
    for name, labels, code in named:
        of_branch = np.array(labels)[code]
        distinct = list(dict.fromkeys(labels))
        if len(distinct) > 1:
            for label in distinct:
                yield name, label, of_branch == label


def _reason(grid: Grid, branch: int) -> str:
    some = bool(grid.columns.buffers[branch] > 0)
    o = int(grid.o[-1]) if some else 0
    if some and o == 0:
        return "prefetch buffers without offloaded layers"
    cell = Cell(branch, int(grid.b[0]), int(grid.a[-1]), int(grid.c[-1]), o)
    reasons = not_launchable(grid.configuration(cell), grid.case.engine, grid.case.architecture.family)
    return "; ".join(reasons)


def left_out_notes(case: Case) -> tuple[str, ...]:
    """Formats that the search did not try, and how to include them."""
    ways = {"kv_format": f", or state workload.{case.class_name}.quality.correct_by_kv_format", "weight_format": ""}
    return tuple(
        f"not searched, since nothing says that their answers are as right: {name.replace('_', ' ')} {', '.join(values)}; "
        f"list them under search.{name}{ways[name]}"
        for name, values in left_out(case).items()
    )
