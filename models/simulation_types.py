"""What the simulator takes and gives: frozen, checked at the border, plain numpy inside.

Units: seconds, tokens, blocks, bytes; rates in 1/s. Arrays have one entry for each request, in order of arrival.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from models.describe.scheduler import TurnedAway
from models.errors import ContradictionError, InputError, NotCoveredError
from models.kernels.scheduler_state import GapLog
from models.kernels.step import StepModel

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Records = npt.NDArray[np.void]

LARGE_BUDGET = 1 << 40


class Policy(IntEnum):
    """Who shares an iteration. FIXED: static batches. CONTINUOUS: Orca. CHUNKED: vLLM V1, Sarathi. PREFILL_FIRST: SGLang, vLLM V0."""

    FIXED = 0
    CONTINUOUS = 1
    CHUNKED = 2
    PREFILL_FIRST = 3


class Reserve(IntEnum):
    """Blocks that admission asks for: this chunk's, the whole prompt's (checked, not taken), or all up to the last token (taken)."""

    CHUNK = 0
    PROMPT = 1
    WHOLE = 2


class Cache(IntEnum):
    """What happens to a prefix that nobody references: forgotten, evicted least recently used first, or least valuable first."""

    OFF = 0
    LRU = 1
    VALUE = 2


class Status(IntEnum):
    """How a request ended."""

    PENDING = 0  # the trial stopped early
    FINISHED = 1
    TOO_LARGE = 2  # can never fit; refused on arrival
    OVER_LIMIT = 3  # refused by the admission limit
    LATE = 4  # refused because its deadline could not be met any more
    CANCELLED = 5
    HANDED_OVER = 6  # turned away here and answered by an instance that is not simulated


@dataclass(frozen=True)
class PrefixTree:
    """Shared prefixes as segments. Node i holds tokens start[i] .. start[i] + tokens[i] of every path through it.

    ``paths[path_start[r] : path_start[r + 1]]`` are the nodes of request r from the root; ``value`` is the worth of one block (s).
    """

    parent: Integers
    tokens: Integers
    path_start: Integers
    paths: Integers
    warm: npt.NDArray[np.bool_]
    value: Floats

    @classmethod
    def empty(cls, requests: int) -> PrefixTree:
        """No prefix is shared."""
        none = np.empty(0, np.int64)
        return cls(none, none, np.zeros(requests + 1, np.int64), none, np.empty(0, np.bool_), np.empty(0))


@dataclass(frozen=True)
class RequestArrays:
    """Traffic, lowered. ``follows`` names the request after whose end this one comes (-1: by the clock); then arrival is the pause.

    The pause counts from where the client has the answer: ``EngineParameters.delivery_s`` after the last token.
    """

    arrival: Floats
    prompt: Integers
    output: Integers
    klass: Integers | None = None
    class_names: tuple[str, ...] = ("all",)
    prefixes: PrefixTree | None = None
    follows: Integers | None = None
    cancel: Floats | None = None  # when the client gives up, inf: never
    branches: Integers | None = None  # answers wanted to each prompt; ``models.branches`` makes a request of each

    def __post_init__(self) -> None:
        for name, kind in (("arrival", "f8"), ("prompt", "i8"), ("output", "i8"), ("klass", "i8"), ("follows", "i8"), ("cancel", "f8")):
            if getattr(self, name) is not None:  # kernels take one type and one layout
                object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), kind))
        count = len(self.arrival)
        for name in ("prompt", "output", "klass", "follows", "cancel", "branches"):
            values = getattr(self, name)
            if values is not None and len(values) != count:
                raise ContradictionError(
                    "every array needs one entry for each request", path=f"requests.{name}", value=len(values), way_out=f"give {count}"
                )
        if count and (self.prompt.min() < 1 or self.output.min() < 1):
            raise InputError(
                "prompt and output lengths start at 1 token", path="requests", value=int(min(self.prompt.min(), self.output.min()))
            )
        if count and not (np.isfinite(self.arrival).all() and self.arrival.min() >= 0):
            raise InputError("arrival times must be finite and not negative", path="requests.arrival", way_out="repair or drop those rows")
        self._check_times()
        self._check_options()

    def _check_times(self) -> None:
        clocked = self.arrival if self.follows is None else self.arrival[self.follows < 0]
        if (np.diff(clocked) < 0).any():
            raise InputError("arrivals are not in order of time", path="requests.arrival", way_out="sort the requests by arrival")
        if self.follows is not None:
            self._check_followers(self.follows)
        if self.klass is not None and len(self) and not (self.klass.min() >= 0 and self.klass.max() < len(self.class_names)):
            raise ContradictionError("a request's class has no name", path="requests.klass", value=int(self.klass.max()))

    def _check_options(self) -> None:
        if self.cancel is not None and len(self):
            if self.follows is not None and np.isfinite(self.cancel[self.follows >= 0]).any():
                raise ContradictionError("requests that follow others cannot carry a time of cancellation", path="requests.cancel")
            if np.isnan(self.cancel).any() or (self.cancel < self.arrival).any():
                raise InputError("a cancellation precedes its arrival", path="requests.cancel")
        if self.branches is not None and len(self):
            if self.follows is not None:
                raise ContradictionError(
                    "branches run beside requests by the clock alone; some here follow others", path="workload",
                    way_out="leave out samples, or sessions and closed loops",
                )  # fmt: skip
            if self.branches.min() < 1:
                raise InputError("a prompt has at least one answer", path="requests.branches", value=int(self.branches.min()))

    @staticmethod
    def _check_followers(follows: Integers) -> None:
        after = follows[follows >= 0]
        if len(np.unique(after)) != len(after):
            raise ContradictionError("two requests follow the same one", path="requests.follows", way_out="chain them")
        if (after >= np.flatnonzero(follows >= 0)).any():
            raise ContradictionError("a request must stand after the one that it follows", path="requests.follows")

    def __len__(self) -> int:
        return len(self.arrival)


@dataclass(frozen=True)
class AttentionGrid:
    """Measured attention seconds of a step (all layers), linear between the knots of each axis and beyond them.

    ``axes``: tokens of a prefill chunk, tokens cached before it, decoders, context of a decoder; all begin at 0 but the second chunk knot
    is the shortest chunk measured. ``seconds``: one axis each; chunk 0 holds steps without prefill.
    """

    axes: tuple[Floats, Floats, Floats, Floats]
    seconds: Floats

    def __post_init__(self) -> None:
        if self.seconds.shape != tuple(len(axis) for axis in self.axes) or min(self.seconds.shape) < 2:
            raise ContradictionError("a grid needs two knots or more on each of four axes", path="attention", value=self.seconds.shape)
        if any(axis[0] != 0 or (np.diff(axis) <= 0).any() for axis in self.axes):
            raise InputError("the knots of a grid rise from 0", path="attention.axes")
        if not (np.isfinite(self.seconds).all() and self.seconds.min() >= 0):
            raise InputError("attention times must be finite and not negative", path="attention.seconds")


@dataclass(frozen=True)
class EngineParameters:
    """One engine instance, lowered. 0 means no limit for ``chunk_cap``, ``kv_blocks``, ``max_model_len``, ``admission_limit``."""

    policy: Policy = Policy.CHUNKED
    max_num_seqs: int = 256
    token_budget: int = LARGE_BUDGET
    chunk_cap: int = 0
    block_tokens: int = 16
    kv_blocks: int = 0
    reserve: Reserve = Reserve.CHUNK
    cache: Cache = Cache.OFF
    max_model_len: int = 0
    admission_limit: int = 0  # requests inside the engine, queue included; more are refused
    deadline_aware: bool = False
    late_wait: bool = False  # whom a deadline turns away waits behind all others instead of being refused
    async_scheduling: bool = False  # a batch is decided while the one before runs: what comes then, or is cancelled, waits one longer
    kv_bytes_per_token: float = 0.0  # read for each cached token of each sequence
    state_bytes_per_sequence: float = 0.0
    shared_read_once: bool = False  # the attention kernel reads a shared prefix once for all its decoders
    constant_context: bool = False  # read the prompt's KV only, as a closed form that holds the context constant
    draft_tokens: int = 0
    tokens_per_round: float = 1.0  # expected acceptance
    acceptance: tuple[float, ...] | None = None  # random acceptance by position; overrides tokens_per_round
    graph_sizes: tuple[int, ...] = ()  # captured row counts; rows pad up to the next
    micro_batch: int = 0  # rows of an execution batch; decoders and prompts then run one after the other (llama.cpp); 0: all together
    tiled_from: int = 0  # new rows of a sequence in an execution batch from which a pair costs 1, below: the step model's short_pair_cost
    seconds_by_rows: tuple[float, ...] = ()  # measured seconds added for a step of n rows (the last entry holds beyond)
    attention: AttentionGrid | None = None  # measured seconds added for a step's attention
    window: int = 0  # tokens that sliding-window layers look back; 0: no such layers, or spread over the context
    window_bytes_per_token: float = 0.0  # read by those layers for each of the last ``window`` tokens
    preparation_s: float = 0.0  # of a request's draft, between its first token and its first round
    copy_s: float = 0.0  # copies of the offloaded layers, in every step
    copy_serial: float = 0.0  # share of the step's computation that no copy overlaps (one prefetch buffer)
    delivery_s: float = 0.0  # from the engine to the client, on every token

    def context_bytes(self, tokens: int) -> float:
        """Bytes that one sequence reads in a step over ``tokens`` of context: plain layers all of it, window layers their window."""
        windowed = self.window_bytes_per_token * min(tokens, self.window)
        return self.kv_bytes_per_token * tokens + windowed + self.state_bytes_per_sequence

    def __post_init__(self) -> None:
        rows = self.max_num_seqs * (self.draft_tokens + 1)
        if self.max_num_seqs < 1 or self.block_tokens < 1 or self.token_budget < 1:
            raise InputError("max_num_seqs, block_tokens and token_budget start at 1", path="engine")
        if self.policy in (Policy.CHUNKED, Policy.CONTINUOUS) and self.token_budget < rows:
            raise ContradictionError(
                f"{self.max_num_seqs} sequences of {self.draft_tokens + 1} rows do not fit into one step",
                path="engine.max_num_batched_tokens", value=self.token_budget, way_out=f"raise it to at least {rows} or lower max_num_seqs",
            )  # fmt: skip
        if min(self.micro_batch, self.tiled_from) < 0:
            raise InputError("micro_batch and tiled_from start at 0", path="engine", value=(self.micro_batch, self.tiled_from))
        if not 1.0 <= self.tokens_per_round <= self.draft_tokens + 1:
            raise ContradictionError(
                f"{self.draft_tokens} draft tokens emit 1 to {self.draft_tokens + 1} tokens a round",
                path="engine.tokens_per_round",
                value=self.tokens_per_round,
            )
        if self.acceptance is not None and (len(self.acceptance) != self.draft_tokens or not all(0 <= a <= 1 for a in self.acceptance)):
            raise ContradictionError(
                "acceptance needs one probability for each draft token", path="engine.acceptance", value=self.acceptance
            )
        foreign = ("draft_tokens", "deadline_aware", "shared_read_once", "micro_batch", "tiled_from")
        if self.attention is not None and any(getattr(self, name) for name in foreign):
            raise NotCoveredError(f"a grid of attention times covers none of {', '.join(foreign)}", path="engine.attention")
        if list(self.graph_sizes) != sorted(set(self.graph_sizes)) or (self.graph_sizes and self.graph_sizes[0] < 1):
            raise InputError("captured graph sizes must rise from 1", path="engine.graph_sizes", value=self.graph_sizes)


@dataclass(frozen=True)
class SimulationInputs:
    """What ``models.serving.serve`` needs beside the requests. ``elsewhere`` answers whom this instance turns away."""

    engine: EngineParameters
    prefill: StepModel
    decode: StepModel
    devices: int
    pool_bytes: int  # KV pool of one device
    turned_away: TurnedAway = TurnedAway.REJECT
    elsewhere: SimulationInputs | None = None

    @property
    def all_devices(self) -> int:
        """Devices of this instance and of the second one."""
        return self.devices + (self.elsewhere.devices if self.elsewhere is not None else 0)


@dataclass(frozen=True)
class Deadlines:
    """Largest TTFT, e2e, gap and mean gap of each class; infinity where there is none. Order of ``RequestArrays.class_names``."""

    ttft: tuple[float, ...]
    e2e: tuple[float, ...]
    itl: tuple[float, ...]
    tpot: tuple[float, ...]

    def table(self) -> Floats:
        """(classes, 4): ttft, e2e, itl, tpot."""
        return np.array([self.ttft, self.e2e, self.itl, self.tpot], np.float64).T.copy()


@dataclass(frozen=True)
class EarlyStop:
    """Abandon a trial when, of the first ``after`` finished requests, fewer than ``at_least_good`` met every deadline."""

    after: int
    at_least_good: int


@dataclass(frozen=True)
class SimulationResult:
    """Per-request outcome and counters. ``records`` has the fields of ``scheduler_state.RESULT``; times without delivery."""

    records: Records
    requests: RequestArrays
    engine: EngineParameters
    deadlines: Deadlines | None
    counters: dict[str, float]
    gaps: GapLog
    histogram: Integers
    samples: Records
    rows: Records
    stopped_early: bool
    warnings: tuple[str, ...] = field(default=())
    elsewhere: SimulationResult | None = None  # the second instance's own run, whose answers stand in ``records`` too

    @property
    def makespan(self) -> float:
        """From time 0 to the end of the last iteration that served anybody (s)."""
        return float(self.records["last"].max(initial=0.0))

    def status(self, which: Status) -> npt.NDArray[np.bool_]:
        """Which requests ended so."""
        return np.asarray(self.records["status"] == which)
