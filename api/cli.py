"""The command ``goodput``: one file for each group of commands in ``api/commands``, errors to exit codes here and nowhere else.

Exit codes: 0 done (an infeasible plan is an answer), 1 failure, 2 bad input or usage, 130 interrupted.
Nothing heavy is imported before a command runs; a new group is one module with ``register(app)`` and one line in ``GROUPS``.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

import typer

from api.commands import advise, calibrate, capacity, catalogue, model, plan, runs, serve, simulate, what_if
from models.errors import EXIT_BAD_INPUT, EXIT_FAILURE, GoodputError

GROUPS = (plan, what_if, simulate, runs, calibrate, advise, model, capacity, catalogue, serve)
EXIT_INTERRUPTED = 130
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer names its base only privately


def build() -> typer.Typer:
    """The application with every group registered."""
    app = typer.Typer(
        name="goodput",
        help="Describe a model, hardware and traffic; get the serving configuration that returns the most correct, on-time answers.",
        rich_markup_mode=None, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=True,
    )  # fmt: skip
    app.callback()(_root)
    for group in GROUPS:
        group.register(app)
    return app


def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True)) -> None:
    if version:
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as installed

        try:
            typer.echo(f"goodput {installed('goodput-planner')}")
        except PackageNotFoundError:
            typer.echo("goodput (not installed)")
        raise typer.Exit


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every error is one line on standard error."""
    try:
        code = build()(args=list(sys.argv[1:] if arguments is None else arguments), prog_name="goodput", standalone_mode=False)
        sys.stdout.flush()
    except GoodputError as error:
        return _failed(str(error), error.exit_code)
    except _UsageError as error:
        return _usage(error)
    except (KeyboardInterrupt, typer.Abort):
        return _failed("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has left: nothing more to say
        return 0
    except OSError as error:
        return _failed(f"{error.filename or 'system'}: {error.strerror or error}", EXIT_FAILURE)
    return code if isinstance(code, int) else 0


def _usage(error: Exception) -> int:
    message = " ".join(str(getattr(error, "format_message", lambda: error)()).split())
    context = getattr(error, "ctx", None)
    if not message:  # no arguments: the help, as asked
        typer.echo(context.get_help() if context is not None else "", err=True)
        return EXIT_BAD_INPUT
    command = context.command_path if context is not None else "goodput"
    return _failed(f"{message.rstrip('.')}; see {command} --help", EXIT_BAD_INPUT)


def _failed(message: str, code: int) -> int:
    plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in message)
    typer.echo(f"error: {plain}", err=True)
    return code


def main() -> None:
    """Entry point of the installed command."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # else pydantic reads the metadata of every installed package
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no linear algebra here is worth threads that spin
    gc.set_threshold(50_000, 20, 20)  # one short run that mostly builds classes: collecting often costs a tenth of it
    raise SystemExit(run())
