"""Disk space reserved for final records."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["Reserve"]

_SIZE = 1 << 20
_PLENTY = 16
"""The reserve is made again once this many times its size is free."""


class Reserve:
    """A file of zeros that is emptied when the disk is full, so that the end of every job can still be recorded.

    Args:
        path: of the file.
        size: bytes.
    """

    def __init__(self, path: Path, size: int = _SIZE) -> None:
        self._path = path
        self._size = size
        self._filled = False

    def fill(self) -> None:
        """Reserve the space if there is plenty; otherwise do without."""
        if self._filled:
            return
        with contextlib.suppress(OSError):
            if self._path.exists() and self._path.stat().st_size == self._size:
                self._filled = True
                return
            free = os.statvfs(self._path.parent) if hasattr(os, "statvfs") else None
            if free is not None and free.f_bavail * free.f_frsize < _PLENTY * self._size:
                return
            with self._path.open("wb") as file:
                file.write(bytes(self._size))
                file.flush()
                os.fsync(file.fileno())
            self._filled = True

    def release(self) -> None:
        """Release the space."""
        self._filled = False
        with contextlib.suppress(OSError):
            os.truncate(self._path, 0)
