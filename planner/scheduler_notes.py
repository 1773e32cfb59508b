"""What a reader must know about the scheduler that was simulated: what the engine itself does not do, what was not counted, and why a
burst ends later here than in the closed form.
"""

from __future__ import annotations

from models.case import Case
from models.describe.scheduler import BlockReserve, Retention, TurnedAway
from models.lower_simulation import POLICIES, own_policy
from models.simulation_types import Policy, SimulationResult, Status

RESERVED = {BlockReserve.PROMPT: "the prompt", BlockReserve.WHOLE: "prompt and answer"}


def scheduler_notes(case: Case) -> list[str]:
    """Choices of ``engine.scheduler`` that the launch commands do not bring about."""
    chosen, title, own = case.scenario.engine.scheduler, case.engine.title, own_policy(case.engine.name)
    found = []
    if chosen.policy not in (None, own):
        found.append(f"{chosen.policy} scheduling is simulated as asked; {title} itself is {own}, and no flag changes that")
    if chosen.reserve is not BlockReserve.CHUNK:
        found.append(f"admission reserves the blocks of {RESERVED[chosen.reserve]} as asked; the launch command leaves that to {title}")
    if chosen.async_scheduling:
        found.append(f"asynchronous scheduling delays cancellations here; the launch command leaves {title}'s own setting")
    if chosen.retention is Retention.VALUE:
        found.append(f"prefixes are kept by value as asked; {title} itself evicts the least recently used")
    if chosen.deadline_aware:
        found.append(f"{title} does not look at deadlines: a proxy in front of it must turn away whom this simulation turns away")
    if chosen.turned_away is TurnedAway.FASTER:
        found.append("times and cost include the second instance that answers whom the first turns away; its memory is its own")
    return found


def outcome_notes(result: SimulationResult) -> list[str]:
    """What this run left out of its figures."""
    moved, refused = (int(result.status(which).sum()) for which in (Status.HANDED_OVER, Status.TOO_LARGE))
    notes = []
    if moved:
        words = "requests were handed over: no time, cost or good answer of theirs is counted here, and no deadline judges them"
        notes.append(f"{moved:,} {words}")
    if refused:
        many = "1 request can" if refused == 1 else f"{refused:,} requests can"
        notes.append(f"{many} never fit into the context limit or the KV pool: refused on arrival")
    return notes


def burst_note(case: Case, policy: Policy) -> list[str]:
    """A burst that the closed form plans as a fixed batch, simulated under another policy."""
    if policy == Policy.FIXED or not case.scenario.is_burst:
        return []
    name = next(one for one, lowered in POLICIES.items() if lowered == policy)
    words = (
        f"goodput plan takes this burst as a fixed batch: every prompt first, then every round. Under {name} scheduling early requests "
        "decode while others wait for their prompt; rounds of few cost nearly as much as rounds of all, so the last answer comes later. "
        "--policy fixed --expected shows the plan's figures"
    )
    return [words]
