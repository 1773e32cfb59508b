"""The answer that every engine's rule gives: a pool as the engine prints it, or the refusal."""

from __future__ import annotations

from dataclasses import dataclass

NO_MEMORY = "No available memory for the cache blocks"


@dataclass(frozen=True, slots=True)
class Sized:
    """``blocks`` of ``block_tokens`` tokens and ``block_bytes`` bytes; ``concurrency`` requests of the longest context."""

    blocks: int
    tokens: int
    block_tokens: int
    block_bytes: int
    concurrency: float
    request_blocks: int
    refusal: str = ""
    needed: int | None = None
    longest: int | None = None  # estimated maximum model length of a refusal
    padding: float = 0.0  # share by which a state page is padded
    pool_bytes: int | None = None  # what the engine allocates, where it is not blocks x block_bytes
    window_tokens: int | None = None  # tokens of a separate pool for windowed layers
    states: int | None = None  # sequences whose recurrent state has a place of its own
