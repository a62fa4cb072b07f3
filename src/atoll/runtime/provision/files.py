"""Files of a kit: complete or absent, and private from their first byte if they must be."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from atoll.core.errors import ConfigError

__all__ = ["make_folder", "write"]


def write(path: Path, content: bytes, *, private: bool = False) -> None:
    """Replace a file atomically.

    Args:
        path: the file.
        content: its new content.
        private: only the owner may read it, even while it is written.

    Raises:
        ConfigError: it cannot be written; the old file is unchanged.
    """
    aside = path.with_name(f".{path.name}.tmp")
    try:
        aside.unlink(missing_ok=True)
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise ConfigError(
            f"cannot be written: {error.strerror or error}",
            where=str(path),
            remedy="free space or choose another --out",
        ) from error


def make_folder(path: Path, option: str = "--out") -> Path:
    """Make a folder that only its owner may enter, if it does not exist.

    Args:
        path: the folder.
        option: the command-line option that sets it.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        if not path.is_dir():
            path.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise ConfigError(
            f"the folder cannot be made: {error.strerror or error}", where=str(path), remedy=f"choose another {option}"
        ) from error
    return path
