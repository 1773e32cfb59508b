"""The answer of a plan: one schema for CLI and REST. Seconds and bytes; a value that does not exist is null."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = "1"


class Part(BaseModel):
    """A frozen piece of an answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Distribution(Part):
    """Over the requests of the burst; nearest-rank percentiles, seconds."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


class Memory(Part):
    """Bytes on one device. ``pool_bytes`` is what ``kv_budget`` must hold; ``pool_limit_bytes`` null without one."""

    weights_bytes: int
    kv_bytes: int
    draft_bytes: int
    prefetch_bytes: int
    activation_bytes: int
    graph_bytes: int
    total_bytes: int
    limit_bytes: int
    pool_bytes: int
    pool_limit_bytes: int | None


class Times(Part):
    """``prefill_s`` and ``round_s`` of a full wave; ``makespan_s`` until the last answer.

    Under simulated traffic: mean time from the first step to the first token, mean gap, and the whole run; ``waves`` is 1.
    """

    prefill_s: float
    rounds: int
    round_s: float
    waves: int
    makespan_s: float
    ttft_s: Distribution
    itl_s: Distribution
    tpot_s: Distribution
    e2e_s: Distribution


class Throughput(Part):
    """Over the makespan."""

    output_tokens_per_s: float
    requests_per_s: float
    goodput_per_s: float


class Cost(Part):
    """For each good request; null when none is good. Joules at the power cap, an upper bound. ``gpu_s_per_request`` counts all."""

    gpu_s_per_request: float
    gpu_s_per_good: float | None
    joules_per_good: float | None
    price_per_good: float | None


class Violation(Part):
    """A broken constraint: value and limit in ``unit``; ``relax_to`` is a limit, rounded outward, that this configuration meets."""

    constraint: str
    value: float | None
    limit: float
    unit: str
    relax_to: str | None


class Ranked(Part):
    """One configuration with its prediction."""

    rank: int
    id: str
    feasible: bool
    settings: dict[str, Any]
    memory: Memory
    time: Times
    throughput: Throughput
    cost: Cost
    good_requests: float
    slo_probability: float
    probability_best: float | None = None  # under the calibration's spread; None where it was not worked out
    intervals: dict[str, tuple[float, float]]
    violations: tuple[Violation, ...]
    launchable: dict[str, bool | str]
    assumptions: tuple[str, ...]
    simulated: Simulated | None = None
    objective: float | None
    objectives: dict[str, float | None]


class Relaxation(Part):
    """The smallest change of one limit that makes the scenario feasible, printed so that planning again with it succeeds."""

    path: str
    value: str
    text: str
    winner: str


class SwitchPoint(Part):
    """From ``value`` of ``path`` on (until the next point) ``winner`` is first; null: nothing is feasible."""

    path: str
    value: str
    winner: str | None


class ClassResult(Part):
    """One request class under simulated traffic."""

    requests: int
    finished: int
    good: int
    ttft_s: Distribution
    itl_s: Distribution
    tpot_s: Distribution
    e2e_s: Distribution
    queue_s: Distribution
    goodput_per_s: float


class Simulated(Part):
    """What the simulator saw of one configuration beside times: use of the pool, cache, preemption, overload."""

    classes: dict[str, ClassResult]
    busy_s: float
    hit_rate: float
    preemptions: int
    recomputed_tokens: int
    peak_kv_bytes: int
    queue_growth_per_s: float
    overload: bool


class Trials(Part):
    """How the search over traffic went: trials, those abandoned early, and the best value so far by trial number.

    ``closed_form_id`` is the place of the closed form's choice in the answer; ``gain`` null where that choice is late.
    """

    requests: int
    seed: int
    tried: int
    pruned: int
    history: tuple[tuple[int, float], ...]
    closed_form: float | None  # simulated objective of the closed form's choice
    gain: float | None  # share by which the answer beats it
    closed_form_id: str | None = None
    closed_form_late: tuple[str, ...] = ()  # deadlines that it misses under this traffic
    wanted: int = 0  # trials asked for
    interrupted: bool = False


class Explanation(Part):
    """Why the answer is what it is."""

    binding: tuple[str, ...]
    why_winner: str
    runner_up: str | None
    rejected: dict[str, str]
    conflicts: tuple[str, ...]
    switch_points: tuple[SwitchPoint, ...]
    relaxations: tuple[Relaxation, ...]
    undecided: tuple[str, ...] = ()  # under simulated traffic: tied with the winner within the simulation's own error


class CalibrationUsed(Part):
    """Name and version of the calibration behind the numbers."""

    name: str
    version: str
    requested: str


class Launch(Part):
    """How an engine is told the winner's settings."""

    command: str
    config: str | None
    launchable: bool
    notes: tuple[str, ...]


class Answer(Part):
    """The whole answer. ``space`` counts the configurations that the status speaks about, ``evaluated`` those computed."""

    schema_version: str
    status: str
    termination: str
    solver: str
    objective: str
    bound: float | None
    gap: float | None
    evaluated: int
    space: int
    elapsed_s: float
    calibration: CalibrationUsed
    catalogue_version: str
    engine: str
    warnings: tuple[str, ...]
    order_decided: bool | None = None  # whether the data decide who is first; None: no first, nothing to compare, or not worked out
    configurations: tuple[Ranked, ...]
    pareto_front: tuple[str, ...]  # ids that no other beats in every objective; empty for a single objective
    explanation: Explanation
    launch: dict[str, Launch]
    trials: Trials | None = None

    @property
    def winner(self) -> Ranked | None:
        """The first configuration when it is feasible."""
        return self.configurations[0] if self.configurations and self.configurations[0].feasible else None
