"""The use case: result files into the run store, in one transaction, with what is missing, refused, known already or drifted.

However many runs there are, none is held in memory: they lie in a spool until the store takes them, and of what is only to be named
the first are kept, the others counted.

A run that lacks a fact, or names a device, engine or model that nobody knows, is not stored: runs are append-only and recognised by what
was measured, so a second import with the missing option could not complete it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from models.catalog.devices import load_device
from models.catalog.engines import canonical_name
from models.errors import GoodputError
from models.readers.load import load_architecture
from planner.importers import Asks, iterate_import
from planner.ports import Appended, CalibrationStore, RunStore
from planner.recalibrate import Drifted, drift_of
from planner.records import Ask, Duplicate, Refusal, RunRecord
from planner.run_groups import Keys
from planner.run_spool import RunSpool, StoredRuns

_MOST_CHECKED = 2000
"""Runs of one import that are held against stored calibrations."""
_ASKED_AT_ONCE = 200
_MOST_NAMED = 10_000
"""Of each kind of thing that an import names."""


T = TypeVar("T")


@dataclass
class Tally(Generic[T]):
    """Counts everything and keeps the first to be named."""

    count: int = 0
    named: list[T] = field(default_factory=list)

    def add(self, one: T) -> None:
        """Count one more."""
        self.count += 1
        if len(self.named) < _MOST_NAMED:
            self.named.append(one)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[T]:
        return iter(self.named)


class Incomplete(NamedTuple):
    """A run that lacks facts."""

    file: str
    line: int | None
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Imported:
    """What an import did. ``warned``: what to mind of a stored run, by its identity."""

    stored: StoredRuns
    incomplete: Tally[Incomplete]
    refused: Tally[Refusal]
    ignored: Tally[Refusal]
    duplicates: Tally[Duplicate]
    asks: tuple[Ask, ...]
    drifted: tuple[Drifted, ...]
    warned: tuple[tuple[int, str], ...]


def import_runs(
    paths: Iterable[Path | str], runs: RunStore, calibrations: CalibrationStore, *,
    known: Mapping[str, str] | None = None, columns: Mapping[str, str] | None = None,
) -> Imported:  # fmt: skip
    """Read ``paths`` and store every complete run, all or none; the store is locked only while it writes."""
    known = checked_facts(known or {})
    seen = _Seen()
    for event in _marked(iterate_import(paths, known=known, columns=columns), runs):
        seen.take(event)
    stored = StoredRuns(seen.complete, runs.append(seen.complete) if len(seen.complete) else Appended("", ()))
    for run in stored.left:  # another import was faster
        seen.duplicates.add(_duplicate(run))
    checked = tuple(islice(stored, _MOST_CHECKED))
    ids = stored.appended.ids
    return Imported(
        stored, seen.incomplete, seen.refused, seen.ignored, seen.duplicates, seen.asks.listed,
        drift_of(checked, calibrations.newest()) if checked else (),
        tuple((number, warning) for at, warning in seen.warned if (number := ids[at]) is not None),
    )  # fmt: skip


def checked_facts(known: Mapping[str, str]) -> dict[str, str]:
    """The user's facts, with a model, device or engine that nobody knows refused before anything is read."""
    found = dict(known)
    if "device" in found:
        found["device"] = load_device(found["device"]).id
    if "engine" in found:
        found["engine"] = canonical_name(found["engine"])
    if "model" in found:
        load_architecture(found["model"])
        path = Path(found["model"]).expanduser()
        found["model"] = str(path.resolve()) if path.exists() else found["model"]
    return found


def _marked(events: Iterable[RunRecord | Refusal | Duplicate], runs: RunStore) -> Iterator[RunRecord | Refusal | Duplicate]:
    """The events, a run that is stored already as the duplicate that it is; the store is asked for many at once."""
    waiting = iter(events)
    while batch := list(islice(waiting, _ASKED_AT_ONCE)):
        known = runs.known(event.content_hash for event in batch if isinstance(event, RunRecord))
        for event in batch:
            if isinstance(event, RunRecord) and event.content_hash in known:
                yield _duplicate(event)
            else:
                yield event


def _duplicate(run: RunRecord) -> Duplicate:
    place = run.source
    return Duplicate(file=place.file, line=place.line, where=place.where, content_hash=run.content_hash, first_seen="stored")


class _Seen:
    """Events of an import, sorted."""

    def __init__(self) -> None:
        self.complete = RunSpool()
        self.incomplete: Tally[Incomplete] = Tally()
        self.refused: Tally[Refusal] = Tally()
        self.ignored: Tally[Refusal] = Tally()
        self.duplicates: Tally[Duplicate] = Tally()
        self.warned: Tally[tuple[int, str]] = Tally()  # by place in the spool
        self.asks = Asks()
        self._keys = Keys()

    def take(self, event: RunRecord | Refusal | Duplicate) -> None:
        if isinstance(event, Refusal):
            (self.ignored if event.ignored else self.refused).add(event)
        elif isinstance(event, Duplicate):
            self.duplicates.add(event)
        elif event.missing:
            self.asks.add(event)
            self.incomplete.add(Incomplete(event.source.file, event.source.line, event.missing))
        elif (problem := _unknown(event, self._keys)) is not None:
            source = event.source
            self.refused.add(Refusal(file=source.file, line=source.line, where=source.where, reason=problem))
        else:
            for warning in event.warnings:
                self.warned.add((len(self.complete), warning))
            self.complete.add(event)


def _unknown(run: RunRecord, keys: Keys) -> str | None:
    """Why nothing could ever be made of a run's times; None where its names are known (or it holds memory alone)."""
    if not (run.steps or run.serving):
        return None
    try:
        keys.of(run.setup)
    except GoodputError as error:
        return f"not stored: {error}"
    return None
