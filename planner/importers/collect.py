"""Importing files and folders: every good run, every refusal with file, line and reason, every duplicate. Stores nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from models.errors import FileFormatError, GoodputError, UnitError
from models.units import format_bytes
from planner.importers import aiperf, csv_table, operator_profile, request_list
from planner.importers.common import Draft, MeasurementError, Origin, content_hash, finish, first_complaint
from planner.importers.companions import set_aside
from planner.importers.console import Console
from planner.importers.detect import Layout, format_of, layout_of, wrapped
from planner.importers.facts import apply_known, check_known, missing_facts, option_of, set_known_facts
from planner.importers.first_seen import FirstSeen
from planner.importers.llama_batched_bench import LlamaBatchedBenchTable
from planner.importers.llama_bench_table import LlamaBenchTable
from planner.importers.llama_server import LlamaServerLog
from planner.importers.plausible import check_serving, check_step
from planner.importers.prometheus import PrometheusDump
from planner.importers.sglang_log import SglangLog
from planner.importers.stream import (
    CHUNK,
    BrokenJsonError,
    Limits,
    OneLine,
    UnreadableError,
    check_regular,
    file_digest,
    json_values,
    key_line,
    open_bytes,
    syntax_line,
    text_lines,
    zip_members,
)
from planner.importers.vllm_log import VllmLog
from planner.importers.yaml_stream import yaml_values
from planner.records import Ask, Duplicate, ImportReport, Refusal, RunRecord

Event = RunRecord | Refusal | Duplicate
MAX_REFUSALS = 1_000  # of one file
_FIRST_ROWS = 200  # of a table, held together
_ROWS_OF_A_COLUMN = 3  # impossible rows that speak of their column rather than of themselves
_LOGS = (VllmLog, SglangLog, LlamaServerLog, Console, LlamaBenchTable, LlamaBatchedBenchTable)
_FOREIGN = (ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError, RecursionError)  # odd shapes of foreign JSON


@dataclass
class _Import:
    """One import: what the user added, what was seen."""

    known: dict[str, str]
    columns: Mapping[str, str] | None
    limits: Limits
    seen: FirstSeen = field(default_factory=FirstSeen)

    def record(self, draft: Draft, origin: Origin) -> Event:
        """The checked record of a draft, or the duplicate that it is."""
        if draft.problem is not None:
            raise draft.problem
        digest = content_hash(draft)
        if (first := self.seen.place(digest)) is not None:
            return Duplicate(file=origin.file, line=origin.line, where=draft.where or origin.where, content_hash=digest, first_seen=first)
        apply_known(draft, self.known)
        run = finish(draft, origin, missing_facts(draft), digest)
        warnings = [warning for seen in run.serving if not seen.windows for warning in check_serving(seen, run.workload)]
        for step in run.steps:
            check_step(step)
        self.seen.add(digest, origin.file, origin.line, draft.where)
        return run.model_copy(update={"warnings": (*run.warnings, *warnings)}) if warnings else run


def import_paths(
    paths: Iterable[Path | str],
    *,
    known: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
    limits: Limits | None = None,
) -> ImportReport:
    """Read files and folders of results.

    ``known`` holds facts that the files do not say, by option name (``device``, ``tp``, ``model``, ``engine``, ``input_len``, …);
    ``columns`` maps meanings to columns of CSV tables (see ``csv_table``).
    Raises ``UnknownNameError`` for an unknown fact or column target; every problem of a file becomes a refusal.
    """
    runs: list[RunRecord] = []
    refusals: list[Refusal] = []
    duplicates: list[Duplicate] = []
    asks = Asks()
    for event in iterate_import(paths, known=known, columns=columns, limits=limits):
        if isinstance(event, RunRecord):
            runs.append(event)
            asks.add(event)
        elif isinstance(event, Refusal):
            refusals.append(event)
        else:
            duplicates.append(event)
    return ImportReport(
        imported=tuple(runs),
        refused=tuple(refusal for refusal in refusals if not refusal.ignored),
        ignored=tuple(refusal for refusal in refusals if refusal.ignored),
        duplicates=tuple(duplicates),
        asks=asks.listed,
    )


def iterate_import(
    paths: Iterable[Path | str],
    *,
    known: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
    limits: Limits | None = None,
) -> Iterator[Event]:
    """``import_paths`` one event at a time, for files with more runs than memory should hold."""
    work = _Import(check_known(known or {}), columns, limits or Limits())
    for path in paths:
        yield from _path(Path(path), work)


class Asks:
    """What must be asked for, gathered run by run."""

    def __init__(self) -> None:
        self._lacking: dict[str, tuple[int, str]] = {}

    def add(self, run: RunRecord) -> None:
        """Count what a run lacks."""
        for name in run.missing:
            count, example = self._lacking.get(name, (0, run.source.file))
            self._lacking[name] = (count + 1, example)

    @property
    def listed(self) -> tuple[Ask, ...]:
        """The most wanted first."""
        ordered = sorted(self._lacking.items(), key=lambda item: -item[1][0])
        return tuple(Ask(name=name, option=option_of(name), runs=count, example_file=example) for name, (count, example) in ordered)


def _path(path: Path, work: _Import) -> Iterator[Event]:
    if not path.is_dir():
        yield from _file(path, work)
        return
    files = 0
    unread: list[OSError] = []
    for folder, folders, names in os.walk(path, onerror=unread.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        beside = set(names)
        for name in sorted(names):
            files += 1
            if files > work.limits.files:
                yield Refusal(file=_shown(path), reason=f"the folder holds more than {work.limits.files} files; the rest is not read")
                return
            file = Path(folder, name)
            reason = set_aside(file, beside)
            yield from [Refusal(file=_shown(file), reason=reason, ignored=True)] if reason else _file(file, work)
    for error in unread:
        yield Refusal(file=_shown(Path(error.filename or path)), reason=_reason(error))


def _file(path: Path, work: _Import) -> Iterator[Event]:
    """One file or archive; whatever is wrong with it becomes a refusal."""
    try:
        check_regular(path, work.limits)
        members = zip_members(path, work.limits) if path.suffix == ".zip" else [None]
        for member in members:
            try:
                yield from _bounded(_content(path, member, work), _shown(path))
            except (GoodputError, OSError, EOFError, *_FOREIGN) as error:
                yield _refusal(error, path, Origin(_shown(path, member), ""), 0)
    except GoodputError as error:
        yield _refusal(error, path, Origin(_shown(path), ""), 0)


def _bounded(events: Iterator[Event], file: str) -> Iterator[Event]:
    refused = 0
    for event in events:
        yield event
        refused += isinstance(event, Refusal)
        if refused >= MAX_REFUSALS:
            yield Refusal(file=file, reason=f"more than {MAX_REFUSALS} entries were refused; the rest of the file is not read")
            return


def _shown(path: Path, member: str | None = None) -> str:
    """The name of a file as text that can be stored, whatever bytes it is made of."""
    name = os.fsencode(path).decode("utf-8", "replace")
    return name if member is None else f"{name}!{member}"


def _content(path: Path, member: str | None, work: _Import) -> Iterator[Event]:
    with open_bytes(path, work.limits, member) as stream:
        head = stream.read(CHUNK)
    layout = layout_of(head, work.columns)
    if layout is Layout.BINARY:
        wide = head.startswith((b"\xff\xfe", b"\xfe\xff"))
        raise FileFormatError(
            "is UTF-16 text" if wide else "holds binary data: no known result format", way_out="save it as UTF-8" if wide else ""
        )
    before = path.stat()
    if layout in {Layout.DOCUMENT, Layout.YAML, Layout.TABLE, Layout.METRICS} and before.st_size > work.limits.document_bytes:
        size = format_bytes(before.st_size)
        raise FileFormatError("the file is too large for this format", value=size, way_out="save results without detail")
    origin = Origin(_shown(path, member), file_digest(path), folder=path.parent if member is None else None)
    with open_bytes(path, work.limits, member) as stream:
        if head.startswith(b"\xef\xbb\xbf"):
            stream.read(3)
        if layout in {Layout.DOCUMENT, Layout.YAML}:
            read = json_values if layout is Layout.DOCUMENT else yaml_values
            yield from _document(read(stream, work.limits), path, origin, work)
        elif layout is Layout.LINES:
            yield from _json_lines(stream, path, origin, work)
        elif layout is Layout.TABLE and operator_profile.matches(head):
            for draft in operator_profile.drafts(origin.folder, work.known):
                yield from _draft(draft, path, origin, work, 0)
        elif layout is Layout.TABLE:
            yield from _table(stream, origin, work)
        else:
            yield from _log(stream, origin, work, metrics=layout is Layout.METRICS)
    after = path.stat()
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        yield Refusal(
            file=origin.file, reason="the file changed while it was read: what came later is not in; import it when it is finished"
        )


def _document(values: Iterator[tuple[int | None, Any]], path: Path, origin: Origin, work: _Import) -> Iterator[Event]:
    try:
        for index, value in values:
            where = "" if index is None else f"[{index}]"
            yield from _value(value, path, Origin(origin.file, origin.sha256, None, where, origin.folder), work, index or 0)
    except BrokenJsonError as error:
        yield Refusal(file=origin.file, line=syntax_line(path, error.line), reason=str(error).removeprefix(f"{origin.file}: "))


def _json_lines(stream: Any, path: Path, origin: Origin, work: _Import) -> Iterator[Event]:
    requests = _RequestLines()
    number = 0
    while True:
        number += 1
        line = OneLine(stream)
        at = Origin(origin.file, origin.sha256, number, "", origin.folder)
        try:
            for _, value in json_values(line, work.limits):
                if not requests.take(value):
                    yield from _value(value, path, at, work, 0)
        except UnreadableError:
            raise
        except (GoodputError, *_FOREIGN) as error:
            if not line.empty:
                yield _refusal(error, path, at, 0)
        line.drain()
        if line.at_end:
            break
    for draft in requests.drafts(origin.folder):
        yield from _draft(draft, path, origin, work, 0)


class _RequestLines:
    """Lines that each hold one request of the same run."""

    def __init__(self) -> None:
        self._aiperf: aiperf.RequestLines | None = None
        self._stamped: request_list.StampedLines | None = None

    def take(self, value: Any) -> bool:
        """Add the line to its run; False when it is something else."""
        if not isinstance(value, Mapping):
            return False
        if aiperf.matches_request(value):
            self._aiperf = self._aiperf or aiperf.RequestLines()
            self._aiperf.add(value)
        elif request_list.matches_line(value):
            self._stamped = self._stamped or request_list.StampedLines()
            self._stamped.add(value)
        else:
            return False
        return True

    def drafts(self, folder: Path | None) -> Iterator[Draft]:
        if self._aiperf is not None:
            yield self._aiperf.draft()
        if self._stamped is not None:
            yield self._stamped.draft(folder)


def _value(value: Any, path: Path, origin: Origin, work: _Import, occurrence: int) -> Iterator[Event]:
    """The runs of one JSON value."""
    known = format_of(value)
    inner = [(origin.where, value)] if known else [(f"{origin.where}{place}", found) for place, found in wrapped(value)]
    around = {} if known else value
    if not inner:
        yield Refusal(file=origin.file, line=origin.line or 1, where=origin.where, reason=_unknown(value))
    for number, (where, found) in enumerate(inner):
        at = Origin(origin.file, origin.sha256, origin.line, where, origin.folder, around if inner else {})
        chosen = format_of(found)
        try:
            for draft in chosen.drafts(found, at) if chosen else ():
                set_known_facts(draft, at.around)
                yield from _draft(draft, path, at, work, occurrence + number)
        except (GoodputError, *_FOREIGN) as error:
            yield _refusal(error, path, at, occurrence + number, chosen.name if chosen else "")


def _unknown(value: Any) -> str:
    if isinstance(value, Mapping) and value.get("benchmarks") == []:
        return "the report holds no benchmark"
    keys = ", ".join(list(map(str, value))[:8]) if isinstance(value, Mapping) else type(value).__name__
    return f"no known result format (keys: {keys[:160]})" if keys else "no known result format (an empty object)"


def _draft(draft: Draft, path: Path, origin: Origin, work: _Import, occurrence: int) -> Iterator[Event]:
    try:
        yield work.record(draft, origin)
    except (GoodputError, *_FOREIGN) as error:
        at = Origin(origin.file, origin.sha256, draft.line or origin.line, draft.where or origin.where, origin.folder)
        yield _refusal(error, path, at, occurrence, draft.format)


def _table(stream: Any, origin: Origin, work: _Import) -> Iterator[Event]:
    """Rows one by one; where the first of them show that a column's unit is wrong, none: the others only hide it better."""
    outcomes = _outcomes(stream, origin, work)
    head = list(islice(outcomes, _FIRST_ROWS))
    wrong = [(at, error) for at, error in head if isinstance(error, UnitError)]
    if len(wrong) >= max(_ROWS_OF_A_COLUMN, len(head) / 10):
        at, error = wrong[0]
        reason = f"{len(wrong)} of the first {len(head)} rows, so no row is taken: {error}; --column names a column's unit"
        yield Refusal(file=at.file, line=at.line, reason=reason)
        return
    for at, one in chain(head, outcomes):
        yield _refusal(one, Path(at.file), at, 0, csv_table.NAME) if isinstance(one, Exception) else one


