"""Runs on their way to the store, on disk once they are many: an import of a million holds none of them in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from weakref import finalize

from models.units import MIB
from planner.ports import Appended, StoredRun
from planner.records import RunRecord

_IN_MEMORY = 8 * MIB


class RunSpool:
    """Records in the order in which they were added; gone with the object."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115  as long as the spool lives
        finalize(self, self._file.close)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, run: RunRecord) -> None:
        """Append a record."""
        self._file.write(run.model_dump_json(exclude_defaults=True).encode() + b"\n")
        self._count += 1

    def __iter__(self) -> Iterator[RunRecord]:
        self._file.seek(0)
        at = 0
        while line := self._file.readline():
            at += len(line)
            yield RunRecord.model_validate_json(line)
            self._file.seek(at)  # whoever else reads meanwhile


@dataclass(frozen=True)
class StoredRuns:
    """Those runs of a spool that a store took, read from the spool whenever they are asked for."""

    spool: RunSpool
    appended: Appended

    def __len__(self) -> int:
        return len(self.spool) - self.appended.ids.count(None)

    def __iter__(self) -> Iterator[StoredRun]:
        for number, record in zip(self.appended.ids, self.spool, strict=True):
            if number is not None:
                yield StoredRun(number, self.appended.added_at, record)

    @property
    def left(self) -> Iterator[RunRecord]:
        """Those that the store knew by then."""
        if None not in self.appended.ids:
            return
        for number, record in zip(self.appended.ids, self.spool, strict=True):
            if number is None:
                yield record
