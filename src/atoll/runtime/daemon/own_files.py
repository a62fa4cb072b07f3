"""Files that a job's process has written, read by a front: never through a link that leads out of the job's folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO

__all__ = ["is_own", "open_own"]


def is_own(path: Path) -> bool:
    """Tell whether a path is a file of its folder: no link, no pipe, and no second name of a file elsewhere, in a folder that is no link itself."""
    try:
        return not path.parent.is_symlink() and _plain(path.lstat())
    except OSError:
        return False


def open_own(path: Path) -> IO[bytes]:
    """Open a file of its folder for reading.

    Raises:
        OSError: it is not such a file, see `is_own`, or has become something else since.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        if not _plain(os.fstat(handle)) or path.parent.is_symlink():
            raise OSError(f"{path.name} is not a file of its folder")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _plain(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1
