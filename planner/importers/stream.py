"""Bounded reading of foreign files: size, decompression ratio, nesting, number of values; one value at a time.

Memory stays far below the file's size: arrays of numbers become 8-byte doubles, a long array inside an array is reduced
to its count, sum and extremes while it is read, texts of prompts and answers are never kept.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import stat
import zipfile
import zlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import ijson

from models.errors import FileFormatError
from models.units import GIB, KIB, MIB, format_bytes

CHUNK = 64 * KIB
KEPT_INNER = 8  # an array inside an array of at most this many numbers is kept as it is
_INFINITY, _NAN = 1.7976931348623157e308, 1.6976931348623157e308  # stand-ins that a strict parser accepts
_NON_FINITE = re.compile(rb"(?<=[\[,:\s])(-?Infinity|NaN)(?=[\s,\]}]|$)")
_STAND_INS = {b"Infinity": repr(_INFINITY).encode(), b"-Infinity": repr(-_INFINITY).encode(), b"NaN": repr(_NAN).encode()}
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_DROPPED = frozenset({"generated_texts", "generated_text", "output_text", "prompt", "prompts", "request_args", "responses", "pdf",
                      "output_ids", "input_ids", "messages", "body", "responses_text", "logprobs"})  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """What one file may cost."""

    document_bytes: int = 2 * GIB  # one JSON value, a table
    line_file_bytes: int = 64 * GIB  # logs and one value a line: read line by line
    inflation: int = 200  # decompressed over compressed
    inflated_bytes: int = 2 * GIB
    depth: int = 64
    values: int = 1_500_000  # of one top-level value, numbers in arrays not counted
    numbers: int = 16_000_000  # in arrays of one top-level value
    text_line_bytes: int = 64 * KIB
    files: int = 100_000


class Spread:
    """A long inner array of numbers, reduced."""

    __slots__ = ("count", "largest", "smallest", "total")

    def __init__(self, values: array[float]) -> None:
        self.count, self.total = len(values), sum(values)
        self.smallest, self.largest = (min(values), max(values)) if values else (0.0, 0.0)


class Readable(Protocol):
    """What the JSON reader needs."""

    def read(self, size: int = -1, /) -> bytes: ...


@contextmanager
def open_bytes(path: Path, limits: Limits, member: str | None = None) -> Iterator[BinaryIO]:
    """The (decompressed) bytes of a file or of one member of a zip archive."""
    if member is not None:
        with zipfile.ZipFile(path) as archive, archive.open(member) as inner:
            yield inner  # type: ignore[misc]  # a zip member reads like any binary file
    elif path.suffix == ".gz":
        with path.open("rb") as raw, gzip.GzipFile(fileobj=raw) as inflated:
            yield _Inflated(inflated, raw, path, limits)  # type: ignore[misc]  # read and readline are all that is used
    else:
        with path.open("rb") as plain:
            yield plain


class UnreadableError(FileFormatError):
    """The bytes of the file cannot be had: nothing more can be read from it."""


class _Inflated:
    """Reads a gzip stream and refuses one that grows beyond measure."""

    def __init__(self, inflated: gzip.GzipFile, raw: BinaryIO, path: Path, limits: Limits) -> None:
        self._inflated, self._raw, self._path, self._limits, self._out = inflated, raw, path, limits, 0

    def _count(self, data: bytes) -> bytes:
        self._out += len(data)
        if self._out > self._limits.inflated_bytes:
            raise UnreadableError("grows beyond the limit when decompressed", path=str(self._path), value=format_bytes(self._out))
        if self._out > 16 * MIB and self._out > self._limits.inflation * max(self._raw.tell(), 1):
            raise UnreadableError("decompresses like a zip bomb", path=str(self._path), value=f"{self._out // max(self._raw.tell(), 1)}:1")
        return data

    def read(self, size: int = -1) -> bytes:
        try:
            return self._count(self._inflated.read(size))
        except (OSError, EOFError, zlib.error) as error:
            raise UnreadableError(f"damaged gzip: {error}", path=str(self._path)) from None

    def readline(self, size: int = -1) -> bytes:
        try:
            return self._count(self._inflated.readline(size))
        except (OSError, EOFError, zlib.error) as error:
            raise UnreadableError(f"damaged gzip: {error}", path=str(self._path)) from None


def zip_members(path: Path, limits: Limits) -> list[str]:
    """Files of an archive whose declared sizes are reasonable; raises for a bomb or a damaged archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise FileFormatError(f"damaged zip archive: {error}", path=str(path)) from None
    total = sum(entry.file_size for entry in entries)
    if len(entries) > limits.files or total > limits.inflated_bytes:
        size = f"{len(entries)} files, {format_bytes(total)}"
        raise FileFormatError("archive grows beyond the limit when unpacked", path=str(path), value=size)
    for entry in entries:
        if entry.file_size > 16 * MIB and entry.file_size > limits.inflation * max(entry.compress_size, 1):
            raise FileFormatError("decompresses like a zip bomb", path=f"{path}!{entry.filename}", value=entry.file_size)
    return [entry.filename for entry in entries]


