"""What commands write: tables for people, JSON for programs, charts to files, progress only where someone watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import RenderableType

    from api.views.parts import Verbatim


def show(what: Sequence[RenderableType | Verbatim]) -> None:
    """Print for people: colour on a terminal, plain text without trailing blanks through a pipe."""
    from rich.console import Console

    from api.views.parts import Verbatim

    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")  # a terminal without Unicode shows ? instead of failing
    console = Console(highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        for one in what:
            if isinstance(one, Verbatim):
                console.out(one.text, highlight=False)
            else:
                console.print(one)
    text = captured.get()
    sys.stdout.write(text if console.is_terminal else "\n".join(line.rstrip() for line in text.split("\n")))


def write_json(what: BaseModel | dict[str, Any] | list[Any]) -> None:
    """Print JSON as UTF-8 and nothing else."""
    import json

    text = json.dumps(what, indent=2, ensure_ascii=False) if isinstance(what, dict | list) else what.model_dump_json(indent=2)
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None:
        sys.stdout.write(text + "\n")
        return
    stream.write(text.encode() + b"\n")


@contextmanager
def progress(words: str | None) -> Iterator[None]:
    """A spinner on standard error while something long runs; silent where nobody watches."""
    if words is None or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        shown.add_task(words, total=None)
        yield
