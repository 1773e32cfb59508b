"""The whole question: model, hardware, engine, traffic, what may vary, what to optimise, on which calibration."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from models.describe.base import Bandwidth, ByteCount, Description
from models.describe.configuration import Configuration
from models.describe.scheduler import Scheduler, TurnedAway
from models.describe.workload import RequestClass
from models.errors import GoodputError, InputError, UnknownNameError

VARIABLES = tuple(Configuration.model_fields)
LARGEST_LISTED = 1_000_000
"""Largest value of a decision variable, so that a range cannot fill the memory."""


class Objective(StrEnum):
    """What the ranking minimises or maximises, for each good request (correct and on time)."""

    GPU_SECONDS = "gpu_seconds_per_good_request"
    GOODPUT = "goodput"
    JOULES = "joules_per_good_request"
    COST = "cost"
    LATENCY = "latency"


class Instance(Description):
    """Devices and memory given to one engine process; memory and budget are for each device."""

    device: str
    count: Annotated[int, Field(ge=1, le=1024, strict=True)] = 1
    memory: ByteCount | None = None  # default: what the driver shows, times the engine's utilisation
    kv_budget: ByteCount | None = None  # pool for KV and auxiliary buffers with all weights resident at stored precision
    host_link: Bandwidth | None = None  # default: the device's link to its host
    price_per_hour: Annotated[float, Field(gt=0)] | None = None  # of one device, any currency; needed by objective cost


class EngineChoice(Description):
    """The engine and what is fixed about it. A decision variable given here does not vary."""

    name: str
    version: str | None = None
    block_tokens: Annotated[int, Field(ge=1, le=4096, strict=True)] | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    max_model_len: Annotated[int, Field(ge=1, strict=True)] | None = None
    scheduler: Scheduler = Scheduler()
    fixed: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _gather_fixed(cls, value: Any) -> Any:
        """Decision variables written beside ``name`` are gathered under ``fixed``."""
        if not isinstance(value, dict):
            return value
        if isinstance(value.get("version"), int | float):
            raise ValueError('version must be quoted, as in "0.23": a bare number loses its zeros')  # noqa: TRY004 - pydantic reports ValueError alone
        if not isinstance(value.get("fixed", {}), dict):
            raise ValueError("engine.fixed must be a mapping of variables to values")  # noqa: TRY004 - pydantic reports ValueError alone
        own = {k: v for k, v in value.items() if k not in VARIABLES}
        return own | {"fixed": value.get("fixed", {}) | {k: v for k, v in value.items() if k in VARIABLES}}


class IntegerRange(Description):
    """Every integer from ``min`` to ``max`` in steps of ``step``."""

    min: Annotated[int, Field(ge=0, le=LARGEST_LISTED, strict=True)]
    max: Annotated[int, Field(ge=0, le=LARGEST_LISTED, strict=True)]
    step: Annotated[int, Field(ge=1, strict=True)] = 1

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"max {self.max} is below min {self.min}")
        return self

    def values(self) -> tuple[int, ...]:
        """The integers of the range, ascending."""
        return tuple(range(self.min, self.max + 1, self.step))


class Scenario(Description):
    """One question to the planner. ``search`` None and no candidates: everything that the engine can do varies."""

    model: str
    hardware: Instance
    engine: EngineChoice
    workload: Annotated[dict[str, RequestClass], Field(min_length=1)]
    search: dict[str, Any] | None = None
    candidates: dict[str, dict[str, Any]] | None = None
    objective: Objective | Annotated[tuple[Objective, ...], Field(min_length=1)] = Objective.GPU_SECONDS
    calibration: str = "latest"

    @model_validator(mode="after")
    def _known_variables(self) -> Self:
        try:
            for name in self.search or {}:
                _require_variable(name, "search")
            for label, values in (self.candidates or {}).items():
                for name in values:
                    _require_variable(name, f"candidates.{label}")
        except GoodputError as error:
            raise ValueError(str(error)) from None
        if len(set(self.objectives)) != len(self.objectives):
            raise ValueError("objective names one twice")
        if self.search is not None and self.candidates is not None:
            raise ValueError("give search or candidates, not both: candidates rank exactly the named configurations")
        if self.candidates is not None and not self.candidates:
            raise ValueError("candidates is empty")
        return self

    @model_validator(mode="after")
    def _scheduler_has_work(self) -> Self:
        """A choice that nothing could call on is refused, not ignored."""
        one = self.engine.scheduler
        if one.deadline_aware and not any(c.slo.ttft or c.slo.e2e for c in self.workload.values()):
            raise ValueError("engine.scheduler.deadline_aware needs a ttft or e2e deadline in some class")
        places = (self.engine.fixed, self.search or {}, *(self.candidates or {}).values())
        limited = any("admission_limit" in given for given in places) or (self.search is None and self.candidates is None)
        if one.turned_away is not TurnedAway.REJECT and not one.deadline_aware and not limited:
            raise ValueError("engine.scheduler.turned_away needs deadline_aware: true or an admission_limit: nothing else turns away")
        if isinstance(one.faster, str) and one.faster not in (self.candidates or {}):
            raise ValueError(f"engine.scheduler.faster names no candidate: {one.faster!r} (write its settings, or add it to candidates)")
        waiting = [name for name, c in self.workload.items() if c.session is not None or c.arrivals.closed_loop is not None]
        if one.turned_away in (TurnedAway.HAND_OVER, TurnedAway.FASTER) and waiting:
            raise ValueError(f"turned_away {one.turned_away.value} needs requests by the clock; those of {waiting[0]} wait for answers")
        return self

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives as a tuple; several ask for a Pareto front."""
        return self.objective if isinstance(self.objective, tuple) else (self.objective,)

    @property
    def is_burst(self) -> bool:
        """Whether the closed form covers the traffic: one class, all requests at once, nothing but the fixed batch asked for."""
        return len(self.workload) == 1 and next(iter(self.workload.values())).closed_form and self.engine.scheduler.closed_form

    def only_class(self) -> tuple[str, RequestClass]:
        """The single request class of a closed-form plan."""
        if len(self.workload) != 1:
            raise InputError(
                "the closed form plans one request class; several classes need the simulator",
                path="workload", value=", ".join(self.workload), way_out="keep one class, or give rates so that the traffic is simulated",
            )  # fmt: skip
        return next(iter(self.workload.items()))


def _require_variable(name: str, path: str) -> None:
    if name not in VARIABLES:
        raise UnknownNameError.suggest("decision variable", name, VARIABLES, path=f"{path}.{name}")
