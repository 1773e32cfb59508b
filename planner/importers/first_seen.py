"""Which contents an import has seen and where first, in some 200 bytes a run: of a million runs no text is kept for each."""

from __future__ import annotations

_LINE_BITS = 40


class FirstSeen:
    """Content hashes with the place (file, line, where) that came first; files and places inside them are kept once."""

    def __init__(self) -> None:
        self._at: dict[bytes, int] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._places: list[tuple[str, str]] = []

    def add(self, digest: str, file: str, line: int | None, where: str) -> None:
        """Remember where a new content stands."""
        place = file, where
        if place not in self._numbers:
            self._numbers[place] = len(self._places)
            self._places.append(place)
        self._at[_short(digest)] = self._numbers[place] << _LINE_BITS | (line or 0)

    def place(self, digest: str) -> str | None:
        """``file:line where`` of the first; None where the content is new."""
        found = self._at.get(_short(digest))
        if found is None:
            return None
        file, where = self._places[found >> _LINE_BITS]
        line = found & (1 << _LINE_BITS) - 1
        return f"{file}{f':{line}' if line else ''}{f' {where}' if where else ''}"


def _short(digest: str) -> bytes:
    return bytes.fromhex(digest[:32])