def check_regular(path: Path, limits: Limits) -> int:
    """Size of a regular file within the largest limit."""
    try:
        status = path.stat()
    except OSError as error:
        raise FileFormatError(f"cannot be read: {error.strerror}", path=str(path), way_out="check the name") from None
    if not stat.S_ISREG(status.st_mode):
        raise FileFormatError("not a regular file", path=str(path))
    if status.st_size == 0:
        raise FileFormatError("the file is empty", path=str(path))
    if status.st_size > limits.line_file_bytes:
        raise FileFormatError("the file is too large", path=str(path), value=format_bytes(status.st_size))
    return status.st_size


def file_digest(path: Path) -> str:
    """SHA-256 of the file as it lies on disk."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class FiniteReader:
    """Replaces the bare tokens ``NaN`` and ``Infinity``, which JSON forbids and Python writes, by stand-in numbers."""

    def __init__(self, stream: Readable) -> None:
        self._stream, self._carry, self._done = stream, b"", False
        self.lines = 0  # newlines handed out
        self.non_finite = False

    def read(self, size: int = -1, /) -> bytes:
        if size == 0:
            return b""
        data = b""
        while not data and not (self._done and not self._carry):
            data = self._next(size if size > 0 else CHUNK)
        self.lines += data.count(b"\n")
        if b"Infinity" in data or b"NaN" in data:
            data, replaced = _NON_FINITE.subn(lambda found: _STAND_INS[found.group(1)], data)
            self.non_finite = self.non_finite or replaced > 0
        return data

    def _next(self, size: int) -> bytes:
        chunk = self._stream.read(size)
        data, self._carry = self._carry + chunk, b""
        if not chunk:
            self._done = True
            return data
        tail = data[-64:]
        cut = max(tail.rfind(mark) for mark in (b",", b":", b"[", b" ", b"\n", b"\t"))
        if cut >= 0:
            data, self._carry = data[: len(data) - len(tail) + cut], tail[cut:]
        return data


class OneLine:
    """One line of a file as a stream, so that a line of any length is read in pieces."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.ended, self.at_end, self.empty = stream, False, False, True

    def read(self, size: int = -1, /) -> bytes:
        if self.ended:
            return b""
        data = self._stream.readline(size if size > 0 else CHUNK)
        self.at_end = not data
        self.ended = self.at_end or data.endswith(b"\n")
        self.empty = self.empty and not data.strip()
        return data

    def drain(self) -> None:
        """Skip what is left of the line."""
        while self.read(CHUNK):
            pass


def json_values(stream: Readable, limits: Limits, path: str = "") -> Iterator[tuple[int | None, Any]]:
    """Top-level values, and the objects of a top-level array one by one with their index."""
    reader = FiniteReader(stream)
    builder = Builder(limits, reader)
    try:
        for event, value in ijson.basic_parse(reader, use_float=True, multiple_values=True, buf_size=CHUNK):
            ready = builder.feed(event, value)
            if ready is not None:
                yield ready
    except (ijson.JSONError, UnicodeDecodeError, ValueError, OverflowError) as error:
        cut = isinstance(error, ijson.IncompleteJSONError) and ("premature" in str(error) or "ncomplete" in str(error))
        first = error.args[0] if error.args else ""
        said = first.decode("utf-8", "replace") if isinstance(first, bytes) else str(error)
        text = "the JSON is truncated" if cut else f"not valid JSON ({said.strip().splitlines()[0][:120] if said.strip() else 'damaged'})"
        raise BrokenJsonError(text, path=path, line=reader.lines + 1) from None


class BrokenJsonError(FileFormatError):
    """JSON that cannot be parsed; ``line`` is the line reached within the stream."""

    def __init__(self, message: str, *, path: str, line: int) -> None:
        super().__init__(message, path=path)
        self.line = line


