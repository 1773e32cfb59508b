"""Synthetic profile folders written from a formula, linear along every axis, and the seconds of whole steps by the same formula.

One layer, one rank, microseconds: every dense operator 4 + 0.1 n; head 100 + 0.5 s; attention of n decoders with context x
2 + 0.3 n + 0.01 n x, of a chunk c after h cached tokens 3 + 0.02 c + 0.0001 c h, both together 3 + 0.02 c + 0.0001 c h + 0.5 n + 0.02 n x;
experts 1 + 0.2 n + 0.7 a.
"""

from __future__ import annotations

import csv
import itertools

DENSE = ("layernorm", "qkv_proj", "o_proj", "gate_up_proj", "act_fn", "down_proj", "embedding", "final_layernorm")
FEED_FORWARD = 3  # of these, those of a dense feed-forward layer
MICRO = 1e-6


def decode(n, x):
    return 2 + 0.3 * n + 0.01 * n * x


def prefill(c, h):
    return 3 + 0.02 * c + 0.0001 * c * h


def beside(n, x):
    return 0.5 * n + 0.02 * n * x


def operator(n):
    return 4 + 0.1 * n


def head(s):
    return 100 + 0.5 * s


def experts(n, a):
    return 1 + 0.2 * n + 0.7 * a


def step(layers, c, h, n, x, *, routed=None):
    """Seconds of a step; ``routed`` = (experts, top k) where every layer routes."""
    rows, sequences = c + n, n + (c > 0)
    a_layer = operator(rows) * (len(DENSE) - 2 + 1 - (FEED_FORWARD if routed else 0))  # the norm twice, embedding and last norm apart
    attention = prefill(c, h) + (beside(n, x) if n else 0.0) if c else decode(n, x)
    if routed:
        e, k = routed
        a_layer += experts(rows, e * (1 - (1 - k / e) ** rows))
    return MICRO * (layers * (a_layer + attention) + 2 * operator(rows) + head(sequences))


def write(folder, *, moe=False, degree=1):
    """Tables below ``folder``/tpN; answers the folder that holds them."""
    place = folder / f"tp{degree}"
    place.mkdir(parents=True)
    counts = (1, 2, 8, 64, 256, 1024, 4096)
    table(place / "dense.csv", ("layer", "tokens", "time_us"), [(name, n, operator(n)) for name in DENSE for n in counts])
    table(place / "per_sequence.csv", ("layer", "sequences", "time_us"), [("lm_head", s, head(s)) for s in (1, 4, 64, 256)])
    chunks, cached, decoders, contexts = (16, 256, 2048), (0, 512, 4096), (1, 8, 256), (16, 1024, 8192)
    rows = [(0, 0, n, x, decode(n, x)) for n, x in itertools.product(decoders, contexts)]
    rows += [(c, h, 0, 0, prefill(c, h)) for c, h in itertools.product(chunks, cached)]
    rows += [(c, h, n, x, prefill(c, h) + beside(n, x)) for c, h, n, x in itertools.product(chunks, cached, decoders, contexts)]
    table(place / "attention.csv", ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"), rows)
    if moe:
        pairs = itertools.product((1, 2048), (1, 32, 128))
        table(place / "moe.csv", ("tokens", "activated_experts", "time_us"), [(n, a, experts(n, a)) for n, a in pairs])
    return place


def table(path, header, rows):
    """One CSV file."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
