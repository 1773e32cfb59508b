"""The loads that are served for comparison, and the traffic that is planned for: as requests to send and as scenarios to simulate."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

from planner.served_runs import TURNAROUND

FIRST_WORD, VOCABULARY = 300, 8192
KV_NAMES = {"f16": "bf16", "q8_0": "q8_0", "q4_0": "q4_0"}
"""The engine's 16-bit cache is f16; a configuration calls every 16-bit cache bf16."""


@dataclass(frozen=True)
class Served:
    """One load: ``count`` requests of uniformly drawn lengths, by so many clients or at a Poisson rate, on ``slots`` slots."""

    name: str
    slots: int
    count: int
    prompt: tuple[int, int]
    output: tuple[int, int]
    kv_type: str = "f16"
    budget: int = 512
    concurrency: int | None = None
    rate: float | None = None
    shared: int = 0  # tokens that every prompt begins with; 0: nothing is reused
    seed: int = 11
    apart: float = 0.05  # seconds between the starts of a closed loop's clients
    lengths: tuple[tuple[int, int], ...] = field(init=False)
    arrivals: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        drawn = tuple((rng.randint(*self.prompt), rng.randint(*self.output)) for _ in range(self.count))
        object.__setattr__(self, "lengths", drawn)
        at, times = 0.0, []
        for _ in range(self.count):
            times.append(at)
            at += -math.log(1.0 - rng.random()) / self.rate if self.rate else 0.0
        object.__setattr__(self, "arrivals", tuple(times))

    @property
    def longest(self) -> int:
        """Tokens of the longest request, so that each slot holds one."""
        return self.prompt[1] + self.output[1]

    def requests(self) -> dict[str, Any]:
        """What ``engine_server.py`` sends: random token numbers, the same for every prompt's shared beginning."""
        rng = random.Random(self.seed + 1)
        common = [rng.randrange(FIRST_WORD, VOCABULARY) for _ in range(self.shared)]
        sent = []
        for (prompt, output), arrival in zip(self.lengths, self.arrivals, strict=True):
            own = [rng.randrange(FIRST_WORD, VOCABULARY) for _ in range(prompt - self.shared)]
            sent.append({"prompt": [*common, *own], "output": output, "arrival": arrival})
        args = {
            "np": self.slots, "b": self.budget, "ub": self.budget, "ctk": self.kv_type, "rate": self.rate or 0,
            "conc": self.concurrency or 0,
        }  # fmt: skip
        return {"name": self.name, "args": args, "apart": self.apart, "requests": sent}

    def arguments(self, model: str) -> list[str]:
        """Arguments of the server, as a plan writes them."""
        slot = -(-(self.longest + 1) // 256) * 256
        return [
            "--model", model, "--ctx-size", str(self.slots * slot), "--no-kv-unified", "--parallel", str(self.slots), "--cont-batching",
            "--batch-size", str(self.budget), "--ubatch-size", str(self.budget), "--cache-type-k", self.kv_type, "--cache-type-v",
            self.kv_type, "--flash-attn", "on", "--cache-prompt" if self.shared else "--no-cache-prompt",
        ]  # fmt: skip


LOADS = (
    Served("closed-4-of-4", slots=4, count=16, prompt=(256, 256), output=(32, 32), concurrency=4),
    Served("closed-8-of-4-q8", slots=4, count=24, prompt=(128, 128), output=(48, 48), kv_type="q8_0", concurrency=8),
    Served("closed-8-of-8-q4", slots=8, count=24, prompt=(192, 192), output=(40, 40), kv_type="q4_0", concurrency=8),
    Served("open-f16", slots=8, count=32, prompt=(32, 384), output=(16, 64), rate=0.6),
    Served("open-q8-budget-128", slots=8, count=32, prompt=(32, 384), output=(16, 64), kv_type="q8_0", budget=128, rate=0.5),
    Served("prefix-reused", slots=1, count=10, prompt=(480, 480), output=(24, 24), concurrency=1, shared=384),
)


def scenario(load: Served, model: str, device: str, trace: str | None) -> dict[str, Any]:
    """The load as a scenario whose ``engine`` block is what it ran with; an open load as the ``trace`` of its own requests."""
    lengths: dict[str, Any] = {} if trace else {"prompt_tokens": load.prompt[0], "output_tokens": load.output[0]}
    arrivals: dict[str, Any] = {"trace": trace}
    if load.concurrency is not None:
        loop = {"concurrency": load.concurrency, "ramp": f"{load.concurrency * load.apart} s", "think": TURNAROUND}
        arrivals = {"closed_loop": loop}
    shared: dict[str, Any] = {"shared_prefix_tokens": load.shared, "prefix_cached": True} if load.shared else {}
    return {
        "model": model, "hardware": {"device": device, "memory": "2 GiB"},
        "engine": {
            "name": "llama.cpp", "version": "b11549", "max_num_seqs": load.slots, "max_num_batched_tokens": load.budget,
            "kv_format": KV_NAMES[load.kv_type], "prefix_sharing": bool(load.shared), "draft": "none", "cuda_graphs": False,
        },
        "workload": {"here": {**lengths, **shared, "arrivals": arrivals, "slo": {"e2e": "1 h"}, "quality": {"correct": 1.0}}},
    }  # fmt: skip


PLANNED = {"prompt": 192, "output": 64, "concurrency": 8, "requests": 24}
"""The traffic that is planned for: a closed loop of so many clients."""


def plan_scenario(model: str, device: str) -> dict[str, Any]:
    """The question which slots, token budget and KV format answer most requests of ``PLANNED`` a second on this machine."""
    found = scenario(_planned("planned", slots=1, budget=512, kv_type="f16"), model, device, None)
    for name in ("max_num_seqs", "max_num_batched_tokens", "kv_format"):
        del found["engine"][name]
    found["engine"]["max_model_len"] = PLANNED["prompt"] + PLANNED["output"]
    search = {"max_num_seqs": [1, 2, 4, 8], "max_num_batched_tokens": [64, 256], "kv_format": list(KV_NAMES.values())}
    return found | {"search": search, "objective": "goodput"}


def _planned(name: str, *, slots: int, budget: int, kv_type: str) -> Served:
    fixed = {end: (PLANNED[end], PLANNED[end]) for end in ("prompt", "output")}
    return Served(
        name, slots=slots, count=PLANNED["requests"], budget=budget, kv_type=kv_type, concurrency=PLANNED["concurrency"], seed=3, **fixed
    )


def planned(name: str, settings: dict[str, Any]) -> Served:
    """The planned traffic on a ranked configuration."""
    kv_type = next(own for own, name_ in KV_NAMES.items() if name_ == settings["kv_format"])
    return _planned(name, slots=settings["max_num_seqs"], budget=settings["max_num_batched_tokens"], kv_type=kv_type)
