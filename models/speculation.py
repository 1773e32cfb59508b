"""Speculative decoding: tokens a round, time a token, when a longer draft pays (section 8.5).

Notation
    a_j   probability that draft token j passes when all before it did
    m     draft tokens a round
    N_m   tokens emitted by a round, the correction or bonus token included: E[N_m] = 1 + sum_j prod_{i<=j} a_i
    T_m   seconds of a round with m draft tokens
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from models.describe.workload import Acceptance
from models.errors import InputError


def expected_tokens(acceptance: Sequence[float]) -> float:
    """E[N_m] for a draft as long as ``acceptance`` (section 8.5.4). No draft emits one token."""
    total, reach = 1.0, 1.0
    for a in acceptance:
        reach *= a
        total += reach
    return total


EXACT_TOKENS = 2048
"""Longest output whose rounds are counted exactly; beyond it the sum of draws is taken as normal."""


def constant_acceptance(tokens_per_round: float, draft_tokens: int) -> float:
    """The constant a for which ``draft_tokens`` drafts emit ``tokens_per_round`` on average (bisection to 1e-15)."""
    _require_reachable(tokens_per_round, draft_tokens)
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens([middle] * draft_tokens) < tokens_per_round else (low, middle)
    return (low + high) / 2


def _require_reachable(tokens_per_round: float, draft_tokens: int) -> None:
    if tokens_per_round > draft_tokens + 1:
        raise InputError(
            f"{draft_tokens} draft tokens emit at most {draft_tokens + 1} tokens a round", path="speculation.tokens_per_round",
            value=tokens_per_round, way_out="lower tokens_per_round or raise draft_tokens",
        )  # fmt: skip


def tokens_per_round(speculation: Acceptance, draft_tokens: int, measured_at: int | None) -> float:
    """Mean tokens of a round with ``draft_tokens`` drafts on this traffic.

    A stated mean holds at its own draft length (``speculation.draft_tokens`` or else the calibration's ``measured_at``);
    at another length the constant acceptance of the same mean is used. Positions beyond the listed ones repeat the last.
    """
    if speculation.tokens_per_round is not None:
        reference = speculation.draft_tokens or measured_at or draft_tokens
        if draft_tokens == reference:
            _require_reachable(speculation.tokens_per_round, draft_tokens)
            return speculation.tokens_per_round
        return expected_tokens([constant_acceptance(speculation.tokens_per_round, reference)] * draft_tokens)
    a = positions(speculation)
    listed = list(a[:draft_tokens])
    return expected_tokens(listed + [a[-1]] * (draft_tokens - len(listed)))


def positions(speculation: Acceptance) -> tuple[float, ...]:
    """Acceptance by position, as listed or counted: a_j = rounds beyond j tokens / rounds of at least j."""
    if speculation.acceptance is not None:
        return speculation.acceptance
    counts = speculation.counts or ()
    at_least = [sum(counts[j:]) for j in range(len(counts))]
    return tuple(after / before for before, after in itertools.pairwise(at_least) if before) or (0.0,)


def acceptance_chain(speculation: Acceptance, draft_tokens: int, measured_at: int | None) -> tuple[float, ...]:
    """Acceptance of each of ``draft_tokens`` positions: listed or counted, or constant with the stated mean at its own length."""
    if speculation.tokens_per_round is not None:
        reference = speculation.draft_tokens or measured_at or draft_tokens
        return (constant_acceptance(speculation.tokens_per_round, reference),) * draft_tokens
    a = positions(speculation)
    return (*a[:draft_tokens], *((a[-1],) * (draft_tokens - len(a))))


def slowest_rounds(acceptance: Sequence[float], tokens: int, sequences: int) -> npt.NDArray[np.float64]:
    """P(the slowest of ``sequences`` has emitted ``tokens`` within r rounds), r = 0, 1, …, tokens; positions accept independently.

    The tokens of r rounds are r independent draws of N, P(N = n) = prod_{i<n} a_i (1 - a_n); sequences are independent.
    """
    if tokens > EXACT_TOKENS:
        return _slowest_by_normal(acceptance, tokens, sequences)
    reach = np.concatenate([[1.0], np.cumprod(np.asarray(acceptance, dtype=np.float64)), [0.0]])
    emitted = reach[:-1] - reach[1:]  # P(N = 1), P(N = 2), …
    short = np.zeros(max(tokens, 1))
    short[0] = 1.0  # P(t tokens so far), t < tokens
    done = [float(tokens <= 0)]
    while len(done) <= tokens and done[-1] < 1.0 - 1e-15:
        short = np.convolve(short, np.concatenate([[0.0], emitted]))[: max(tokens, 1)]
        done.append(min(1.0, max(0.0, 1.0 - float(short.sum()))))
    whole = np.ones(tokens + 1)
    whole[: len(done)] = done
    return np.asarray(whole**sequences)


def _slowest_by_normal(acceptance: Sequence[float], tokens: int, sequences: int) -> npt.NDArray[np.float64]:
    """The same for long outputs, where the sum of many draws is normal."""
    reach = np.concatenate([[1.0], np.cumprod(np.asarray(acceptance, dtype=np.float64)), [0.0]])
    emitted, n = reach[:-1] - reach[1:], np.arange(1, len(reach))
    mean = float(emitted @ n)
    variance = max(float(emitted @ n**2) - mean**2, 1e-12)
    r = np.arange(tokens + 1)
    z = (r * mean - tokens + 0.5) / np.sqrt(2.0 * variance * np.maximum(r, 1))
    return np.array([0.5 * (1.0 + math.erf(v)) for v in z]) ** sequences


def rounds(output_tokens: int, tokens_a_round: float) -> int:
    """Rounds after the first token: ceil((G - 1) / N). Prefill emits the first token."""
    return math.ceil((output_tokens - 1) / tokens_a_round - 1e-9)


def seconds_per_token(round_seconds: Sequence[float], round_tokens: Sequence[float]) -> float:
    """Sum of T over sum of N, not the mean of ratios (section 8.5.2)."""
    return sum(round_seconds) / sum(round_tokens)


def draft_seconds(forward_s: float, draft_tokens: int, *, parallel: bool) -> float:
    """Serial drafts cost one forward a token; block-parallel ones a single forward (section 8.5.3)."""
    return forward_s if parallel else forward_s * draft_tokens


def query_break_even_s(tokens_a_round: float, plain_s: float, verify_s: float) -> float:
    """Largest time for finding a draft that still beats plain decoding: N x plain - verify."""
    return tokens_a_round * plain_s - verify_s


def preparation_break_even_tokens(preparation_s: float, plain_s: float, speculative_s: float) -> int:
    """Tokens after which a preparation (an index) has paid for itself."""
    if speculative_s >= plain_s:
        raise InputError("speculation is not faster than plain decoding, so no output pays for the preparation", value=speculative_s)
    return math.ceil(preparation_s / (plain_s - speculative_s))


def exact_expected_rounds(acceptance: Sequence[float], tokens: int) -> float:
    """Expected rounds until ``tokens`` are out, exactly: surplus of the last round does not count.

    R(t) = 1 + sum_n P(N = n) R(t - n), R(t <= 0) = 0.
    """
    reach = [1.0]
    for a in acceptance:
        reach.append(reach[-1] * a)
    probability = [p - q for p, q in zip(reach, [*reach[1:], 0.0], strict=True)]  # P(N = n), n = 1 ..
    expected = [0.0] * (tokens + 1)
    for t in range(1, tokens + 1):
        expected[t] = 1.0 + sum(p * expected[max(t - n, 0)] for n, p in enumerate(probability, start=1))
    return expected[tokens]


def longer_draft_pays(previous: tuple[float, float], longer: tuple[float, float]) -> bool:
    """dT / dN < T / N for (seconds, tokens) of a round before and after lengthening (section 8.5.4)."""
    (t, n), (t2, n2) = previous, longer
    return n2 > n and (t2 - t) / (n2 - n) < t / n
