"""The only reader of ``step_prior.json``: what the specification says of a step model before any run was seen."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from models.calibration.prior import AcceptancePrior, Prior
from models.errors import UnknownNameError

_FILE = Path(__file__).parent / "step_prior.json"
SINGLE = ("matmul_efficiency", "attention_efficiency", "bandwidth_efficiency", "half_rows", "overlap", "host_s", "host_per_sequence_s",
          "host_overlap")  # fmt: skip
PARALLEL = (*SINGLE, "collective_s", "collective_per_token_s")


@cache
def _file() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_FILE.read_bytes())
    return found


def step_prior(names: Sequence[str] = SINGLE, *, peak_bytes_per_s: float = 1.0) -> Prior:
    """Prior of the named parameters of the PHYSICAL step model ("name@format": of one KV format); the others keep the template's values.

    ``peak_bytes_per_s``: of all ranks; the cost of a conversion is stated as a share of the read at that speed.
    """
    known, noise = _file()["parameters"], _file()["noise"]
    plain = [name.partition("@")[0] for name in names]
    for name in plain:
        if name not in known:
            raise UnknownNameError.suggest("step parameter", name, known)
    rows = [known[name] for name in plain]
    medians = [r["median"] if "median" in r else r["share_of_read"] / peak_bytes_per_s for r in rows]
    return Prior(
        names=tuple(names), mean=tuple(math.log(median) for median in medians), sd=tuple(float(r["log_sd"]) for r in rows),
        most=tuple(math.log(r["most"]) if "most" in r else math.inf for r in rows), noise_sd=noise["log_sd"], noise_weight=noise["weight"],
    )  # fmt: skip


def acceptance_prior() -> AcceptancePrior:
    """What a trained draft head usually does."""
    return AcceptancePrior(**{n: float(v) for n, v in _file()["acceptance"].items() if n != "source"})
