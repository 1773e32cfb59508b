"""How near the calibrated predictions come to published measurements: TTFT and TPOT of closed loops on rows that were held out.

    python bench/accuracy.py TABLE.csv [--calibrate-on 5] [--seed 0] [--json] [--quick] [--leave-out]

Everything is fitted at run time from the table that is given. Protocols, for each (model, system, engine, precision) group in turn:
    K       the fit sees all other groups and K random rows of this group, and predicts the group's other rows
    0       the fit sees the other groups only, and predicts the whole group
    K only  one fit sees K rows of every group and nothing else
each on distinct measurements, refitted for every group. With ``--leave-out`` K and 0 also without all other groups of the model, the
system or the engine, and on halves of the groups: what needs relatives in the table shows there. K and 0 also on the table as listed,
duplicates kept, from one fit whose held-out rows are removed in closed form (its linearisation, not its coefficients, has seen them).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.silicon_rows import Refused, Row, architectures, distinct, load_architecture, read_table, thin, with_years
from models.calibration.additive import AdditiveModel, Fit, Floats, Ints, Kernel, Table, interval_scale
from models.calibration.served_load import LoadFacts, ServedLoad, first_token_terms, load_facts, shape_of, step_terms
from models.catalog.devices import load_device
from models.catalog.serving_prior import first_token_coefficients, kernel_widths, step_coefficients
from models.errors import GoodputError

METRICS = ("tpot", "ttft")
COVERAGE, QUANTILE = 0.9, 1.6448536269514722  # two-sided 90 % of a normal
_ENOUGH = 50  # held-out errors that a learned interval width needs
MOST_ROWS = 4000  # a fit takes rows^2 memory and rows^3 time
HALVES = (0, 1, 2)
Predict = Callable[[AdditiveModel, Floats, dict[str, Ints]], "Outcome"]


_ALL_SEEN: Mapping[str, Ints] = {}
_NOTHING = (np.zeros(0, dtype=np.intp), np.zeros(0), np.zeros(0))


@dataclass(frozen=True)
class Outcome:
    """Predictions of held-out rows: indices, log errors (predicted over measured), half widths of the 90 % interval in log."""

    rows: Ints
    error: Floats
    half_width: Floats


def facts_of(rows: list[Row]) -> tuple[dict[int, LoadFacts], list[Refused]]:
    """Physical quantities by line of the file, and the rows whose device or model lacks what they need."""
    known, found, refused = architectures(), {}, []
    shapes = {m: shape_of(load_architecture(known[m])) for m in {r.model for r in rows}}
    for r in rows:
        try:
            load = ServedLoad(
                arch=load_architecture(known[r.model]), device=load_device(r.system), compute_precision=r.compute_precision,
                dense_bits=r.dense_bits, expert_bits=r.expert_bits, kv_format=r.kv_format, devices=r.devices,
                attention_ranks=r.attention_ranks, expert_parallel=r.expert_parallel, concurrency=r.concurrency,
                prompt=r.prompt, output=r.output,
            )  # fmt: skip
            found[r.line] = load_facts(load, shapes[r.model])
        except GoodputError as reason:
            refused.append(Refused(r.line, r.key, str(reason)))
    return found, refused


def labels_of(rows: list[Row]) -> dict[str, list[str]]:
    parallel = [f"{r.devices}/{r.attention_ranks}/{r.expert_parallel}" for r in rows]
    version = [f"{r.engine} {r.version}" for r in rows]
    deployed = [f"{r.group} {v} {p}" for r, v, p in zip(rows, version, parallel, strict=True)]
    return {
        "engine": [r.engine for r in rows], "model": [r.model for r in rows], "version": version, "group": [r.group for r in rows],
        "device_precision": [f"{r.system} {r.precision}" for r in rows], "engine_harness": [f"{r.engine} {r.harness}" for r in rows],
        "engine_model": [f"{r.engine} {r.model}" for r in rows],
        "group_version": [f"{r.group} {v}" for r, v in zip(rows, version, strict=True)], "group_version_parallelism": deployed,
    }  # fmt: skip


def build(rows: list[Row], facts: list[LoadFacts], metric: str) -> AdditiveModel:
    guess = step_coefficients()
    steps = [step_terms(f) for f in facts]
    if metric == "tpot":
        spec, terms = guess, steps
    else:
        spec = first_token_coefficients()
        terms = [first_token_terms(f, sum(guess[n] * t for n, t in s.items())) for f, s in zip(facts, steps, strict=True)]
    names, widths = tuple(spec), kernel_widths()
    features = np.array([[*f.features, 2.0 * (r.years or 0.0)] for f, r in zip(facts, rows, strict=True)])
    table = Table(names, np.array([[t[n] for n in names] for t in terms]), np.array([spec[n] for n in names]), features, labels_of(rows))
    width = tuple(widths["width"].get(n, 1.0) for n in names)
    lengths, kind = tuple(widths["lengths"].values()), "step" if metric == "tpot" else "first_token"
    term_sd = widths["term_sd"] | {"model": widths["model_sd"][kind]}
    kernel = Kernel(width, widths["shared_sd"], term_sd, widths["offset_sd"], widths["smooth_sd"], lengths, widths["noise_sd"][kind])
    return AdditiveModel(table, kernel)


def _measured(rows: list[Row], metric: str) -> Floats:
    return np.log(np.array([r.tpot_s if metric == "tpot" else r.ttft_s for r in rows]))


def _groups(rows: list[Row], rng: np.random.Generator) -> dict[str, Ints]:
    """Group -> its rows in random order: the first K are the calibration rows."""
    members: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        members[row.group].append(i)
    return {name: rng.permutation(np.array(found, dtype=np.intp)) for name, found in sorted(members.items())}


def _scale(errors: list[tuple[Floats, Floats]]) -> float:
    """Interval factor that covers what was held out; without enough of it the prior's own width stays."""
    standard = [e / sd for e, sd in errors]
    return interval_scale(standard, COVERAGE, QUANTILE) if sum(map(len, standard)) >= _ENOUGH else 1.0


