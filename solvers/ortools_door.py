"""The door to OR-Tools. Its Python layer imports pandas (a CPU-second) only to offer series of variables, which nothing here uses;
while it is imported, two stand-in types take pandas' place, and they are gone again afterwards.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def _stand_in() -> ModuleType:
    module = ModuleType("pandas")
    for name in ("Index", "Series", "DataFrame"):
        setattr(module, name, type(name, (), {}))
    return module


def _import_cp_model() -> Any:
    if "pandas" in sys.modules or "ortools.sat.python.cp_model" in sys.modules:
        from ortools.sat.python import cp_model  # noqa: PLC0415

        return cp_model
    sys.modules["pandas"] = _stand_in()
    try:
        from ortools.sat.python import cp_model  # noqa: PLC0415
    finally:
        del sys.modules["pandas"]
    return cp_model


cp_model: Any = _import_cp_model()
