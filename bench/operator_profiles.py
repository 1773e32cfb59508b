"""How well a per-operator profile predicts its own points that it has not seen.

    python bench/operator_profiles.py DIR [--tensor-parallel N] [--json]

Attention: every second inner knot of one axis is left out (so that the spacing doubles: an upper bound of the error between the knots that
there are), and a fifth of all points drawn at random. Dense operators and heads: every second count. Reported: median and 90th percentile
of |predicted / measured - 1|, and the mean of predicted / measured - 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from scipy.interpolate import RegularGridInterpolator

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from models.calibration.operators import attention_grid, line
from models.errors import EXIT_BAD_INPUT, GoodputError
from models.readers.operator_profile import choose_profile, read_operator_profile
from models.simulation_types import Floats

AXES = ("chunk", "cached", "decoders", "context")
SHARE, SEED = 0.2, 0


def summary(ratio: Floats) -> dict[str, float]:
    error = np.abs(ratio - 1.0)
    return {
        "points": len(ratio), "median": float(np.median(error)), "p90": float(np.quantile(error, 0.9)), "bias": float(np.mean(ratio) - 1.0)
    }  # fmt: skip


def predicted(known: Floats, asked: Floats) -> Floats:
    grid = attention_grid(known)
    return np.asarray(RegularGridInterpolator(grid.axes, grid.seconds, bounds_error=False, fill_value=None)(asked[:, :4]))


def attention_errors(points: Floats) -> dict[str, dict[str, float]]:
    """By what was left out and by kind of step."""
    left_out = {"random": np.random.default_rng(SEED).random(len(points)) < SHARE}
    for axis, name in enumerate(AXES):
        knots = np.unique(points[points[:, axis] > 0, axis])
        left_out[name] = np.isin(points[:, axis], knots[1:-1:2])
    found = {}
    for name, held in left_out.items():
        asked = points[held]
        ratio = predicted(points[~held], asked) / asked[:, 4]
        chunk, decoders = asked[:, 0] > 0, asked[:, 2] > 0
        for kind, rows in (("prefill", chunk & ~decoders), ("decode", ~chunk), ("mixed", chunk & decoders)):
            if rows.any():
                found[f"{name} left out, {kind}"] = summary(ratio[rows])
    return found


def curve_errors(curves: dict[str, tuple[Floats, Floats]]) -> dict[str, dict[str, float]]:
    found = {}
    for name, (x, y) in curves.items():
        held = np.zeros(len(x), bool)
        held[1:-1:2] = True
        if held.any():
            found[name] = summary(line((x[~held], y[~held]), x[held]) / y[held])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profile", type=Path)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        profile = read_operator_profile(choose_profile(options.profile, options.tensor_parallel))
    except GoodputError as problem:
        print(f"error: {problem}", file=sys.stderr)
        raise SystemExit(EXIT_BAD_INPUT) from None
    answer = {
        "attention": attention_errors(profile.attention), "dense": curve_errors(dict(profile.dense)),
        "heads": curve_errors(dict(profile.heads)),
    }  # fmt: skip
    if options.json:
        print(json.dumps(answer, indent=1))
        return
    for part, lines in answer.items():
        for name, seen in lines.items():
            errors = f"median {seen['median']:6.1%}  p90 {seen['p90']:6.1%}  bias {seen['bias']:+6.1%}"
            print(f"{part:10} {name:30} n {seen['points']:6}  {errors}")


if __name__ == "__main__":
    main()
