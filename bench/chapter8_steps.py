"""The chapter's own experiments on one workstation card (Qwen3-8B, BF16, eager): fit on some rows, predict the others.

    python bench/chapter8_steps.py FOLDER [--calibrate-on 5] [--repeat 5]

chunks        512 new tokens after 0 to 7,680 cached ones (8-2): the physical step model on ``--calibrate-on`` rows, the others predicted
decode        rounds at batch 1 to 64 (8-1): each predicted from the others
served        time per output token and to the first token of the batch scan (8-1): each predicted from the others
Left out: the CUDA-event steps (1-4), whose prompt lengths are not published.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.held_out import Floats, head
from models.calibration.evidence import Evidence, StepObservation, from_steps, joined, step_of
from models.calibration.step_fit import fit_steps
from models.calibration.template import step_template
from models.catalog.devices import load_device
from models.catalog.step_prior import step_prior
from models.facts.kv import kv_bytes_per_token
from models.kernels.step import StepModel, step_seconds
from models.readers.load import load_architecture

ARCH, DEVICE = load_architecture("Qwen/Qwen3-8B"), load_device("rtx-pro-6000-ws")
BUDGET = 4096  # tokens of a chunk in that experiment
KV = kv_bytes_per_token(ARCH)
TEMPLATE = step_template(ARCH, DEVICE)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _errors(steps: list[StepObservation], train: list[int]) -> Floats:
    posterior = fit_steps(from_steps([steps[i] for i in train]), TEMPLATE, step_prior())
    test = from_steps([s for i, s in enumerate(steps) if i not in set(train)])
    wrong: Floats = np.abs(np.exp(test.predict(posterior.step_model(TEMPLATE)) - test.measured) - 1)
    return wrong


def show(name: str, wrong: Floats) -> str:
    return f"{name:44}{len(wrong):9d}{np.median(wrong):9.1%}{wrong.mean():9.1%}{wrong.max():9.1%}"


def chunks(folder: Path) -> list[StepObservation]:
    rows = _rows(folder / "exp_8-2_chunk_history_prefill512.csv")
    return [step_of([(int(r["new_tokens"]), int(r["history_tokens"]))], kv_bytes_per_token=KV, seconds=float(r["median_ms"]) / 1e3,
                    source=f"after {r['history_tokens']}") for r in rows]  # fmt: skip


def decodes(folder: Path) -> list[StepObservation]:
    rows = _rows(folder / "exp_8-1_decode_round.csv")
    return [step_of([(1, int(r["context"]))] * int(r["batch"]), kv_bytes_per_token=KV, seconds=float(r["measured_decode_round_ms"]) / 1e3,
                    source=r["condition"]) for r in rows]  # fmt: skip


def served(folder: Path) -> tuple[Evidence, Evidence]:
    """Bursts of equal prompts: time per output token and to the first token, of one step model.

    Prompts are prefilled in chunks of ``BUDGET`` tokens, in order; a request waits for the chunk that ends its own prompt, then decodes
    while later ones are prefilled: on average half of them lie in its output.
    """
    rows = _rows(folder / "exp_8-1_batch_scan_summary.csv")
    b, prompt, cached, o = (np.array([float(r[k]) for r in rows]) for k in
                            ("batch", "prompt_tokens", "cached_prefix_tokens", "output_tokens"))  # fmt: skip
    new, context = prompt - cached, prompt + o / 2
    chunk = np.minimum(b * new, BUDGET)
    each = chunk / new  # prompts of a chunk
    pairs = each * (new * cached + new * (new + 1) / 2)

    def times(m: StepModel) -> tuple[Floats, Floats]:
        prefill = np.asarray(step_seconds(m, chunk, each, pairs, each * prompt * KV, each))
        chunks = b / each
        step = np.asarray(step_seconds(m, b, b, b * context, b * context * KV, b))
        return step + prefill * (chunks - 1) / 2 / o, prefill * (chunks + 1) / 2

    def evidence(which: int, column: str) -> Evidence:
        measured = np.log(np.array([float(r[column]) / 1e3 for r in rows]))
        names = tuple(f"{r['input_condition']} x{r['batch']}" for r in rows)
        return Evidence(measured, lambda m: np.log(times(m)[which]), names, lambda _m: np.full(len(rows), -np.inf))  # no bound is claimed

    return evidence(0, "client_time_per_output_ms_median"), evidence(1, "ttft_ms_median")


def each_from_others(parts: tuple[Evidence, Evidence]) -> tuple[Floats, Floats]:
    """Errors of each row of both quantities, fitted together on all other rows."""
    count = len(parts[0])
    wrong = np.zeros((2, count))
    for i in range(count):
        rest = np.setdiff1d(np.arange(count), [i])
        model = fit_steps(joined([p.choose(rest) for p in parts]), TEMPLATE, step_prior()).step_model(TEMPLATE)
        wrong[:, i] = [abs(float(np.exp(p.predict(model)[i] - p.measured[i])) - 1) for p in parts]
    return wrong[0], wrong[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--calibrate-on", type=int, default=5, metavar="K", help="rows of the chunk experiment that are seen")
    parser.add_argument("--repeat", type=int, default=5, help="random choices of those rows")
    arguments = parser.parse_args()
    steps = chunks(arguments.folder)
    drawn = [np.random.default_rng(s).permutation(len(steps))[: arguments.calibrate_on].tolist() for s in range(arguments.repeat)]
    print(head())
    print(show("chunk of 512 after a history", np.concatenate([_errors(steps, d) for d in drawn])))
    rounds = decodes(arguments.folder)
    alone = [_errors(rounds, [j for j in range(len(rounds)) if j != i]) for i in range(len(rounds))]
    print(show("decode round, each from the others", np.concatenate(alone)))
    tpot, ttft = each_from_others(served(arguments.folder))
    print(show("served, time per output token", tpot))
    print(show("served, time to the first token", ttft))
    return 0


if __name__ == "__main__":
    sys.exit(main())
