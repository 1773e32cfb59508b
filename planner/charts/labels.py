"""Labels of points that cover neither each other nor a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Label:
    """A label for ``row`` at ``x`` pixels from the left; ``mark`` holds its text, offsets and alignment."""

    row: int
    x: float
    mark: dict[str, Any]


def placed(points: Sequence[tuple[str, float, float]]) -> list[Label]:
    """Labels of (name, pixels from the left, pixels from the bottom): points that nearly coincide share one, beside, above or below."""
    groups: list[list[int]] = []
    for i, (_, x, y) in enumerate(points):
        near = (g for g in groups if abs(points[g[0]][1] - x) < 18 and abs(points[g[0]][2] - y) < 14)
        found = next(near, None)
        if found is None:
            groups.append([i])
        else:
            found.append(i)
    taken = [(x - 7, x + 7, y) for _, x, y in points]
    labels = []
    for group in groups:
        text = _joined([points[i][0] for i in group])
        x, y, wide = max(points[i][1] for i in group), points[group[0]][2], 8 * len(text)
        tries = (("left", 12, 0, x + 10), ("center", 0, -16, x - wide / 2), ("center", 0, 17, x - wide / 2))
        align, dx, dy, left = next((t for t in tries if not _covered(t[3], t[3] + wide, y - t[2], taken)), tries[1])
        taken.append((left, left + wide, y - dy))
        labels.append(Label(group[0], x, {"label": text, "dx": dx, "dy": dy, "align": align}))
    return labels


def _covered(left: float, right: float, height: float, taken: list[tuple[float, float, float]]) -> bool:
    return any(low < right and left < high and abs(at - height) < 13 for low, high, at in taken)


def _joined(ids: list[str]) -> str:
    return ", ".join(ids) if len(ids) <= 4 else f"{', '.join(ids[:3])}, … {ids[-1]}"