def _outcomes(stream: Any, origin: Origin, work: _Import) -> Iterator[tuple[Origin, Event | Exception]]:
    """What each row gives; damage of the table itself ends it."""
    try:
        for number, row in csv_table.rows(text_lines(stream, work.limits), work.columns):
            at = Origin(origin.file, origin.sha256, number)
            try:
                yield at, row if isinstance(row, Exception) else work.record(row, at)
            except (GoodputError, *_FOREIGN) as error:
                yield at, error
    except GoodputError as error:
        yield origin, error


def _log(stream: Any, origin: Origin, work: _Import, *, metrics: bool) -> Iterator[Event]:
    readers: list[Any] = [PrometheusDump()] if metrics else [reader() for reader in _LOGS]
    for number, line in text_lines(stream, work.limits):
        for reader in readers:
            try:
                reader.feed(number, line)
            except GoodputError as error:
                yield Refusal(file=origin.file, line=number, reason=_reason(error))
                return
    found = [draft for reader in readers for draft in reader.drafts()]
    if not found:
        yield Refusal(file=origin.file, line=1, reason="no known result format (neither JSON nor a table nor a log with known lines)")
    for draft in found:
        yield from _draft(draft, Path(origin.file), origin, work, 0)


def _reason(error: Exception, name: str = "") -> str:
    if isinstance(error, GoodputError):
        return str(error)
    if isinstance(error, ValueError) and hasattr(error, "errors"):
        return str(first_complaint(error))
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return f"not understood{' as ' + name if name else ''}: {type(error).__name__}: {' '.join(str(error).split())[:160]}"


def _refusal(error: Exception, path: Path, origin: Origin, occurrence: int, name: str = "") -> Refusal:
    line = origin.line
    if isinstance(error, BrokenJsonError):
        line = line or syntax_line(path, error.line)
    elif line is None and isinstance(error, MeasurementError) and error.path:
        parts = [part for part in re.split(r"[.\[\]]+", error.path) if part]
        line = key_line(path, parts[-1], occurrence) or key_line(path, parts[0], occurrence)
    return Refusal(file=origin.file, line=line, where=origin.where, reason=_reason(error, name).removeprefix(f"{origin.file}: "))
