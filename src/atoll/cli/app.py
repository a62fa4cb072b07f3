"""The application: its commands, and the exit codes of errors."""

from __future__ import annotations

import copy
import functools
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from atoll.core.errors import AtollError
from atoll.runs.stopping import INTERRUPTED, own_display

from .output import Output, name_options, only_json_on_stdout, show_error, show_usage

__all__ = ["ANALYSE", "EXTRAS", "GROUPS", "INSPECT", "INTERRUPT_CODE", "OPERATE", "SIMULATE", "app", "main", "run"]

INTERRUPT_CODE = 130
"""Exit code of a run that ended in order after Ctrl-C or SIGTERM."""

SIMULATE, ANALYSE, INSPECT, OPERATE, EXTRAS = GROUPS = ("Simulate", "Analyse", "Inspect", "Operate", "Extras")
"""The groups of commands in ``atoll --help``, in order."""

app = typer.Typer(
    name="atoll",
    help="Federated computing: learn over data that may not move.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        from atoll import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the whole traceback of an error; allowed at any position.")
    ] = False,
) -> None:
    """Federated computing: learn over data that may not move."""


def main(argv: Sequence[str] | None = None) -> None:
    """The console script: run a command and exit with its code."""
    # As with `python -m`, a model or data set of your own is found in the working folder.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    # A reader of a terminal wants what a warning says, not the line of code that gave it.
    warnings.formatwarning = lambda message, *_, **__: f"note: {message}\n"
    sys.exit(run(argv))


def run(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: arguments after the program's name; by default those of the process.

    Returns:
        0, the ``exit_code`` of an error, 130 after an interrupt, or 1 for an error that is a bug in Atoll.
    """
    from .commands import register

    given = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in given
    words = [word for word in given if word != "--debug"]
    register(words)
    with own_display(), only_json_on_stdout("--json" in words) as answer:
        return _outcome(words, Output(json="--json" in words, answer=answer), debug)


def _outcome(words: list[str], output: Output, debug: bool) -> int:
    refused, aborted = _find_error_class(typer.BadParameter, "ClickException"), _find_error_class(typer.Abort, "Abort")
    try:
        code: Any = _build(_loaded(app))(args=words, standalone_mode=False, obj=output)
    except (KeyboardInterrupt, aborted):
        code = INTERRUPT_CODE
    except refused as error:
        return show_usage(error, output)
    except Exception as error:
        if debug and not output.json:
            raise
        return show_error(_at_command(error, words), output, debug)
    if code == INTERRUPT_CODE and not output.answered:  # Ctrl-C twice, or outside a training
        output.fail({"kind": "Interrupted", "what": INTERRUPTED, "exit_code": INTERRUPT_CODE})
        output.note(f"[bold]Stopped at once.[/bold] {output.if_stopped}".rstrip())
    return int(code or 0)


def _loaded(group: typer.Typer) -> tuple[Any, ...]:
    """The functions of a group's commands, in order: what its parser is built of."""
    inner = (_loaded(one.typer_instance) for one in group.registered_groups if one.typer_instance is not None)
    return (*(command.callback for command in group.registered_commands), *inner)


@functools.lru_cache(maxsize=1)
def _build(loaded: tuple[Any, ...]) -> Any:
    """The parser of the commands that are loaded. It evaluates the annotations of each, which a program with many calls of `run` would pay for in each call."""
    del loaded
    return typer.main.get_command(app)


def _find_error_class(kind: type[Exception], name: str) -> type[Exception]:
    """The base class of that name: Typer includes the argument parser in some versions and depends on a library in others."""
    return next(base for base in kind.__mro__ if base.__name__ == name)


def _at_command(error: Exception, words: list[str]) -> Exception:
    """The same error for a reader who typed a command: its remedy names options of that command in place of Python's arguments."""
    if not isinstance(error, AtollError) or not error.remedy:
        return error
    options, arguments = words_of(words)
    said = name_options(error.remedy, options, settings=bool({"config", "job"} & arguments))
    if said == error.remedy:
        return error
    told = copy.copy(error)
    told.remedy = said
    return told


def words_of(words: Sequence[str]) -> tuple[set[str], set[str]]:
    """The options that a typed command takes, without their dashes, and the names of its arguments."""
    found: Any = _build(_loaded(app))
    for word in words:
        if not hasattr(found, "commands"):
            break
        if word in found.commands:
            found = found.commands[word]
    given = getattr(found, "params", [])
    options = {name.lstrip("-") for one in given for name in (*one.opts, *one.secondary_opts) if name.startswith("--")}
    return options, {one.name for one in given if one.param_type_name == "argument"}


def known_codes() -> dict[str, int]:
    """Exit code of each kind of error that has one of its own."""

    def below(kind: type[AtollError]) -> list[type[AtollError]]:
        return [kind, *(k for child in kind.__subclasses__() for k in below(child))]

    return {kind.__name__: kind.exit_code for kind in below(AtollError) if "exit_code" in vars(kind)}
