"""The commands, one a file of the command's name, which registers it when it is loaded."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence

from atoll.cli.app import app

__all__ = ["known", "register"]


def known() -> list[str]:
    """The names of all commands: a command is one because its file is there."""
    return sorted(found.name for found in pkgutil.iter_modules(__path__))


def register(words: Sequence[str]) -> None:
    """Load the command that is typed, so that nobody waits for the others; all of them where none is, as for ``--help``; none for the version.

    Args:
        words: of the command line, after the program's name.
    """
    for name in _needed(words[:1]):
        importlib.import_module(f".{name}", __name__)
    app.registered_commands.sort(key=lambda command: str(command.name))


def _needed(typed: Sequence[str]) -> Sequence[str]:
    if list(typed) == ["--version"]:
        return ()
    names = known()
    return typed if set(typed) & set(names) else names
