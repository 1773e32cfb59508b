"""Which engines can run a configuration, and why not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from models.case import Case
from models.catalog.engines import engine_names, load_engine
from models.describe.configuration import Configuration
from models.describe.engine import not_launchable
from solvers.grid import Cell, Grid


def launchable(case: Case, configuration: Configuration) -> dict[str, bool | str]:
    """For each engine of the catalogue (the scenario's at its version, the others at their newest): True or the reasons."""
    found: dict[str, bool | str] = {}
    for name in engine_names():
        engine = case.engine if name == case.engine.name else load_engine(name)
        reasons = not_launchable(configuration, engine, case.architecture.family)
        found[name] = "; ".join(reasons) if reasons else True
    return found


def launchable_branches(grid: Grid) -> npt.NDArray[np.bool_]:
    """Branches that the scenario's engine can run at its default sizes; sizes themselves are bounded by the registry's domains."""
    found = np.ones(len(grid.columns.buffers), dtype=np.bool_)
    known: dict[tuple[object, ...], bool] = {}
    codes = np.unravel_index(np.arange(len(found)), grid.axes.shape)
    for branch in range(len(found)):
        key = tuple(int(code[branch]) for code in codes)
        if key not in known:
            o = int(grid.o[grid.o > 0][0]) if grid.columns.buffers[branch] > 0 and np.any(grid.o > 0) else 0
            if grid.columns.buffers[branch] > 0 and o == 0:
                known[key] = True
            else:
                cell = Cell(branch, int(grid.b[0]), int(grid.a[-1]), int(grid.c[-1]), o)
                known[key] = not not_launchable(grid.configuration(cell), grid.case.engine, grid.case.architecture.family)
        found[branch] = known[key]
    return found
