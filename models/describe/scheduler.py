"""How an engine orders its work where a scenario says more than the engine's own rules: ``engine.scheduler``.

Everything here is simulated; the closed form knows the fixed batch alone. What each value does in what order:
``models.kernels.scheduler_batch`` and ``scheduler_blocks``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

from pydantic import model_validator

from models.describe.base import Description


class Scheduling(StrEnum):
    """Who shares an iteration (section 8.2.2)."""

    FIXED = "fixed"  # static batches: a group is prefilled whole, decodes to its end, then comes the next group
    CONTINUOUS = "continuous"  # Orca: whole prompts join the decodes of the next iteration
    CHUNKED = "chunked"  # vLLM V1, Sarathi: decodes first, then chunks of prompts within the token budget
    PREFILL_FIRST = "prefill-first"  # SGLang, vLLM V0: prompts before decodes, never in one iteration


class BlockReserve(StrEnum):
    """KV blocks that the pool must have before a request is admitted (section 8.3.1)."""

    CHUNK = "chunk"  # of its first chunk; more on demand, with preemption (vLLM)
    PROMPT = "prompt"  # of its whole prompt, taken as it is computed
    WHOLE = "whole"  # of prompt and answer, taken at once: nobody is preempted


class Retention(StrEnum):
    """Which cached prefix goes first when blocks are needed (section 8.3.4)."""

    LRU = "lru"  # the least recently used leaf
    VALUE = "value"  # the leaf that saves least for each block: chance of another use x seconds to compute it again


class TurnedAway(StrEnum):
    """What happens to a request that the admission limit or a deadline out of reach turns away (section 8.6.1)."""

    REJECT = "reject"  # refused: the client gets an error
    QUEUE = "queue"  # waits until nobody who can still be on time waits, and is then served late
    HAND_OVER = "hand-over"  # another instance answers it: counted apart, with no cost and no answer here
    FASTER = "faster"  # a second instance with the settings ``faster`` answers it: its time counts, and so does its cost


class Scheduler(Description):
    """Choices of the scheduler. None and the defaults are the engine's own rules.

    ``deadline_aware`` looks at a request when it would be admitted: alone in its prefill and decoding with those present, does it
    still meet ttft and e2e? ``faster`` names a candidate or gives its settings.
    """

    policy: Scheduling | None = None
    reserve: BlockReserve = BlockReserve.CHUNK
    retention: Retention = Retention.LRU
    async_scheduling: bool = False  # the next iteration is submitted before this one ends: who cancels runs one more, who comes waits one
    deadline_aware: bool = False
    turned_away: TurnedAway = TurnedAway.REJECT
    faster: str | dict[str, Any] | None = None

    @model_validator(mode="after")
    def _second_instance(self) -> Self:
        if (self.turned_away is TurnedAway.FASTER) != (self.faster is not None):
            raise ValueError("faster (a candidate or its settings) belongs to turned_away 'faster', and is needed there")
        return self

    @property
    def closed_form(self) -> bool:
        """Whether the closed form says the same: no choice at all, or the fixed batch, which it is."""
        return self in (Scheduler(), Scheduler(policy=Scheduling.FIXED))
