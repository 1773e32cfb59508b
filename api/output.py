"""What commands write: tables for people, JSON for programs, charts to files, progress only where someone watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import RenderableType

    from api.views.parts import Verbatim
    from planner.answer import Answer
    from planner.resolve import CalibrationLookup

PLOT_SUFFIXES = (".png", ".svg", ".html")


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

    made = json.JSONEncoder(indent=2, ensure_ascii=False)
    pieces = made.iterencode(what) if isinstance(what, dict | list) else iter([what.model_dump_json(indent=2)])
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None:
        sys.stdout.writelines(chain(pieces, "\n"))
        return
    stream.writelines(piece.encode() for piece in chain(pieces, "\n"))


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


@contextmanager
def bar(words: str) -> Iterator[Callable[[float], None]]:
    """A bar on standard error that is told the share done; silent where nobody watches."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(words, total=1.0)
        yield lambda done: shown.update(task, completed=done)


@contextmanager
def trials(wanted: bool) -> Iterator[Callable[[int, int, float | None], None]]:
    """A bar on standard error that turns from a pulse to trials done and the best value once a search simulates."""
    if not (wanted and sys.stderr.isatty()):
        yield lambda _done, _of, _best: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("searching and proving", total=None)

        def step(done: int, of: int, best: float | None) -> None:
            words = "nothing on time yet" if best is None else f"best {best:.4g}"
            shown.update(task, completed=done, total=of, description=words)

        yield step


def check_plot(path: str) -> None:
    """Refuse a chart file that could not be written, before anything is computed."""
    file = Path(path)
    if file.suffix.lower() not in PLOT_SUFFIXES:
        raise InputError("unknown kind of chart file", path="--plot", value=path, way_out=f"end it in one of {', '.join(PLOT_SUFFIXES)}")
    if file.is_dir():
        raise FileFormatError("is a folder", path="--plot", value=path, way_out="name a file")
    if not file.absolute().parent.is_dir():
        raise FileFormatError("its folder does not exist", path="--plot", value=path, way_out=f"create {file.parent} first")


def write_plot(path: str, raw: dict[str, Any], answer: Answer, stored: CalibrationLookup | None = None) -> None:
    """Draw the charts of an answer into one file, whole or not at all."""
    from planner.charts.draw import draw

    with bar("drawing the switch map") as step:
        data = draw(raw, answer, Path(path).suffix.lower(), stored, step=step)
    _write_whole(Path(path), data)
    sys.stderr.write(f"wrote {path}\n")


def write_chart(path: str, draw: Callable[[str], bytes]) -> None:
    """Draw something for the kind of file that ``path`` names and write it whole or not at all."""
    _write_whole(Path(path), draw(Path(path).suffix.lower()))
    sys.stderr.write(f"wrote {path}\n")


def _write_whole(file: Path, data: bytes) -> None:
    import os
    import tempfile

    handle, name = tempfile.mkstemp(dir=file.absolute().parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    import os

    current = os.umask(0)
    os.umask(current)
    return current
