"""Growing arrays of records, in memory up to a limit and in memory-mapped files beyond it."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import sys
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Allowance", "Records", "quarter_of_memory"]

_AT_LEAST = 8  # rows
_MAPPED = (
    1 << 20
)  # bytes from which memory is mapped: it grows by moving pages, not by copying, and unwritten pages cost nothing
_LET_GO = 8 << 20  # bytes accessed in a mapped file, after which its pages may leave memory


@functools.cache
def quarter_of_memory() -> int:
    """A quarter of this machine's memory in bytes, or of its control group's limit; 1 GiB if neither is known."""
    found: list[int] = []
    try:
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        found.append(4 << 30)
    for place in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found.append(int(Path(place).read_text()))
        except (OSError, ValueError):
            continue
    return min(found) // 4


class Allowance:
    """A shared limit on the memory of records, and the folder for the rest.

    Args:
        limit: bytes; ``None`` is `quarter_of_memory`.
        folder: folder of the files; ``None`` is the system's folder for temporary files. They have no name and vanish with the process.
    """

    def __init__(self, limit: int | None = None, folder: Path | None = None) -> None:
        if limit is not None and limit < 0:
            raise ConfigError(f"{limit} bytes of memory for private state", remedy="use 0 or more, or None")
        self.limit = quarter_of_memory() if limit is None else limit
        self.folder = folder
        self.used = 0

    def take(self, nbytes: int) -> bool:
        """Claim memory, if enough is left."""
        if self.used + nbytes > self.limit:
            return False
        self.used += nbytes
        return True

    def give(self, nbytes: int) -> None:
        """Return memory."""
        self.used -= nbytes


class _Held:
    """Bytes claimed by one array; they are returned with it."""

    def __init__(self, allowance: Allowance) -> None:
        self.allowance = allowance
        self.nbytes = 0

    def grow(self, nbytes: int) -> bool:
        if not self.allowance.take(nbytes):
            return False
        self.nbytes += nbytes
        return True

    def release(self) -> None:
        self.allowance.give(self.nbytes)
        self.nbytes = 0


class Records:
    """An array of records that grows at its end.

    Args:
        dtype: dtype of a record.
        allowance: the memory that it shares with other arrays.
    """

    def __init__(self, dtype: np.dtype[Any], allowance: Allowance) -> None:
        self.dtype = dtype
        self._rows: NDArray[Any] = np.zeros(0, dtype=dtype)
        self._held = _Held(allowance)
        self._file: Any = None
        self._map: mmap.mmap | None = None  # of the file, or of plain memory
        self._touched = 0
        weakref.finalize(self, self._held.release)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def spilled(self) -> bool:
        """Whether the records are in a file."""
        return self._file is not None

    def column(self, name: str) -> NDArray[Any]:
        """A field of all records: a view that is invalid after a call of `reserve`."""
        view: NDArray[Any] = self._rows[name]
        return view

    def reserve(self, rows: int) -> None:
        """Make room for this many records in total.

        Raises:
            CheckpointError: the records do not fit into memory, and cannot be written to a file.
        """
        before = len(self._rows)
        if rows <= before:
            return
        capacity = max(rows, before + before // 4, _AT_LEAST)
        if self._file is None and self._held.grow((capacity - before) * self.dtype.itemsize):
            self._grow_in_memory(capacity)
        else:
            self._grow_in_file(capacity)

    def _grow_in_memory(self, capacity: int) -> None:
        nbytes = capacity * self.dtype.itemsize
        if self._resized(nbytes):
            return
        old = self._rows
        if nbytes < _MAPPED or not hasattr(mmap, "MAP_ANONYMOUS"):
            self._rows = np.zeros(capacity, dtype=self.dtype)
        else:
            self._map = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._rows = np.frombuffer(self._map, dtype=self.dtype, count=capacity)
        self._rows[: len(old)] = old

    def _resized(self, nbytes: int) -> bool:
        """Extend mapped memory in place, if the system supports it (Linux)."""
        if self._map is None or sys.platform != "linux":
            return False
        self._rows = np.zeros(0, dtype=self.dtype)  # a map with views cannot move
        try:
            self._map.resize(nbytes)
        except BufferError:
            return False
        finally:
            self._rows = np.frombuffer(self._map, dtype=self.dtype, count=len(self._map) // self.dtype.itemsize)
        return True

    def _grow_in_file(self, capacity: int) -> None:
        nbytes = capacity * self.dtype.itemsize
        folder = self._held.allowance.folder
        try:
            if self._file is None:
                if folder is not None:
                    folder.mkdir(parents=True, exist_ok=True)
                file = tempfile.TemporaryFile(prefix=".spilled-", dir=folder)  # noqa: SIM115 - lives as long as the records
                weakref.finalize(self, file.close)
            else:
                file = self._file
            _reserve_disk(file.fileno(), nbytes)
            mapped = mmap.mmap(file.fileno(), nbytes)
            _expect_scattered(mapped)
        except OSError as error:
            raise CheckpointError(
                f"could not move {nbytes} bytes of private state to disk: {error.strerror or error}",
                where=str(folder or tempfile.gettempdir()),
                remedy="free space there, or allow private state more memory (state_memory)",
            ) from error
        rows: NDArray[Any] = np.frombuffer(mapped, dtype=self.dtype, count=capacity)
        old, was_in_memory = self._rows, self._file is None
        self._file, self._map, self._rows = file, mapped, rows
        if was_in_memory:
            step = max(1, _LET_GO // self.dtype.itemsize)
            for start in range(0, len(old), step):
                part = old[start : start + step]
                rows[start : start + len(part)] = part
                self.note_touched(step)
            self._held.release()

    def note_touched(self, rows: int) -> None:
        """Count accessed records, and from time to time tell the system that pages of a file may leave memory."""
        if self._map is None or self._file is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        self._touched += rows * self.dtype.itemsize
        if self._touched > _LET_GO:
            self._touched = 0
            self._map.madvise(mmap.MADV_DONTNEED)  # the mapping is shared, so written data stay in the file


def _expect_scattered(mapped: mmap.mmap) -> None:
    """Announce scattered access, so that loading one page does not load two megabytes around it."""
    for advice in ("MADV_RANDOM", "MADV_NOHUGEPAGE"):
        if hasattr(mmap, advice):
            with contextlib.suppress(OSError):  # a kernel without huge pages
                mapped.madvise(getattr(mmap, advice))


def _reserve_disk(handle: int, nbytes: int) -> None:
    """Extend a file; a full disk then raises an error here, instead of a fault at a later write."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, nbytes)
    else:
        os.ftruncate(handle, nbytes)
