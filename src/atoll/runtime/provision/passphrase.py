"""Where a passphrase comes from: a file, the environment, or a person."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from atoll.core.errors import ConfigError
from atoll.runtime.secrecy import forget_variable

__all__ = ["CA_VARIABLE", "FILE_VARIABLE", "SHORTEST", "VARIABLE", "find_passphrase", "new_passphrase"]

VARIABLE = "ATOLL_PASSPHRASE"
"""Environment variable that holds the passphrase of a key."""
FILE_VARIABLE = f"{VARIABLE}_FILE"
"""Environment variable that names a file with the passphrase in its first line."""
CA_VARIABLE = "ATOLL_CA_PASSPHRASE"
"""The same for the authority's key; with ``_FILE`` behind it, the file's name."""
SHORTEST = 12
"""Characters of the shortest passphrase that a new key is encrypted with."""


def find_passphrase(
    file: str | Path | None = None,
    ask: Callable[[], str] | None = None,
    variable: str = VARIABLE,
    *,
    forget: bool = False,
) -> bytes | None:
    """Return the passphrase from the first of these that exists: the file, the two environment variables, the person.

    Args:
        file: its first line is the passphrase.
        ask: prompts for it.
        variable: the environment variable; with ``_FILE`` behind it, the one that names a file.
        forget: remove the passphrase from the environment of this process.

    Raises:
        ConfigError: the file cannot be read, or the passphrase is empty.
    """
    if (said := os.environ.get(variable)) is not None and forget:
        forget_variable(variable)
    if file is None and said is not None:
        return _check_passphrase(said, f"environment variable {variable}")
    file = file if file is not None else os.environ.get(f"{variable}_FILE")
    if file is not None:
        return _check_passphrase(_first_line(Path(file)), str(file))
    return None if ask is None else _check_passphrase(ask(), "prompt")


def new_passphrase(
    file: str | Path | None = None, ask: Callable[[], str] | None = None, variable: str = VARIABLE
) -> bytes:
    """Return the passphrase for new keys.

    Raises:
        ConfigError: there is none, or it is shorter than ``SHORTEST`` characters.
    """
    found = find_passphrase(file, ask, variable)
    if found is None:
        raise ConfigError(
            "keys are to be encrypted, but there is no passphrase",
            where=variable,
            remedy=f"set {variable}, or {variable}_FILE to the name of a file that holds it",
        )
    if len(found.decode()) < SHORTEST:
        raise ConfigError(
            f"the passphrase has {len(found.decode())} characters",
            where=variable if file is None else str(file),
            remedy=f"use at least {SHORTEST}: a person with the kit can try any number",
        )
    return found


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").partition("\n")[0].removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"the passphrase cannot be read: {said}",
            where=str(path),
            remedy="name a text file with it in the first line",
        ) from error


def _check_passphrase(text: str, where: str) -> bytes:
    if not text:
        raise ConfigError("the passphrase is empty", where=where, remedy="write the passphrase there")
    return text.encode()