class Builder:
    """Assembles values from parser events within the limits."""

    def __init__(self, limits: Limits, reader: FiniteReader | None = None) -> None:
        self._limits, self._reader = limits, reader
        self._stack: list[Any] = []
        self._keys: list[str] = []
        self._key = ""
        self._skip_depth = -1  # >= 0 while a dropped value passes by
        self._drop_next = False
        self._values = self._numbers = self._index = 0

    def feed(self, event: str, value: Any) -> tuple[int | None, Any] | None:
        """Take one event; a finished value that belongs to the caller is returned."""
        if self._drop_next or self._skip_depth >= 0:
            self._skip(event)
        elif event == "number":
            return self._number(value)
        elif event == "map_key":
            self._key = value
            self._drop_next = value in _DROPPED or (value == "requests" and "benchmarks" in self._keys)
        elif event in {"start_map", "start_array"}:
            self._open(event)
        else:
            return self._finished(event, value)
        return None

    def _finished(self, event: str, value: Any) -> tuple[int | None, Any] | None:
        if event in {"end_map", "end_array"}:
            return self._close()
        return self._place(value[:4096] if event == "string" else value)

    def _skip(self, event: str) -> None:
        if self._drop_next:
            self._drop_next, self._skip_depth = False, 0
        self._skip_depth += event in {"start_map", "start_array"}
        self._skip_depth -= event in {"end_map", "end_array"}
        if self._skip_depth > self._limits.depth:
            raise FileFormatError("nested too deeply", value=f"more than {self._limits.depth} levels")
        if self._skip_depth == 0:
            self._skip_depth = -1

    def _number(self, value: float) -> tuple[int | None, Any] | None:
        if self._reader is not None and self._reader.non_finite and not -1e308 < value < 1e308:
            value = float("nan") if value == _NAN else float("inf") if value > 0 else float("-inf")
        holder = self._stack[-1] if self._stack else None
        if type(holder) is array:
            holder.append(value)
            self._numbers += 1
            if self._numbers > self._limits.numbers:
                raise FileFormatError("holds too many numbers", value=self._numbers, way_out="save the result without per-request detail")
            return None
        if type(holder) is list and not holder and len(self._stack) > 1:
            self._stack[-1] = array("d", [value])
            return None
        return self._place(value)

    def _open(self, event: str) -> None:
        if len(self._stack) >= self._limits.depth:
            raise FileFormatError("nested too deeply", value=f"more than {self._limits.depth} levels")
        self._count()
        if self._stack and type(self._stack[-1]) is array:  # numbers first, then something else: a plain list after all
            self._stack[-1] = list(self._stack[-1])
        self._keys.append(self._key)
        self._key = ""
        self._stack.append({} if event == "start_map" else [])

    def _close(self) -> tuple[int | None, Any] | None:
        value = self._stack.pop()
        self._key = self._keys.pop()
        if type(value) is array and len(value) > KEPT_INNER and self._stack and type(self._stack[-1]) is list:
            value = Spread(value)
        return self._place(value)

    def _place(self, value: Any) -> tuple[int | None, Any] | None:
        if not self._stack:
            self._values = self._numbers = 0
            index, self._index = (None if not self._index else -1), 0
            return None if index == -1 and value == [] else (None, value)
        self._count()
        holder = self._stack[-1]
        if type(holder) is dict:
            holder[self._key] = value
        elif type(holder) is array:
            self._stack[-1] = [*holder, value]
        elif len(self._stack) == 1 and type(value) is dict:
            self._values = self._numbers = 0
            self._index += 1
            return self._index - 1, value
        else:
            holder.append(value)
        return None

    def _count(self) -> None:
        self._values += 1
        if self._values > self._limits.values:
            raise FileFormatError("holds too many values", value=self._values, way_out="save the result without per-request detail")


def text_lines(stream: BinaryIO, limits: Limits) -> Iterator[tuple[int, str]]:
    """Lines as text without ANSI colours; what exceeds the longest useful line is cut off."""
    number = 0
    while data := stream.readline(limits.text_line_bytes):
        number += 1
        rest = data
        while rest and not rest.endswith(b"\n"):
            rest = stream.readline(limits.text_line_bytes)
            if b"\x00" in rest:  # a hole of gigabytes, too: nothing useful comes after it
                raise UnreadableError("holds binary data from here on", path=f"line {number}")
        text = data.decode("utf-8", "replace").rstrip("\r\n")
        yield number, _ANSI.sub("", text) if "\x1b" in text else text


def syntax_line(path: Path, reached: int) -> int:
    """Line of the first syntax error of a small file (exact), or the line that the parser had reached."""
    try:
        if path.suffix in {".gz", ".zip"} or path.stat().st_size > 16 * MIB:
            return reached
        json.loads(path.read_bytes())
    except json.JSONDecodeError as error:
        return error.lineno
    except (OSError, ValueError, RecursionError):
        return reached
    return reached


def key_line(path: Path, key: str, occurrence: int) -> int | None:
    """Line on which ``"key"`` stands for the n-th time (from 0); None when it does not."""
    needle, seen = f'"{key}"'.encode(), 0
    try:
        if path.suffix in {".gz", ".zip"} or path.stat().st_size > 256 * MIB:
            return None
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MIB), b""), start=1):
                seen += line.count(needle)
                if seen > occurrence:
                    return number
    except OSError:
        return None
    return None
