"""Pieces of every view: figures in the unit that reads best, bars, wrapped lines with a hanging indent, paste-ready commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from models.units import format_bytes, format_seconds

NOTHING = "–"
COMMAND_WIDTH = 76
GOOD, BAD, FAINT, HEAD = "green", "red", "bright_black", "bold"


@dataclass(frozen=True)
class Verbatim:
    """Text to be pasted: printed as it is, never wrapped or cropped."""

    text: str


def seconds(value: float | None) -> str:
    """A duration, or a dash."""
    return NOTHING if value is None else format_seconds(value)


def size(value: float | None) -> str:
    """Bytes in binary units, or a dash."""
    return NOTHING if value is None else format_bytes(value)


def figure(value: float | None) -> str:
    """Three significant digits, or a dash."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percent(value: float) -> str:
    """A probability without false certainty: only 0 and 1 themselves print as 0 % and 100 %."""
    if 0 < value < 0.01:
        return "<1 %"
    if 0.99 < value < 1:
        return ">99 %"
    return f"{value:.0%}".replace("%", " %")


def bar(used: float, limit: float, width: int = 10) -> Text:
    """How much of a limit is used; what goes beyond it is red and ends in an arrow."""
    share = used / limit if limit > 0 else float("inf")
    if share > 1:
        return Text("█" * (width - 1) + "▶", style=BAD)
    whole = round(share * width * 8)
    full, part = divmod(whole, 8)
    drawn = "█" * full + (" ▏▎▍▌▋▊▉"[part] if part else "")
    return Text.assemble((drawn, "cyan"), ("·" * (width - len(drawn)), FAINT))


def listing(rows: Iterable[tuple[str | Text, str | Text]], style: str = "") -> Table:
    """Two columns: a short label and text that wraps beside it."""
    table = Table.grid(padding=(0, 2), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", style=style)
    for label, text in rows:
        table.add_row(label, text)
    return table


def scope_words(model: str | None, engine: str | None, device: str | None, ranks: int | None) -> str:
    """What a run or calibration is for, in a few words."""
    known = [model.rsplit("/", maxsplit=1)[-1] if model else None, engine, device, f"TP {ranks}" if ranks and ranks > 1 else None]
    return " · ".join(word for word in known if word) or "any model and device"


def section(title: str, body: Any) -> list[Any]:
    """A quiet heading and its body, indented, with a line of air before."""
    inside = body if isinstance(body, Verbatim) else Padding(body, (0, 0, 0, 2))
    return [Text(), Text(title, style=HEAD), inside]


def settings_words(settings: Mapping[str, Any]) -> list[str]:
    """The settings that shape a configuration, in a fixed order; limits and offload that are off are left out."""
    s = settings
    words = [f"{s['max_num_seqs']} sequences", f"{s['weight_format']} weights", f"{s['kv_format']} KV"]
    words.append("shared prefix" if s["prefix_sharing"] else "no sharing")
    words.append(f"{s['draft']} ×{s['draft_tokens']}" if s["draft"] != "none" else "no draft")
    if s["offload_layers"]:
        words.append(f"{s['offload_layers']} layers offloaded, {s['prefetch_buffers']} prefetch")
    words.append(f"TP {s['tensor_parallel']}")
    words.append(f"budget {s['max_num_batched_tokens']}")
    words += [f"{short} {s[name]}" for name, short in (("prefill_chunk", "chunk"), ("admission_limit", "admit")) if s[name] is not None]
    words.append("CUDA graphs" if s["cuda_graphs"] else "no CUDA graphs")
    return words


def settings_rows(settings: Mapping[str, Mapping[str, Any]]) -> list[tuple[str | Text, str | Text]]:
    """Settings by label: what all have in common once, then what sets each apart."""
    words = {label: settings_words(one) for label, one in settings.items()}
    common = [w for w in next(iter(words.values()), []) if all(w in other for other in words.values())]
    if len(words) == 1:
        return [(label, " · ".join(found)) for label, found in words.items()]
    rows: list[tuple[str | Text, str | Text]] = [
        (label, " · ".join(w for w in found if w not in common) or "the same") for label, found in words.items()
    ]
    return [*rows, (Text("all", FAINT), Text(" · ".join(common), FAINT))] if common else rows


def command_text(command: str, width: int = COMMAND_WIDTH) -> str:
    """A shell command broken at its flags with backslashes, so that it fits and can still be pasted."""
    words = [word if _is_assignment(word) else shlex.quote(word) for word in shlex.split(command)]
    pieces: list[str] = []
    for word in words:
        if pieces and not word.startswith("-") and pieces[-1].startswith("-") and " " not in pieces[-1]:
            pieces[-1] += f" {word}"
        else:
            pieces.append(word)
    lines = ["  "]
    for piece in pieces:
        joined = f"{lines[-1]} {piece}" if lines[-1].strip() else f"  {piece}"
        if lines[-1].strip() and len(joined) + 2 > width:
            lines.append(f"      {piece}")
        else:
            lines[-1] = joined
    return " \\\n".join(lines)


def _is_assignment(word: str) -> bool:
    name, sign, value = word.partition("=")
    return bool(sign) and name.isidentifier() and shlex.quote(value) == value
