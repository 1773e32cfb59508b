"""One request of the plain simulator, with everything that it remembers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Request:
    index: int
    arrival: float
    prompt: int
    output: int
    kind: int
    path: list
    follows: int
    cancel: float
    pause: float = 0.0
    status: str = "pending"
    scheduled: float = -1.0
    times: list = field(default_factory=list)  # when the client saw something
    emitted: int = 0
    draws: int = 0
    hit_tokens: int = 0
    preemptions: int = 0
    lost: int = 0
    end: float = -1.0
    # while running
    target: int = 0
    computed: int = 0
    decoding: bool = False
    since_join: float = 0.0  # tokens since it began to decode, possibly a fraction
    emitted_at_join: int = 0
    rounds_left: int = 0
    held: int = 0
    shared: int = 0
    nodes: int = 0
    place: int = 0
    chained: bool = True
    reading: int = 0
    ready: float = math.inf  # when its draft is prepared

    @property
    def stored(self):
        return self.target + int(self.since_join + 1e-9) if self.decoding else self.computed
