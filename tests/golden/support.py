"""The chapter's numbers and their tolerance, and the chapter's two requests as cases of the product's own models."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from models.case import BranchAxes, Case
from models.columns import Columns
from models.describe.configuration import Configuration
from models.lower import lower
from models.readers.load import load_architecture
from planner.resolve import resolve
from planner.scenario_file import parse_scenario, read_raw

ROOT = Path(__file__).parents[2]
GOLDEN: dict[str, Any] = yaml.safe_load((ROOT / "tests/data/golden/chapter8.yaml").read_text())
SCENARIO = read_raw(ROOT / "scenarios/chapter8.yaml")
QWEN = load_architecture("Qwen/Qwen3-8B")
MIB, GIB, GB, MS = 1 << 20, 1 << 30, 10**9, 1e-3


def printed(value: float) -> Any:
    """Within half a unit of the last digit that the chapter prints (and a hair for the decimal fraction itself)."""
    exponent = Decimal(repr(value)).as_tuple().exponent
    assert isinstance(exponent, int)
    return pytest.approx(value, rel=0, abs=0.5000001 * 10.0**exponent)


def row(section: str, name: str) -> dict[str, Any]:
    """The row of that id."""
    return next(r for r in GOLDEN[section] if r["id"] == name)


def expected(section: str, name: str) -> Any:
    """A row's value with its own tolerance."""
    found = row(section, name)
    if "rel" in found:
        return pytest.approx(found["value"], rel=found["rel"])
    return found["value"] if "exact" in found else printed(found["value"])


def case(which: str, burst: int, calibration: str = "chapter8") -> Case:
    """``burst`` of the chapter's short or long requests."""
    shape = GOLDEN["conditions"][which]
    workload = {
        "prompt_tokens": shape["prompt"], "output_tokens": shape["output"], "shared_prefix_tokens": shape["shared_prefix"],
        "prefix_cached": shape["shared_prefix"] > 0, "arrivals": {"burst": burst}, "slo": {"e2e": f"{shape['e2e_deadline_s']} s"},
    }  # fmt: skip
    return resolve(parse_scenario(SCENARIO | {"workload": {which: workload}, "candidates": None, "calibration": calibration}))


def columns(one: Case, **settings: Any) -> Columns:
    """Lowered form of one configuration of a case, with the plain engine's settings unless stated."""
    plain = {"max_num_seqs": 64, "max_num_batched_tokens": 8192, "cuda_graphs": False, "weight_format": one.stored_format}
    return lower(one, BranchAxes.of(Configuration.parse(plain | settings)))
