"""Richer traffic than one number: arrival processes, length distributions, sessions. ``models.traffic`` draws requests from it.

Every quantity carries its unit in YAML (``4 /s``, ``250 ms``); token counts are plain integers.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from models.describe.base import Description, PerSecond, Seconds

Tokens = Annotated[int, Field(ge=1, le=100_000_000, strict=True)]
Count = Annotated[int, Field(ge=1, le=10_000_000, strict=True)]


class Lognormal(Description):
    """Mean and coefficient of variation of the length itself (not of its logarithm)."""

    mean: Annotated[float, Field(ge=1, le=1e8)]
    cv: Annotated[float, Field(gt=0, le=20)]


class Lengths(Description):
    """Exactly one of: fixed, uniform [low, high], lognormal, empirical values (drawn with replacement).

    ``least`` and ``most`` bound what is drawn.
    """

    fixed: Tokens | None = None
    uniform: tuple[Tokens, Tokens] | None = None
    lognormal: Lognormal | None = None
    empirical: Annotated[tuple[Tokens, ...], Field(min_length=1)] | None = None
    least: Tokens | None = None
    most: Tokens | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain_number(cls, value: Any) -> Any:
        return {"fixed": value} if isinstance(value, int) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        _exactly_one_kind(self)
        if self.least is not None and self.most is not None and self.least > self.most:
            raise ValueError(f"least {self.least} exceeds most {self.most}")
        return self

    @property
    def typical(self) -> int:
        """Mean length in whole tokens, within the bounds."""
        if self.fixed is not None:
            mean = float(self.fixed)
        elif self.uniform is not None:
            mean = sum(self.uniform) / 2
        elif self.lognormal is not None:
            mean = self.lognormal.mean
        else:
            assert self.empirical is not None
            mean = sum(self.empirical) / len(self.empirical)
        return max(self.least or 1, min(round(mean), self.most or round(mean)))


class LognormalTime(Description):
    """Mean and coefficient of variation of the time itself (not of its logarithm)."""

    mean: Seconds
    cv: Annotated[float, Field(gt=0, le=20)]


class Patience(Description):
    """How long a client waits for the whole answer before it gives up: exactly one of fixed, uniform [low, high], lognormal, empirical.

    Counted from the planned arrival. ``share`` of the clients ever give up; the others wait for ever.
    """

    fixed: Seconds | None = None
    uniform: tuple[Seconds, Seconds] | None = None
    lognormal: LognormalTime | None = None
    empirical: Annotated[tuple[Seconds, ...], Field(min_length=1)] | None = None
    share: Annotated[float, Field(gt=0, le=1)] = 1.0

    @model_validator(mode="before")
    @classmethod
    def _plain_time(cls, value: Any) -> Any:
        return value if isinstance(value, dict | Patience) else {"fixed": value}

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        _exactly_one_kind(self)
        least = self.fixed if self.fixed is not None else self.lognormal.mean if self.lognormal is not None else None
        times = (*(self.uniform or ()), *(self.empirical or ()), *(() if least is None else (least,)))
        if min(times) <= 0:
            raise ValueError("a client waits for longer than 0 s")
        return self


def _exactly_one_kind(drawn: Lengths | Patience) -> None:
    """A distribution is of one kind, and a uniform one rises."""
    given = [name for name in ("fixed", "uniform", "lognormal", "empirical") if getattr(drawn, name) is not None]
    if len(given) != 1:
        raise ValueError(f"give exactly one of fixed, uniform, lognormal, empirical; {' and '.join(given) or 'none'} given")
    if drawn.uniform is not None and drawn.uniform[0] > drawn.uniform[1]:
        raise ValueError(f"uniform needs low <= high, not {drawn.uniform[0]} > {drawn.uniform[1]}")


class ClosedLoop(Description):
    """``concurrency`` clients, each of which sends its next request ``think`` after the answer to the last one.

    They start evenly over ``ramp``: with none, all first prompts share a step and equal requests stay in step; a client that starts while
    another's prompt runs is never in step with it.
    """

    concurrency: Count
    think: Seconds = 0.0
    ramp: Seconds = 0.0


class OnOff(Description):
    """Poisson arrivals of ``rate`` while on, none while off, in turn."""

    rate: PerSecond
    on: Seconds
    off: Seconds

    @model_validator(mode="after")
    def _positive(self) -> Self:
        if self.rate <= 0 or self.on <= 0 or self.off < 0:
            raise ValueError("rate and on must be above 0, off must not be negative")
        return self


class ArrivalProcess(Description):
    """Exactly one of: burst (all at once), poisson, gamma (with ``burstiness``, 1 = Poisson), uniform (even spacing), loop, phases.

    ``burstiness`` is the shape of the gamma distribution of gaps, as in vLLM's benchmark: coefficient of variation 1 / sqrt(b).
    """

    burst: bool = False
    poisson: PerSecond | None = None
    gamma: PerSecond | None = None
    burstiness: Annotated[float, Field(ge=1e-3, le=1e6)] = 1.0  # below: gaps vanish, one burst
    even: PerSecond | None = None
    closed_loop: ClosedLoop | None = None
    on_off: OnOff | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [name for name in ("poisson", "gamma", "even", "closed_loop", "on_off") if getattr(self, name) is not None]
        given += ["burst"] if self.burst else []
        if len(given) != 1:
            raise ValueError(f"give exactly one of burst, poisson, gamma, even, closed_loop, on_off; {' and '.join(given) or 'none'} given")
        if any(rate == 0 for rate in (self.poisson, self.gamma, self.even)):
            raise ValueError("a rate must be above 0")
        if self.burstiness != 1.0 and self.gamma is None:
            raise ValueError("burstiness belongs to gamma arrivals")
        return self


class ContextUpdate(StrEnum):
    """What the next turn sends (section 8.3.3): everything so far, everything behind a new front, or a summary of it."""

    APPEND = "append"
    REWRITE = "rewrite"
    SUMMARISE = "summarise"


class Session(Description):
    """Turns of one conversation. ``think`` passes between an answer and the next turn (a person, or a tool)."""

    turns: Annotated[int, Field(ge=1, le=1_000, strict=True)]
    new_tokens: Lengths  # what each further turn adds
    think: Seconds = 0.0
    context: ContextUpdate = ContextUpdate.APPEND
    summary_tokens: Tokens | None = None

    @model_validator(mode="after")
    def _summary(self) -> Self:
        if (self.context == ContextUpdate.SUMMARISE) != (self.summary_tokens is not None):
            raise ValueError("summary_tokens belongs to context 'summarise', and is needed there")
        return self


class TrafficClass(Description):
    """Requests of one kind, to be drawn."""

    requests: Count
    prompt: Lengths
    output: Lengths
    arrivals: ArrivalProcess
    shared_prefix_tokens: Annotated[int, Field(ge=0, le=100_000_000, strict=True)] = 0
    prefix_cached: bool = False
    session: Session | None = None
    cancel_after: Patience | None = None
    samples: Annotated[int, Field(ge=1, le=1024, strict=True)] = 1

    @model_validator(mode="after")
    def _prefix(self) -> Self:
        if self.prefix_cached and not self.shared_prefix_tokens:
            raise ValueError("prefix_cached needs shared_prefix_tokens above 0")
        if self.session is not None and self.arrivals.closed_loop is not None:
            raise ValueError("a session paces its own turns; give its first turns an open arrival process")
        return self
