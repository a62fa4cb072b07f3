"""Finding the data folder, and files in it."""

from __future__ import annotations

import os
from pathlib import Path

from atoll.core.errors import DataError

from ..dataset import Dataset

VARIABLE = "ATOLL_DATA"
Folder = str | Path | None


def locate(folder: Folder, *parts: str) -> Path:
    """Return the path of a file below the data folder.

    Args:
        folder: the data folder; ``None`` reads the environment variable ``ATOLL_DATA``.
        parts: the file's path in the folder; a file with ``.gz`` appended also matches.

    Raises:
        DataError: there is no folder or no such file; the remedy says what to set, or which file to add.
    """
    relative = Path(*parts)
    if folder is None:
        folder = os.environ.get(VARIABLE) or None
    if folder is None:
        raise DataError(
            f"the environment variable {VARIABLE} is not set",
            where=f"data set {parts[0]!r}",
            remedy=f"set {VARIABLE} to the folder with {relative.as_posix()}, or pass folder=",
        )
    if not Path(folder).is_dir():
        raise DataError(
            f"{VARIABLE} names {str(folder)!r}, which is not a folder",
            where=f"data set {parts[0]!r}",
            remedy=f"set {VARIABLE} to the folder with {relative.as_posix()}",
        )
    path = Path(folder) / relative
    packed = path.with_name(path.name + ".gz")
    if not path.is_file() and packed.is_file():
        return packed
    if not path.is_file():
        raise DataError(
            f"there is no {relative.as_posix()} in the folder of {VARIABLE}",
            where=f"data set {parts[0]!r}",
            remedy="put the file there, or set the variable to another folder",
        )
    return path


def divided(whole: Dataset, test: float, seed: int | None) -> Dataset:
    """Hold out a share of the rows for the server; 0 holds out none."""
    if not test:
        return whole
    train, held = whole.split(test, seed)
    return train.with_test(held)
