"""The use case: result files into the run store, in one transaction, with what is missing, refused, known already or drifted.

A run that lacks a fact, or names a device, engine or model that nobody knows, is not stored: runs are append-only and recognised by what
was measured, so a second import with the missing option could not complete it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from models.catalog.devices import load_device
from models.catalog.engines import canonical_name
from models.errors import GoodputError
from models.readers.load import load_architecture
from planner.importers import asks_of, iterate_import
from planner.ports import CalibrationStore, RunStore, StoredRun
from planner.recalibrate import Drifted, drift_of
from planner.records import Ask, Duplicate, Refusal, RunRecord
from planner.run_groups import Keys

_MOST_CHECKED = 2000
"""Runs of one import that are held against stored calibrations."""
_ASKED_AT_ONCE = 200


@dataclass(frozen=True)
class Imported:
    """What an import did."""

    stored: tuple[StoredRun, ...]
    incomplete: tuple[RunRecord, ...]
    refused: tuple[Refusal, ...]
    ignored: tuple[Refusal, ...]
    duplicates: tuple[Duplicate, ...]
    asks: tuple[Ask, ...]
    drifted: tuple[Drifted, ...]


def import_runs(
    paths: Iterable[Path | str], runs: RunStore, calibrations: CalibrationStore, *,
    known: Mapping[str, str] | None = None, columns: Mapping[str, str] | None = None,
) -> Imported:  # fmt: skip
    """Read ``paths`` and store every complete run, all or none; the store is locked only while it writes."""
    known = checked_facts(known or {})
    seen = _Seen()
    complete = list(seen.complete(_marked(iterate_import(paths, known=known, columns=columns), runs)))
    stored = runs.append(complete) if complete else ()
    added = {run.record.content_hash for run in stored}
    seen.duplicates += [_duplicate(run) for run in complete if run.content_hash not in added]  # another import was faster
    drifted = drift_of(stored[:_MOST_CHECKED], calibrations.newest()) if stored else ()
    return Imported(
        stored, tuple(seen.incomplete), tuple(r for r in seen.refused if not r.ignored), tuple(r for r in seen.refused if r.ignored),
        tuple(seen.duplicates), asks_of(seen.incomplete), drifted,
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
    """Events of an import, the complete runs passed on one at a time."""

    def __init__(self) -> None:
        self.incomplete: list[RunRecord] = []
        self.refused: list[Refusal] = []
        self.duplicates: list[Duplicate] = []
        self.keys = Keys()

    def complete(self, events: Iterable[RunRecord | Refusal | Duplicate]) -> Iterator[RunRecord]:
        for event in events:
            if isinstance(event, Refusal):
                self.refused.append(event)
            elif isinstance(event, Duplicate):
                self.duplicates.append(event)
            elif event.missing:
                self.incomplete.append(event)
            elif (problem := _unknown(event, self.keys)) is not None:
                source = event.source
                self.refused.append(Refusal(file=source.file, line=source.line, where=source.where, reason=problem))
            else:
                yield event


def _unknown(run: RunRecord, keys: Keys) -> str | None:
    """Why nothing could ever be made of a run's times; None where its names are known (or it holds memory alone)."""
    if not (run.steps or run.serving):
        return None
    try:
        keys.of(run.setup)
    except GoodputError as error:
        return f"not stored: {error}"
    return None
