"""The load that every trial runs: requests, deadlines, and the case of each class."""

from __future__ import annotations

from dataclasses import dataclass, replace

from models.case import Case
from models.describe.scenario import Scenario
from models.simulation_types import Deadlines, RequestArrays
from planner.options import Options
from planner.resolve import resolve
from planner.scheduler_notes import scheduler_notes
from planner.traffic.requests import deadlines_of, requests_of, trace_notes, typical_lengths


@dataclass(frozen=True)
class Traffic:
    """The load that every trial runs: requests, deadlines, and the case of each class (they share everything but the class)."""

    cases: dict[str, Case]
    requests: RequestArrays
    deadlines: Deadlines
    slowdown: float = 1.0  # seconds of the world for each simulated second
    notes: tuple[str, ...] = ()  # of whoever read the requests

    @property
    def case(self) -> Case:
        """The class with the most prompt and output tokens: its lengths shape the engine-wide averages."""
        return max(self.cases.values(), key=lambda c: c.request.prompt_tokens + c.request.output_tokens)

    def slowed(self, factor: float) -> Traffic:
        """The same traffic as an engine slower by ``factor`` sees it, on the clock of the one that is simulated."""
        limits = {name: tuple(one / factor for one in getattr(self.deadlines, name)) for name in ("ttft", "e2e", "itl", "tpot")}
        cancel = self.requests.cancel / factor if self.requests.cancel is not None else None
        requests = replace(self.requests, arrival=self.requests.arrival / factor, cancel=cancel)
        return Traffic(self.cases, requests, Deadlines(**limits), self.slowdown * factor, self.notes)


def resolved_warnings(traffic: Traffic) -> tuple[str, ...]:
    """Warnings of every class; delivery to the client is inside simulated times, so the note that it is not is replaced."""
    found = [*traffic.notes, *scheduler_notes(traffic.case)]
    found += [w for case in traffic.cases.values() for w in case.warnings if not w.startswith("times are the engine's")]
    delay = traffic.case.calibration.delivery_s
    if delay:
        found.append(f"client times include {delay * 1e3:.2f} ms of delivery for every token, measured at batch 1")
    return tuple(dict.fromkeys(found))


def load(scenario: Scenario, options: Options) -> Traffic:
    """Draw the requests, then resolve each class."""
    requests = requests_of(scenario, options.requests, options.seed)
    known = typical_lengths(scenario, requests)
    cases = {name: resolve(known.model_copy(update={"workload": {name: one}}), options.stored) for name, one in known.workload.items()}
    return Traffic(cases, requests, deadlines_of(known), notes=trace_notes(scenario, options.requests))
