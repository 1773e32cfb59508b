"""The lowered form of many configurations at once: one array for each quantity, plain SI numbers.

A *branch* is one choice of every variable that changes the models' coefficients: formats, sharing, speculation, prefetch
buffers, parallelism, graphs, chunk cap. The four long integer axes (requests resident, admission limit, token budget,
offloaded layers) stay outside and broadcast against the branches. Built only by ``models.lower``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Columns:
    """Arrays of one shape, an entry for each branch. Bytes are summed over ranks for time, KiB are of one device."""

    # device, all ranks together
    peak_flops: Floats  # of the weight format's arithmetic, FLOP/s
    reference_flops: Floats  # the peak that the calibration's efficiencies refer to
    peak_bytes_per_s: Floats
    # model
    weight_read: Floats  # bytes a step whatever its rows
    expert_read: Floats
    expert_fraction: Floats
    flops_per_token: Floats
    flops_per_logit_row: Floats
    model_layers: Ints
    # traffic of one request
    samples: Ints  # sequences of one request
    prompt_tokens: Ints
    new_tokens: Ints  # prefilled by a request once the shared prefix is cached
    request_new_tokens: Ints  # of one sequence, for the chunk cap
    pairs: Floats  # causal pairs of that prefill
    prefill_flops: Floats
    kv_cached_read: Floats  # bytes of cached context that its prefill reads at least once
    kv_chunk_read: Floats  # bytes of context that a chunk of it reads on average
    prefix_tokens: Ints  # computed once before the first wave; 0 when cached or not shared
    prefix_flops: Floats
    prefix_pairs: Floats
    context: Floats  # tokens that a row of a round attends to
    row_attention_flops: Floats  # of one row over that context
    kv_private_read: Floats  # bytes a request and round
    kv_shared_read: Floats  # bytes a round
    # speculation
    rounds: Ints
    rows_per_sequence: Ints
    prefill_factor: Floats
    draft_seconds: Floats  # a round
    draft_read: Floats  # bytes a round
    draft_flops: Floats  # a sequence and round
    preparation_s: Floats  # a request's, before its first round
    # engine
    chunk_cap: Ints
    host_s: Floats
    collective_s: Floats
    collective_per_token_s: Floats
    kv_conversion_s: Floats
    kv_conversion_s_per_byte: Floats
    short_pair_cost: Floats  # a pair of few new rows against one of a long chunk
    row_pair_cost: Floats  # of the pairs of a decoding row: the same, or 1 where the engine has but one attention kernel
    chunk_pair_cost: Floats  # of the pairs of a prompt's chunk
    captured: Ints  # row index into ``capture_table``; -1: no graphs
    capture_table: Ints  # (sets, width) captured row counts, ascending, padded with the last
    # offload
    buffers: Ints
    copy_us_per_layer: Ints  # one layer's FFN over the host link
    # memory of one device, KiB
    weights_kib: Ints
    layer_kib: Ints  # one layer's FFN
    pool_credit_kib: Ints  # stored weights minus these weights: enlarges kv_budget
    kv_private_kib: Ints  # a request
    kv_shared_kib: Ints
    draft_kib: Ints  # whatever the number of requests
    draft_kib_per_request: Ints
    graph_kib: Ints
    activation_kib_per_token: Floats
    logits_kib_per_row: Floats
    # cost
    devices: Ints
    probability_correct: Floats

    def take(self, index: npt.ArrayLike) -> Self:
        """The branches at ``index`` (any numpy index), all columns alike."""
        return replace(self, **{f.name: getattr(self, f.name)[index] for f in fields(self) if f.name != "capture_table"})

    def shaped(self, *shape: int) -> Self:
        """Every column reshaped, to broadcast against the integer axes."""
        return replace(self, **{f.name: getattr(self, f.name).reshape(shape) for f in fields(self) if f.name != "capture_table"})

    def padded_rows(self, rows: Ints) -> Ints:
        """Rows that really run: the next captured graph, or the rows themselves without graphs or above the largest."""
        if self.capture_table.size == 0 or bool(np.all(self.captured < 0)):
            return rows
        table = self.capture_table
        out = np.broadcast_to(rows, np.broadcast_shapes(rows.shape, self.captured.shape)).copy()
        for index, sizes in enumerate(table):
            at = np.searchsorted(sizes, rows)
            padded = np.where(at < len(sizes), sizes[np.minimum(at, len(sizes) - 1)], rows)
            out = np.where(self.captured == index, padded, out)
        return out
