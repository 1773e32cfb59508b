"""Traffic: classes of requests with their lengths, arrivals, deadlines, quality and measured speculation."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from models.describe.base import ByteCount, Description, PerSecond, Seconds
from models.describe.configuration import DraftSource
from models.describe.traffic import ClosedLoop, Lengths, OnOff, Patience, Session

Tokens = Annotated[int, Field(ge=1, le=100_000_000, strict=True)]


def _fraction(value: Any) -> Any:
    """``28/32`` is a probability too; it is how a count of right answers is reported."""
    if isinstance(value, str) and "/" in value:
        try:
            return float(Fraction(value.replace(" ", "")))
        except (ValueError, ZeroDivisionError) as cause:
            raise ValueError("not a fraction such as 28/32") from cause
    return value


Probability = Annotated[float, BeforeValidator(_fraction), Field(ge=0.0, le=1.0)]


class Trace(Description):
    """Requests as they were recorded; ``speed`` 2 plays them twice as fast."""

    file: Annotated[str, Field(min_length=1, max_length=4096)]
    speed: Annotated[float, Field(gt=0, le=1e6)] = 1.0

    @model_validator(mode="before")
    @classmethod
    def _plain_name(cls, value: Any) -> Any:
        return {"file": value} if isinstance(value, str) else value


class Arrivals(Description):
    """Exactly one kind: all at once, or over time by a process, or as recorded in a file.

    ``rate`` is Poisson; ``gamma`` has gaps of shape ``burstiness`` (1 is Poisson, below 1 comes in clumps); ``even`` is
    deterministic; ``closed_loop`` has clients that wait for their answer; ``on_off`` alternates.
    """

    burst: Annotated[int, Field(ge=1, le=1_000_000, strict=True)] | None = None
    rate: PerSecond | None = None
    gamma: PerSecond | None = None
    burstiness: Annotated[float, Field(ge=1e-3, le=1e6)] | None = None  # below: one burst
    even: PerSecond | None = None
    closed_loop: ClosedLoop | None = None
    on_off: OnOff | None = None
    trace: Trace | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in ARRIVAL_KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(ARRIVAL_KINDS)}; {' and '.join(given) or 'none'} given")
        if any(getattr(self, name) == 0 for name in ("rate", "gamma", "even")):
            raise ValueError(f"{given[0]} must be above 0")
        if self.burstiness is not None and self.gamma is None:
            raise ValueError("burstiness belongs to gamma arrivals")
        return self

    @property
    def per_second(self) -> float | None:
        """Mean arrivals a second where the description states them."""
        if self.on_off is not None:
            return self.on_off.rate * self.on_off.on / (self.on_off.on + self.on_off.off)
        return self.rate or self.gamma or self.even


ARRIVAL_KINDS = ("burst", "rate", "gamma", "even", "closed_loop", "on_off", "trace")


SHORTEST_S, LONGEST_S = 1e-6, 1e9
"""Deadlines are compared in whole microseconds, as 64-bit integers."""


class Deadline(Description):
    """A limit and the share of requests that must meet it, in percent (nearest rank); 100 means every request."""

    limit: Seconds
    percentile: Annotated[float, Field(gt=0, le=100)] = 100.0

    @model_validator(mode="before")
    @classmethod
    def _plain_limit(cls, value: Any) -> Any:
        return value if isinstance(value, dict | Deadline) else {"limit": value}

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if self.limit <= 0:
            raise ValueError("a deadline must be above 0")
        if not SHORTEST_S <= self.limit <= LONGEST_S:
            raise ValueError("a deadline must lie between 1 µs and 10^9 s")
        return self


class Slo(Description):
    """Deadlines from arrival to the whole answer (e2e), to the first token, the longest gap, the mean gap."""

    e2e: Deadline | None = None
    ttft: Deadline | None = None
    itl: Deadline | None = None
    tpot: Deadline | None = None

    def deadlines(self) -> dict[str, Deadline]:
        """The deadlines that are set, by metric."""
        return {name: limit for name in ("e2e", "ttft", "itl", "tpot") if (limit := getattr(self, name)) is not None}


class Acceptance(Description):
    """What speculation yields on this traffic: tokens a round, or acceptance by position, or counted rounds.

    ``tokens_per_round`` counts the bonus token and holds at ``draft_tokens`` (default: the length at which the
    calibration measured this draft). ``acceptance`` holds a_j, the probability that draft token j passes when those before
    it did. ``counts`` holds how many measured rounds emitted 1, 2, 3, … tokens.
    """

    tokens_per_round: Annotated[float, Field(ge=1.0, le=257.0)] | None = None
    acceptance: tuple[Probability, ...] | None = None
    counts: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    draft_tokens: Annotated[int, Field(ge=1, le=256, strict=True)] | None = None
    draft_model: str | None = None
    preparation: Seconds = 0.0  # once a request, before the first round (an index, section 8.5.2)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [name for name in ("tokens_per_round", "acceptance", "counts") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of tokens_per_round, acceptance, counts; {' and '.join(given) or 'none'} given")
        if self.draft_tokens is not None and self.tokens_per_round is not None and self.tokens_per_round > self.draft_tokens + 1:
            raise ValueError(f"{self.draft_tokens} draft tokens emit at most {self.draft_tokens + 1} tokens a round")
        if self.counts is not None and sum(self.counts) == 0:
            raise ValueError("counts hold no round")
        if self.acceptance is not None and not self.acceptance:
            raise ValueError("acceptance needs at least one position")
        return self


class Quality(Description):
    """Probability that an answer is correct, by KV format where it differs, and what happens after a wrong one.

    ``retries`` more attempts follow a wrong answer (each checked); a retry costs a whole request again.
    """

    correct: Probability = 1.0
    correct_by_kv_format: dict[str, Probability] = {}
    retries: Annotated[int, Field(ge=0, le=100, strict=True)] = 0


def _typical(lengths: Any) -> int:
    """The mean of a distribution; 1 where none is given, or where it is wrong and its own field will say so."""
    try:
        return Lengths.model_validate(lengths).typical
    except ValueError:
        return 1


OF_A_TRACE = ("prompt_tokens", "output_tokens", "prompt_lengths", "output_lengths", "session", "shared_prefix_tokens")
"""What the rows of a trace say of their requests; a class over a trace repeats none of it."""


class RequestClass(Description):
    """Requests of one kind. Lengths are token counts of one request.

    A length may be written as a distribution (``{lognormal: {mean: 800, cv: 1.2}}``): it is drawn under simulated traffic,
    and ``prompt_tokens`` and ``output_tokens`` then hold its mean, which shapes what is computed once for all requests. A
    trace brings its own lengths; until it is read they count as 1.
    """

    prompt_tokens: Tokens
    output_tokens: Tokens
    prompt_lengths: Lengths | None = None
    output_lengths: Lengths | None = None
    shared_prefix_tokens: Annotated[int, Field(ge=0, le=100_000_000, strict=True)] = 0
    prefix_cached: bool = False  # the shared prefix is in the cache before the first arrival
    session: Session | None = None  # each arrival begins a conversation of several turns
    arrivals: Arrivals
    cancel_after: Patience | None = None  # the client gives up when its whole answer is not there in time
    slo: Slo = Slo()
    quality: Quality | None = None
    speculation: dict[DraftSource, Acceptance] = {}
    samples: Annotated[int, Field(ge=1, le=1024, strict=True)] = 1  # parallel branches of one prompt
    weights: ByteCount | None = None  # stated size of the weights, where the file's own size is known

    @model_validator(mode="before")
    @classmethod
    def _lengths(cls, value: Any) -> Any:
        """Distributions move to ``prompt_lengths`` and ``output_lengths``; a trace takes no lengths, it has them."""
        if not isinstance(value, dict):
            return value
        found = dict(value)
        arrivals = found.get("arrivals")
        recorded = isinstance(arrivals, dict) and arrivals.get("trace") is not None
        given = [name for name in OF_A_TRACE if found.get(name)] if recorded else []
        if given:
            raise ValueError(f"a trace brings its own requests; leave out {' and '.join(given)}")
        for tokens, lengths in (("prompt_tokens", "prompt_lengths"), ("output_tokens", "output_lengths")):
            if isinstance(found.get(tokens), dict):
                found[lengths] = found.pop(tokens)
            if tokens not in found and (found.get(lengths) is not None or recorded):
                found[tokens] = _typical(found.get(lengths))
        return found

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.shared_prefix_tokens > self.prompt_tokens:
            raise ValueError(f"shared_prefix_tokens {self.shared_prefix_tokens} exceed prompt_tokens {self.prompt_tokens}")
        if self.prefix_cached and not self.shared_prefix_tokens:
            raise ValueError("prefix_cached needs shared_prefix_tokens above 0")
        if self.session is not None and self.arrivals.closed_loop is not None:
            raise ValueError("a session paces its own turns; give its first turns an open arrival process")
        waits = "session" if self.session is not None else "closed_loop" if self.arrivals.closed_loop is not None else None
        given = "cancel_after" if self.cancel_after is not None else "samples" if self.samples > 1 else None
        if waits is not None and given is not None:
            raise ValueError(f"{given} needs requests that arrive by the clock, not after an answer ({waits}); leave one of them out")
        if DraftSource.NONE in self.speculation:
            raise ValueError("speculation lists draft sources; 'none' is not one")
        return self

    @property
    def closed_form(self) -> bool:
        """Whether one length and one burst say everything."""
        drawn = (self.session, self.prompt_lengths, self.output_lengths, self.cancel_after)
        return self.arrivals.burst is not None and all(one is None for one in drawn)
