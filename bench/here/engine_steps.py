"""Measure engine steps of many make-ups and write them as a table; runs in the engine's environment.

    python engine_steps.py model.gguf steps.csv [--quick]

One row is one ``llama_decode`` of one engine thread; ``composition_seq_new_ctx`` lists sequence:new tokens:tokens before. Times in seconds,
wall and CPU: where other work runs beside it, only the CPU seconds are the engine's own. Every make-up is run ``REPEATS`` times; the caller
asks for several such tables, with other work between them, so that one minute's speed is not taken for the machine's.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from llama import KV_TYPES, Engine
from random_model import VOCABULARY

SEQUENCES, LONGEST, STEP = 18, 2048, 512
MASTER, ASIDE = 16, 17  # sequences that hold the contexts to copy, and nothing
REPEATS = 2
COLUMNS = ("kv_type", "exp", "kind", "n_seq", "new_tokens", "max_ctx", "composition_seq_new_ctx", "outputs", "wall_s", "cpu_s", "rep")
Parts = list[tuple[int, int, int]]
"""(sequence, new tokens, tokens before) of each sequence of a step."""


def _equal(sequences: int, new: int, before: int) -> Parts:
    return [(s, new, before) for s in range(sequences)]


def compositions() -> Iterator[tuple[str, str, Parts]]:
    """(experiment, kind of step, parts) of every make-up."""
    grid = [(b, c) for b in (1, 4, 16) for c in (128, 512, 2048)] + [(b, c) for b in (2, 8) for c in (256, 1024)]
    for batch, context in grid:
        yield "decode", "decode", _equal(batch, 1, context)
    for batch, new in ((1, 16), (1, 64), (1, 256), (2, 128), (4, 32)):
        yield "prefill", "prefill", _equal(batch, new, 0)
    for new, context in ((32, 512), (32, 1536), (64, 128), (128, 1024), (256, 512)):
        yield "chunk", "prefill", _equal(1, new, context)
    for decodes, context, new, before in ((1, 256, 128, 256), (4, 1024, 48, 0), (15, 256, 128, 0), (4, 256, 240, 512), (15, 1024, 48, 256)):
        yield "mixed", "mixed", [*_equal(decodes, 1, context), (decodes, new, before)]
    for batch, rows, context in ((1, 4, 256), (1, 8, 1024), (4, 2, 1024), (4, 8, 256), (8, 4, 512)):
        yield "verify", "verify", _equal(batch, rows, context)
    rng = random.Random(5)
    for batch in (6, 12):
        yield "ragged", "decode", [(s, 1, rng.randrange(64, LONGEST, 32)) for s in range(batch)]


def measure(engine: Engine, exp: str, kind: str, parts: Parts) -> Iterator[dict[str, object]]:
    """Rows of one make-up; a one-token step elsewhere before it makes the pending copies."""
    logits = "all" if kind == "verify" else "last"
    for sequence, _new, before in parts:
        engine.copy(MASTER, sequence, before)
    engine.decode([(ASIDE, 1, 0)])
    engine.forget(ASIDE, 0)
    for rep in range(REPEATS):
        wall, cpu = engine.decode(parts, logits=logits)
        for sequence, _new, before in parts:
            engine.forget(sequence, before)
        yield {
            "exp": exp, "kind": kind, "n_seq": len(parts), "new_tokens": sum(p[1] for p in parts), "max_ctx": max(p[2] for p in parts),
            "composition_seq_new_ctx": " ".join(f"{s}:{n}:{c}" for s, n, c in parts),
            "outputs": sum(p[1] for p in parts) if logits == "all" else len(parts), "wall_s": f"{wall:.6f}", "cpu_s": f"{cpu:.6f}",
            "rep": rep,
        }  # fmt: skip


def _opened(model: Path, kv_type: str) -> Engine:
    """An engine whose sequence ``MASTER`` holds the longest context, to be copied to the others."""
    engine = Engine(model, context=LONGEST + STEP, sequences=SEQUENCES, step_tokens=STEP, kv_type=kv_type, vocabulary=VOCABULARY)
    engine.fill(MASTER, LONGEST)
    return engine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument("--quick", action="store_true", help="every other make-up")
    arguments = parser.parse_args()
    asked = list(compositions())[:: 2 if arguments.quick else 1]
    with arguments.table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for kv_type in KV_TYPES:
            print(f"steps: KV {kv_type}, {len(asked)} make-ups", file=sys.stderr, flush=True)
            with _opened(arguments.model, kv_type) as engine:
                for exp, kind, parts in asked:
                    writer.writerows({"kv_type": kv_type, **row} for row in measure(engine, exp, kind, parts))


if __name__ == "__main__":
    main()