def _learned_scale(model: AdditiveModel, fit: Fit, groups: dict[str, Ints], keep: int) -> float:
    """The factor that would have covered the fitted groups, had each shown only ``keep`` of its rows."""
    where = {int(row): i for i, row in enumerate(fit.rows)}
    blocks = [np.array([where[int(r)] for r in rows[keep:]], dtype=np.intp) for rows in groups.values() if len(rows) > keep]
    return _scale(model.held_out(fit, blocks))


def evaluate(model: AdditiveModel, measured: Floats, groups: dict[str, Ints], keep: int, hidden: Mapping[str, Ints] = _ALL_SEEN) -> Outcome:
    """Each group in turn: a fit on the other groups in full plus ``keep`` rows of this one, without its ``hidden`` rows of other groups."""
    alike: dict[bytes, list[str]] = defaultdict(list)  # groups whose fits see the same rows share one
    for name, rows in groups.items():
        if len(rows) > keep:
            unseen = np.concatenate([rows[keep:], hidden.get(name, _NOTHING[0])])
            alike[np.setdiff1d(np.arange(len(measured)), unseen).tobytes()].append(name)
    found = [_NOTHING]
    for seen, names in alike.items():
        train = np.frombuffer(seen, dtype=np.intp)
        fit = model.fit(measured, train)
        scale = _learned_scale(model, fit, {o: rows for o, rows in groups.items() if o not in names and rows[-1] in train}, keep)
        for test in (groups[name][keep:] for name in names):
            answer = model.predict(fit, test)
            found.append((test, answer.log_mean - measured[test], answer.log_sd * scale * QUANTILE))
    return Outcome(*(np.concatenate(part) for part in zip(*found, strict=True)))


