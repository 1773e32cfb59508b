"""Memory of the scheduler kernel: one record for scalars, one array of records for each kind of thing.

Notation and units: seconds (f8), tokens and blocks (integers), rounds = decode steps since the start (a clock that ticks
once for each iteration that decodes). Kernels get these arrays and nothing else; ``models.simulate`` fills and reads them.
Context sums are floats, because expected speculation advances by a fraction of a token.

What a run does not use costs nothing where ``specialised`` tells the compiler, elsewhere a test of a setting that always falls
the same way; so: one setting for each feature, tested before any of its work (``paged`` before blocks are counted); what seldom
happens in a ``rare`` piece, called only after a test in the caller; arrays of a feature that is off are empty.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from models.kernels.jit import Constant

FIXED, CONTINUOUS, CHUNKED, PREFILL_FIRST = 0, 1, 2, 3
RESERVE_CHUNK, RESERVE_PROMPT, RESERVE_WHOLE = 0, 1, 2
CACHE_OFF, CACHE_LRU, CACHE_VALUE = 0, 1, 2
PENDING, FINISHED, TOO_LARGE, OVER_LIMIT, LATE, CANCELLED = 0, 1, 2, 3, 4, 5
NEVER = 1 << 60
INSTANT = 1e-9  # s: what happens so soon after a step's end (equal steps often meet their arrivals) is seen at its end

STEP_FIELDS = (
    "form", "weight_bytes", "expert_bytes", "expert_fraction",
    "floor_per_token_s", "floor_per_logit_row_s", "floor_per_pair_s", "floor_per_byte_s",
    "fixed_s", "per_token_s", "per_pair_s", "per_byte_s", "per_sequence_s",
    "compute_s", "compute_per_token_s", "compute_per_logit_row_s", "compute_per_pair_s", "memory_per_byte_s", "short_pair_cost", "overlap",
    "host_s", "host_per_sequence_s", "host_overlap", "collective_s", "collective_per_token_s", "conversion_s_per_byte",
)  # fmt: skip
STEP = np.dtype([(name, "f8") for name in STEP_FIELDS], align=True)


class Settings(NamedTuple):
    """What ``models.simulate`` chose for the run; switches are 0 or 1."""

    policy: int
    max_num_seqs: int
    token_budget: int
    chunk_cap: int
    paged: int
    block_tokens: int
    block_shift: int  # block = 2 ** shift; -1 where it is no power of two
    total_blocks: int
    reserve: int
    cache: int
    max_model_len: int
    admission_limit: int
    deadline_aware: int
    one_model: int
    floored: int  # whether a step can come to less than the device's floor before it is held to it
    micro_batch: int
    tiled_from: int
    short_pair_cost: float  # the cost in chunks; decoders: their own model's
    rows: int  # of a decoder in an iteration
    random: int
    per_round: int
    constant_context: int
    tokens_per_round: float
    kv_bytes: float
    state_bytes: float
    shared_read_once: int
    seed: int  # 64 bits
    every_iteration: int
    async_scheduling: int
    check_after: int
    check_good: int
    cancel_count: int
    followers: int
    delivery_s: float  # from a token to its client, whose clock the deadlines are on, and who then sends the follower
    attention: int
    measured_rows: int
    late_wait: int
    preparation_s: float
    copy_s: float
    copy_serial: float
    window: int
    window_bytes: float


STATE = np.dtype([
    ("time", "f8"), ("seen", "f8"), ("round_end", "f8"), ("rounds", "i8"), ("iterations", "i8"), ("busy_s", "f8"),
    # decoders, all together
    ("decoders", "i8"), ("context", "f8"), ("growth", "f8"), ("saved_context", "f8"), ("line_head", "i8"), ("line_end", "i8"),
    ("newcomers", "i8"),
    ("window_context", "f8"), ("window_growth", "f8"), ("below", "i8"), ("window_kv", "f8"),  # tokens that window layers read
    # prefill part of the batch being built, and its change from one iteration of a run to the next
    ("new_tokens", "f8"), ("logit_rows", "f8"), ("pairs", "f8"), ("kv_tokens", "f8"), ("sequences", "f8"),
    ("pairs_step", "f8"), ("micro_batches", "f8"), ("decoding", "i8"), ("budget_left", "i8"), ("same_for", "i8"),
    ("preempted_now", "i8"), ("open", "i8"), ("round_blocks_taken", "i8"),
    # queues
    ("next_arrival", "i8"), ("queue_head", "i8"), ("queue_tail", "i8"), ("resume", "i8"), ("pending", "i8"),
    ("late_head", "i8"), ("late_tail", "i8"),
    ("prefilling", "i8"), ("running", "i8"), ("run_head", "i8"), ("run_tail", "i8"), ("free_slots", "i8"), ("sequence", "i8"),
    ("preparing", "i8"),
    ("in_system", "i8"), ("done", "i8"), ("finished", "i8"), ("good", "i8"), ("next_cancel", "i8"), ("stopped", "i8"), ("stuck", "i8"),
    # blocks
    ("pristine", "i8"), ("evictable", "i8"), ("peak_blocks", "i8"), ("lru_head", "i8"), ("lru_tail", "i8"),
    ("evicted", "i8"),
    ("lookups_tokens", "i8"), ("hit_tokens", "i8"), ("preemptions", "i8"), ("recomputed", "i8"), ("prefilled", "i8"),
    # statistics
    ("first_arrival", "f8"), ("last_arrival", "f8"),
    ("gap_entries", "i8"), ("gaps_binned", "i8"), ("stack", "i8"), ("last_join", "i8"), ("gap_total", "f8"), ("gap_count", "i8"),
    ("gap_max", "f8"), ("samples", "i8"), ("next_sample", "f8"), ("sample_s", "f8"), ("rows_recorded", "i8"),
], align=True)  # fmt: skip

SLOT = np.dtype([
    ("request", "i8"), ("sequence", "i8"), ("previous", "i8"), ("next", "i8"), ("decoding", "i8"), ("preparing", "i8"), ("below", "i8"),
    ("target", "i8"), ("computed", "i8"), ("chunk", "i8"),  # prefill: tokens to reach, done, in this batch
    ("join", "i8"), ("since", "i8"), ("finish", "i8"), ("stored", "i8"), ("generated", "i8"),
    ("emitted", "f8"), ("progress", "f8"),
    ("held", "i8"), ("shared", "i8"), ("path_place", "i8"), ("nodes", "i8"), ("chained", "i8"), ("read_nodes", "i8"),
], align=True)  # fmt: skip

RESULT = np.dtype([
    ("arrival", "f8"), ("scheduled", "f8"), ("first", "f8"), ("last", "f8"), ("max_gap", "f8"),
    ("status", "i4"), ("preemptions", "i4"), ("hit_tokens", "i4"), ("generated", "i4"), ("draws", "i4"), ("lost", "i4"),
], align=True)  # fmt: skip

SLOT_BITS = 24  # of an entry of the line: the decoder's last round above, its slot below
PENDING_ARRIVAL = np.dtype([("time", "f8"), ("request", "i8")], align=True)
STACK = np.dtype([("round", "i8"), ("gap", "f8")], align=True)
LINK = np.dtype([("previous", "i4"), ("next", "i4"), ("blocks", "i4")], align=True)
NODE = np.dtype(
    [
        ("start", "i8"),
        ("size", "i8"),
        ("cached", "i8"),
        ("references", "i8"),
        ("readers", "i8"),
        ("value", "f8"),
        ("parent", "i8"),
        ("children", "i8"),
    ],
    align=True,
)
SAMPLE = np.dtype([
    ("time", "f8"), ("running", "i8"), ("waiting", "i8"),
    ("used_blocks", "i8"), ("hit_tokens", "i8"), ("lookup_tokens", "i8"), ("preemptions", "i8"), ("recomputed", "i8"),
], align=True)  # fmt: skip
ROW = np.dtype([("start", "f8"), ("end", "f8"), ("request", "i8"), ("kind", "i8"), ("tokens", "i8")], align=True)
PREFILL_ROW, DECODE_ROW = 0, 1

HISTOGRAM_BITS = 14  # sub-bins of an octave once the exact gap log is full: relative width 2^-14
HISTOGRAM_LOW = -30  # octave of the smallest binned gap, 2^-30 s
HISTOGRAM_OCTAVES = 46  # up to 2^16 s

# Most runs leave these features alone, and many have no blocks either: code built for such settings holds nothing of them.
PLAIN: dict[str, float] = {
    "policy": CHUNKED, "rows": 1, "random": 0, "per_round": 0, "tokens_per_round": 1.0, "constant_context": 0, "one_model": 1,
    "micro_batch": 0, "tiled_from": 0, "attention": 0, "measured_rows": 0, "window": 0, "copy_s": 0.0,
    "admission_limit": 0, "deadline_aware": 0, "late_wait": 0, "async_scheduling": 0, "preparation_s": 0.0, "shared_read_once": 0,
    "cancel_count": 0, "followers": 0, "every_iteration": 0,
}  # fmt: skip
UNPAGED: dict[str, float] = {"paged": 0, "total_blocks": 0, "cache": CACHE_OFF}


def specialised(settings: Settings) -> Settings:
    """The same settings, constant in compiled code where all of a group have their plain values: three variants of the kernel."""
    given = settings._asdict()

    def holds(group: dict[str, float]) -> bool:
        return all(given[name] == value for name, value in group.items())

    if not holds(PLAIN):
        return settings
    constants: dict[str, Any] = {name: Constant(value) for name, value in (PLAIN | UNPAGED if holds(UNPAGED) else PLAIN).items()}
    return settings._replace(**constants)


Row: TypeAlias = Any  # one record of the arrays below: fields by name, in compiled code
Table: TypeAlias = npt.NDArray[Any]


class GapLog(NamedTuple):
    """Gaps between outputs: entry e stands for start + i slope, i < length, each seen by ``weight`` requests."""

    start: Table  # s, f8
    slope: Table  # s, f8, never negative
    length: Table  # i4
    weight: Table  # i4

    @classmethod
    def empty(cls, size: int) -> GapLog:
        """Room for so many entries, in one block, which an allocator sooner keeps for the next run than four."""
        start, slope, numbers = np.empty((3, size))
        return cls(start, slope, *numbers.view(np.int32).reshape(2, size))

    def first(self, entries: int) -> GapLog:
        """The first entries alone."""
        return GapLog(*(column[:entries] for column in self))


class World(NamedTuple):
    """Everything a simulation reads and writes, so that kernels need one argument. One entry for each request where not said."""

    state: Table  # STATE, one record
    settings: Settings
    models: Table  # STEP: prefill, decode
    pad: Table  # rows → rows of the captured graph
    extra: Table  # rows → measured seconds
    attention: Table  # (chunk, cached, decoders, context) → measured seconds
    knots: Table  # (4, most): where along each axis
    accept: Table  # cumulative acceptance by draft position
    limits: Table  # (classes, 4) ttft, e2e, itl, tpot
    arrival: Table
    prompt: Table
    output: Table
    klass: Table
    follows: Table  # 1 where the request waits for another one
    follower: Table  # the request that waits for this one, or -1
    delay: Table  # pause of the client after the one before
    cancel: Table
    cancel_order: Table
    path_start: Table  # requests + 1, into path_nodes
    path_nodes: Table
    nodes: Table  # NODE
    links: Table  # LINK: nodes, then requests (their private tails)
    results: Table  # RESULT
    slots: Table  # SLOT
    free: Table  # free slots, a stack
    prefills: Table  # slots with unfinished prompts, by admission
    prepares: Table  # slots whose draft is being prepared, by the time of their first token
    line: Table  # decoders by last round, then by admission: round and slot in one number
    phases: Table  # decoders by (tokens - round) mod block
    queue: Table  # waiting requests; the places that they left hold those who wait behind all others
    resume: Table  # preempted requests, a stack
    pending: Table  # PENDING_ARRIVAL, a heap
    stack: Table  # STACK
    gaps: GapLog
    histogram: Table
    samples: Table  # SAMPLE
    timeline: Table  # ROW
