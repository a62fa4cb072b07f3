"""A process of its own that watches what one job takes of its machine, however busy the daemon is.

``python -m atoll.runtime.confinement.watching ORDER``, where ORDER is the JSON of a `WatchOrder`. The system bounds single
processes and single files; the job may start many of either. So this process counts, of everything that the job has
started, the files in the job's folders, those without a name that are still open or mapped, and memory; when that is more
than it may be, it ends the job and writes why, as a line of JSON. It ends with the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .folders import UnmeasuredError, measure_folders

__all__ = ["WatchOrder", "measure_nameless", "processes_of"]

_DISK = 2.0
"""Seconds between two looks at folders, at least; a look takes at most a tenth of the time."""
_LOOK = 0.25
"""Seconds between two looks at processes, at least."""
_KILL = 3.0
"""Seconds for a guardian to end everything."""
_HIDDEN = 8
"""Looks in a row in which a process may be unreadable: one that is about to end is."""
_BLOCK = 512
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class WatchOrder:
    """What to watch.

    Attributes:
        parent: process id of the daemon.
        pid: process id of what the daemon has started: the sandbox or the guardian, and else the job's process.
        signal: the signal on which it ends, with everything that the job has started.
        scratch: bytes that the job may write in total.
        folders: where it writes.
    """

    parent: int
    pid: int
    signal: int
    scratch: int
    folders: tuple[str, ...]


# ---------------------------------------------------------------------- what there is


def processes_of(ancestor: int) -> list[int]:
    """Return a process and everything that descends from it."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
                if text[0] not in (b"Z", b"X"):
                    parents.setdefault(int(text[1]), []).append(int(name))
    found, left = [], [ancestor]
    while left:
        found.append(left.pop())
        left += parents.get(found[-1], [])
    return found


