"""The commands: one file each, named after the command, which registers it when loaded."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence

from atoll.cli.app import GROUPS, app

__all__ = ["known", "register"]


def known() -> list[str]:
    """The names of all commands: one for each file of this package."""
    return sorted(found.name for found in pkgutil.iter_modules(__path__))


def register(words: Sequence[str]) -> None:
    """Load only the command that was typed, to start fast; load all if there is none, as for ``--help``, and none for ``--version``.

    Args:
        words: the words of the command line after the program's name.
    """
    for name in _needed(words[:1]):
        importlib.import_module(f".{name}", __name__)
    app.registered_commands.sort(key=lambda command: (GROUPS.index(str(command.rich_help_panel)), str(command.name)))


def _needed(typed: Sequence[str]) -> Sequence[str]:
    if list(typed) == ["--version"]:
        return ()
    names = known()
    return typed if set(typed) & set(names) else names
