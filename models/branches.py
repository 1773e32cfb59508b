"""Parallel answers to one prompt: as an engine runs them, and back to one request as the client sees it (section 8.3.2).

vLLM V1 and SGLang make a request of each branch. The branches share the full blocks of the prompt where prefixes are cached: the
first to be scheduled computes them, the others refer to them. The block in which a branch writes its own tokens is never shared:
the branch fills it anew from the prompt's last tokens, which is this engine's copy on write (the last token is computed by every
branch in any case, for it yields the first output). Without a prefix cache each branch computes and keeps the whole prompt.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from models.simulation_types import Integers, PrefixTree, RequestArrays, SimulationResult, Status


def branched(requests: RequestArrays) -> RequestArrays:
    """One row for each branch, those of a request side by side; the prompt's own tokens become a prefix that they share."""
    counts = requests.branches
    if counts is None:
        return requests
    tree = requests.prefixes if requests.prefixes is not None else PrefixTree.empty(len(requests))
    return replace(
        requests, arrival=np.repeat(requests.arrival, counts), prompt=np.repeat(requests.prompt, counts),
        output=np.repeat(requests.output, counts), klass=None if requests.klass is None else np.repeat(requests.klass, counts),
        cancel=None if requests.cancel is None else np.repeat(requests.cancel, counts), branches=None,
        prefixes=_with_prompts(tree, requests.prompt, counts),
    )  # fmt: skip


def _with_prompts(tree: PrefixTree, prompt: Integers, counts: Integers) -> PrefixTree:
    """Append to each branching request's path a segment with the rest of its prompt."""
    paths = [tree.paths[a:b].tolist() for a, b in zip(tree.path_start[:-1], tree.path_start[1:], strict=True)]
    parent, tokens = tree.parent.tolist(), tree.tokens.tolist()
    for path, length, count in zip(paths, prompt.tolist(), counts.tolist(), strict=True):
        rest = length - sum(tokens[node] for node in path)
        if count > 1 and rest > 0:
            parent.append(path[-1] if path else -1)
            tokens.append(rest)
            path.append(len(parent) - 1)
    added = len(parent) - len(tree.parent)
    sizes = np.repeat([len(path) for path in paths], counts)
    return PrefixTree(
        np.array(parent, np.int64), np.array(tokens, np.int64), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        np.array([node for path, count in zip(paths, counts.tolist(), strict=True) for node in path * count], np.int64),
        np.append(tree.warm, np.zeros(added, np.bool_)), np.append(tree.value, np.zeros(added)),
    )  # fmt: skip


def merged(result: SimulationResult, requests: RequestArrays) -> SimulationResult:
    """One record for each of ``requests``: from the first token of any branch to the last of all; refused or cancelled where one is."""
    counts = requests.branches
    if counts is None:
        return result
    first_row = np.concatenate([[0], np.cumsum(counts)[:-1]])
    r = result.records
    records = r[first_row].copy()
    started = np.where(r["first"] < 0, np.inf, r["first"])
    records["first"] = np.minimum.reduceat(started, first_row)
    records["first"][np.isinf(records["first"])] = -1.0
    for name in ("last", "max_gap"):
        records[name] = np.maximum.reduceat(r[name], first_row)
    for name in ("preemptions", "hit_tokens", "generated", "draws"):
        records[name] = np.add.reduceat(r[name], first_row)
    pending = np.logical_or.reduceat(r["status"] == Status.PENDING, first_row)
    records["status"] = np.where(pending, Status.PENDING, np.maximum.reduceat(r["status"], first_row))
    rows = result.rows.copy()
    rows["request"] = np.repeat(np.arange(len(requests)), counts)[rows["request"]]
    return replace(result, records=records, requests=requests, rows=rows)