def open_files(pid: int) -> Iterator[os.stat_result]:
    """Yield the regular files that a process has open.

    Raises:
        PermissionError: the process lets nobody look.
    """
    for name in _numbers(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found = os.stat(f"/proc/{pid}/fd/{name}")
            if stat.S_ISREG(found.st_mode):
                yield found


def mapped_files(pid: int) -> Iterator[tuple[int, int, int]]:
    """Yield device, inode and end of each mapped part of the files without a name that a process has mapped."""
    try:
        text = Path(f"/proc/{pid}/maps").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return
    for line in text.splitlines():
        if line.endswith(b" (deleted)"):
            span, _, offset, device, inode, *_ = line.split(maxsplit=5)
            begin, end = (int(word, 16) for word in span.split(b"-"))
            major, minor = (int(word, 16) for word in device.split(b":"))
            yield os.makedev(major, minor), int(inode), int(offset, 16) + end - begin


def measure_nameless(pids: Iterable[int], elsewhere: frozenset[int] = frozenset()) -> int:
    """Return the bytes on disk of files without a name that processes have open or mapped.

    Of a file that is only mapped, the system tells no size: it counts up to the end of what is mapped.

    Args:
        pids: the processes.
        elsewhere: devices that are memory.

    Raises:
        PermissionError: a process lets nobody look.
    """
    sizes = dict[tuple[int, int], int]()
    for pid in pids:
        for found in open_files(pid):
            if found.st_nlink == 0 and found.st_dev not in elsewhere:
                sizes[found.st_dev, found.st_ino] = found.st_blocks * _BLOCK
    for pid in pids:
        mapped = dict[tuple[int, int], int]()
        for device, inode, end in mapped_files(pid):
            if device not in elsewhere and (device, inode) not in sizes:
                mapped[device, inode] = max(end, mapped.get((device, inode), 0))
        sizes |= {key: max(size, sizes.get(key, 0)) for key, size in mapped.items()}
    return sum(sizes.values())


def memory_devices(pid: int) -> frozenset[int]:
    """Return the devices whose files are memory, as a process sees them: of memory files (memfd_create(2)) and of tmpfs."""
    found = set[int]()
    with contextlib.suppress(OSError, AttributeError):
        handle = os.memfd_create("look")
        found.add(os.fstat(handle).st_dev)
        os.close(handle)
    return frozenset(found | {device for device, _ in tmpfs_of(pid)})


def tmpfs_of(pid: int | str) -> Iterator[tuple[int, str]]:
    """Yield device and place of each tmpfs that a process sees."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            words, _, kind = line.partition(" - ")
            if kind.split(" ", 1)[0] in ("tmpfs", "devtmpfs", "ramfs"):
                fields = words.split(" ")
                major, minor = fields[2].split(":")
                yield os.makedev(int(major), int(minor)), fields[4].encode().decode("unicode_escape")


def _numbers(folder: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return os.listdir(folder)
    return []


# ---------------------------------------------------------------------- the process


class _OverError(Exception):
    """The job takes more than it may."""

    def __init__(self, **said: Any) -> None:
        super().__init__(said)
        self.said = said


class _Looking:
    """Looks again and again."""

    def __init__(self, order: WatchOrder) -> None:
        self._order = order
        self._folders = [Path(folder) for folder in order.folders]
        self._hidden: dict[int, int] = {}
        self._next = 0.0

    def look(self) -> None:
        """Take one look.

        Raises:
            _OverError: the job takes more than it may.
        """
        pids = self._readable() if sys.platform == "linux" else []
        begun = time.monotonic()
        if begun >= self._next:
            self._disk(pids)
            self._next = time.monotonic() + max(_DISK, 9 * (time.monotonic() - begun))

    def _readable(self) -> list[int]:
        """Return the job's processes that can be looked at; one that stays closed is a reason to end the job."""
        found, hidden = [], dict[int, int]()
        for pid in processes_of(self._order.pid)[1:]:
            try:
                os.listdir(f"/proc/{pid}/fd")
            except PermissionError:
                hidden[pid] = self._hidden.get(pid, 0) + 1
            except OSError:
                continue
            else:
                found.append(pid)
        self._hidden = hidden
        if max(hidden.values(), default=0) > _HIDDEN:
            raise _OverError(of="looking", why="one of its processes lets nobody look at its open files")
        return found

    def _disk(self, pids: Sequence[int]) -> None:
        try:
            written = measure_folders(self._folders)
            if pids:
                with contextlib.suppress(PermissionError):
                    written += measure_nameless(pids, memory_devices(pids[-1]))
        except UnmeasuredError as error:
            raise _OverError(of="looking", why=str(error)) from error
        if written > self._order.scratch:
            raise _OverError(of="scratch", found=written, most=self._order.scratch)


def _end_job(order: WatchOrder, handle: int) -> None:
    """End a job, and see to it that it has ended."""
    pids = processes_of(order.pid) if sys.platform == "linux" else [order.pid]
    _signal(handle, order.pid, order.signal)
    if _gone(handle, order.pid, _KILL):
        return
    for pid in pids[1:]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    _signal(handle, order.pid, signal.SIGKILL)


def _signal(handle: int, pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(pid, number)


def _gone(handle: int, pid: int, within: float) -> bool:
    """Wait for the end of a process; tell whether it has ended."""
    if handle >= 0:
        looking = select.poll()
        looking.register(handle, select.POLLIN)
        return bool(looking.poll(within * 1000))
    time.sleep(within)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def main(argv: Sequence[str]) -> int:
    """Watch one job until it ends; end it if it takes more than it may."""
    told = json.loads(argv[0])
    order = WatchOrder(**{**told, "folders": tuple(told["folders"])})
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        handle = os.pidfd_open(order.pid) if hasattr(os, "pidfd_open") else -1
    except ProcessLookupError:
        return 0
    if os.getppid() != order.parent:
        return 1
    looking = _Looking(order)
    pause = 0.0
    while not _gone(handle, order.pid, pause):
        begun = time.monotonic()
        try:
            looking.look()
        except _OverError as over:
            _end_job(order, handle)
            sys.stdout.write(f"{json.dumps(over.said)}\n")
            sys.stdout.flush()
            return 0
        pause = max(_LOOK, 9 * (time.monotonic() - begun))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