def evaluate_once(model: AdditiveModel, measured: Floats, groups: dict[str, Ints], keep: int) -> Outcome:
    """As ``evaluate``, from one fit of all rows whose blocks are removed in closed form; a group's width comes from the others."""
    fit = model.fit(measured, np.arange(len(measured)))
    tests = {name: rows[keep:] for name, rows in groups.items() if len(rows) > keep}
    errors = dict(zip(tests, model.held_out(fit, list(tests.values())) if len(measured) else [], strict=True))
    found = [_NOTHING]
    for name, (error, sd) in errors.items():
        others = [e for other, e in errors.items() if other != name]
        found.append((tests[name], -error, sd * _scale(others) * QUANTILE))
    return Outcome(*(np.concatenate(part) for part in zip(*found, strict=True)))


def relatives(rows: list[Row], groups: dict[str, Ints], attribute: str) -> dict[str, Ints]:
    """By group the rows of other groups with the same ``attribute``."""
    values = np.array([getattr(r, attribute) for r in rows])
    return {name: np.setdiff1d(np.flatnonzero(values == values[mine[0]]), mine) for name, mine in groups.items()}


def half(rows: list[Row], seed: int) -> list[Row]:
    """Rows of a random half of the groups."""
    names = np.random.default_rng(seed).permutation(sorted({r.group for r in rows}))
    kept = set(names[: -(-len(names) // 2)].tolist())
    return [r for r in rows if r.group in kept]


def evaluate_only(model: AdditiveModel, measured: Floats, groups: dict[str, Ints], keep: int) -> Outcome:
    """One fit on ``keep`` rows of every group and nothing else."""
    train = np.concatenate([rows[:keep] for rows in groups.values()])
    test = np.concatenate([rows[keep:] for rows in groups.values()])
    fit = model.fit(measured, train)
    errors = model.held_out(fit, [np.array([i], dtype=np.intp) for i in range(len(train))])
    answer = model.predict(fit, test)
    return Outcome(test, answer.log_mean - measured[test], answer.log_sd * _scale(errors) * QUANTILE)


def summary(error: Floats, half_width: Floats) -> dict[str, float | None]:
    """Absolute percentage errors and bias as fractions, share of measurements within their 90 % interval; null where no row is left."""
    if not len(error):
        return {"rows": 0, "median_ape": None, "mean_ape": None, "bias": None, "coverage_90": None}
    relative = np.exp(error) - 1.0
    return {
        "rows": len(error), "median_ape": float(np.median(np.abs(relative))), "mean_ape": float(np.mean(np.abs(relative))),
        "bias": float(np.median(relative)), "coverage_90": float(np.mean(np.abs(error) <= half_width)),
    }  # fmt: skip


def report(rows: list[Row], outcome: Outcome) -> dict[str, Any]:
    names = np.array([rows[i].group for i in outcome.rows])
    by_group = {str(g): summary(outcome.error[names == g], outcome.half_width[names == g]) for g in np.unique(names)}
    return {"overall": summary(outcome.error, outcome.half_width), "groups": by_group}


@dataclass(frozen=True)
class Prepared:
    """Rows with their physical quantities, grouped; what every protocol starts from."""

    rows: list[Row]
    groups: dict[str, Ints]
    models: dict[str, AdditiveModel]
    measured: dict[str, Floats]

    @classmethod
    def of(cls, rows: list[Row], facts: Mapping[int, LoadFacts], seed: int) -> Prepared:
        known = [facts[r.line] for r in rows]
        groups = _groups(rows, np.random.default_rng(seed))
        return cls(rows, groups, {m: build(rows, known, m) for m in METRICS}, {m: _measured(rows, m) for m in METRICS})

    def report(self, predict: Predict) -> dict[str, Any]:
        """Each metric's errors under one protocol."""
        return {m: report(self.rows, predict(self.models[m], self.measured[m], self.groups)) for m in METRICS}


def _distinct(given: Prepared, keep: int) -> dict[str, Any]:
    found = {f"distinct, K={k}": given.report(partial(evaluate, keep=k)) for k in dict.fromkeys((keep, 0))}
    return found | ({f"distinct, K={keep} only": given.report(partial(evaluate_only, keep=keep))} if keep else {})


def _listed(given: Prepared, keep: int) -> dict[str, Any]:
    return {f"as listed, K={k}": given.report(partial(evaluate_once, keep=k)) for k in dict.fromkeys((keep, 0))}


def _left_out(given: Prepared, facts: Mapping[int, LoadFacts], keep: int) -> dict[str, Any]:
    """Everything else of the group's model, system or engine hidden; and tables of half of the groups."""
    found: dict[str, Any] = {}
    for k in dict.fromkeys((keep, 0)):
        for kind in ("model", "system", "engine"):
            hidden = relatives(given.rows, given.groups, kind)
            found[f"other groups of the {kind} hidden, K={k}"] = given.report(partial(evaluate, keep=k, hidden=hidden))
    for seed in HALVES:
        part = Prepared.of(half(given.rows, seed), facts, seed)
        for k in dict.fromkeys((keep, 0)):
            found[f"half of the groups, seed {seed}, K={k}"] = part.report(partial(evaluate, keep=k))
    return found


def run(path: Path, keep: int, seed: int, *, listed: bool = False, leave_out: bool = False) -> dict[str, Any]:
    read, refused = read_table(path)
    facts, without = facts_of(read)
    read, thinned = thin([r for r in read if r.line in facts], MOST_ROWS, seed)
    refused = sorted([*refused, *without, *thinned], key=lambda r: r.line)
    if not read:
        raise GoodputError("no row can be used", path=str(path), way_out="; ".join(Counter(r.reason for r in refused)))
    given = Prepared.of(with_years(distinct(read)), facts, seed)
    found = _distinct(given, keep)
    found |= _listed(Prepared.of(with_years(read), facts, seed), keep) if listed else {}
    found |= _left_out(given, facts, keep) if leave_out else {}
    main = found[f"distinct, K={keep}"]
    return {
        "calibrate_on": keep, "seed": seed, "usable": len(read), "distinct": len(given.rows),
        "overall": {m: main[m]["overall"] for m in METRICS},
        "groups": {g: {m: main[m]["groups"][g] for m in METRICS} for g in main["tpot"]["groups"]},
        "protocols": found,
        "refused": dict(Counter(r.reason for r in refused).most_common()),
        "refused_rows": [{"line": r.line, "id": r.key, "reason": r.reason} for r in refused],
    }  # fmt: skip


def _line(name: str, tpot: dict[str, float], ttft: dict[str, float]) -> str:
    if not tpot["rows"]:
        return f"{name[:64]:64}{0:6}  no group has a row left to predict"
    cells = (f"{m['median_ape']:7.1%}{m['mean_ape']:8.1%}{m['bias']:+8.1%}{m['coverage_90']:7.0%}" for m in (tpot, ttft))
    return f"{name[:64]:64}{tpot['rows']:6.0f}  {'  '.join(cells)}"


def show(result: dict[str, Any]) -> Iterable[str]:
    head = "median    mean    bias  in 90"
    yield f"{result['usable']} usable rows, {result['distinct']} distinct; calibrated on {result['calibrate_on']}, seed {result['seed']}"
    yield f"{'protocol':64}{'rows':>6}   TPOT {head}   TTFT {head}"
    for name, found in result["protocols"].items():
        yield _line(name, found["tpot"]["overall"], found["ttft"]["overall"])
    yield f"\nby group, distinct, K={result['calibrate_on']}"
    for name, found in result["groups"].items():
        yield _line(name, found["tpot"], found["ttft"])
    yield "\nrows that could not be done"
    for reason, count in result["refused"].items():
        yield f"{count:6}  {reason}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--calibrate-on", type=int, default=5, metavar="K", help="rows of each group that the fit may see (default 5)")
    parser.add_argument("--seed", type=int, default=0, help="choice of those rows")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quick", action="store_true", help="leave out the table as listed")
    parser.add_argument("--leave-out", action="store_true", help="also without the rest of a group's model, system, engine, and on halves")
    arguments = parser.parse_args()
    if arguments.calibrate_on < 0:
        parser.error("--calibrate-on cannot be negative")
    try:
        result = run(arguments.table, arguments.calibrate_on, arguments.seed, listed=not arguments.quick, leave_out=arguments.leave_out)
    except GoodputError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(result, indent=1) if arguments.json else "\n".join(show(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
