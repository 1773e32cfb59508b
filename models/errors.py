"""One tree of exceptions for the whole project.

Every error says what was wrong, names the offending value and where it stands, and shows the way out.
The HTTP mapping lives in ``api/errors.py``; the CLI prints ``str(error)`` on one line and exits with ``exit_code``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2


class GoodputError(Exception):
    """Base of every error raised on purpose.

    ``message`` says what is wrong, ``value`` is the offending value, ``path`` where it stands (``workload.long.slo.e2e``,
    a file name, a flag) and ``way_out`` what to do about it.
    """

    exit_code = EXIT_FAILURE

    def __init__(self, message: str, *, path: str = "", value: object = None, way_out: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.value = value
        self.way_out = way_out

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        got = f" (got {_short(self.value)})" if self.value is not None else ""
        out = f"; {self.way_out}" if self.way_out else ""
        return " ".join(f"{where}{self.message}{got}{out}".split())


class InputError(GoodputError):
    """Something that the user wrote cannot be used; nothing was computed or written."""

    exit_code = EXIT_BAD_INPUT


class UnitError(InputError):
    """A quantity without a unit, or with one that does not fit."""


class UnknownNameError(InputError):
    """A name that nobody knows (model, device, engine, field, format); suggests the nearest."""

    @classmethod
    def suggest(cls, kind: str, name: str, known: Iterable[str], *, path: str = "") -> UnknownNameError:
        """Build the error with the nearest of ``known`` as the way out."""
        names = sorted(known)
        lowered = {n.lower(): n for n in names}
        near = [lowered[n] for n in difflib.get_close_matches(name.lower(), list(lowered), n=3, cutoff=0.5)]
        way_out = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(names[:12])}{', …' if len(names) > 12 else ''}"
        return cls(f"unknown {kind}", path=path, value=name, way_out=way_out)


class NotStoredError(UnknownNameError):
    """A run, calibration or plan that is not in the store."""


class FileFormatError(InputError):
    """A file is missing, truncated, oversized or not what it claims to be."""


class ContradictionError(InputError):
    """Two parts of one description cannot both hold (heads against TP, window against context, …)."""


class NotCoveredError(InputError):
    """The description is valid, but no model here covers it; never answered by a guess."""


class CalibrationError(GoodputError):
    """A calibration is unusable: it beats the physical floor, is singular, or does not belong to this card."""


class SolverError(GoodputError):
    """A solver failed or two solvers disagree; the message names both answers. Never reported as a plan."""


class OutOfTimeError(SolverError):
    """A search used up its time before it knew anything that it could answer with."""


class StorageError(GoodputError):
    """The database could not be read or written."""


def _short(value: object, limit: int = 80) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
