"""A process of its own that watches what one job takes of its machine, however busy the daemon is.

``python -m atoll.runtime.confinement.watching`` reads a line from stdin, the JSON of a `WatchOrder`. The system bounds single
processes and single files; the job may start many of either. So this process counts, of everything that the job has
started, the files in the job's folders, those without a name that are still open or mapped, and memory; when that is more
than it may be, it ends the job and writes why, as a line of JSON. It ends with the job.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .folders import UnmeasuredError, measure_folders

__all__ = ["MemoryMeter", "WatchOrder", "measure_nameless", "processes_of"]

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
        memory: bytes of memory that all its processes may take together; 0 for no limit of its own.
        folders: where it writes.
    """

    parent: int
    pid: int
    signal: int
    scratch: int
    memory: int
    folders: tuple[str, ...]


# ---------------------------------------------------------------------- what there is


def processes_of(ancestor: int) -> list[int]:
    """Return a process and everything that descends from it."""
    if not Path(f"/proc/{ancestor}/task/{ancestor}/children").exists():  # a kernel without CONFIG_PROC_CHILDREN
        return _find_descendants(ancestor)
    found, left, known = [], [ancestor], {ancestor}
    while left:
        found.append(left.pop())
        for task in _numbers(f"/proc/{found[-1]}/task"):
            with contextlib.suppress(OSError, ValueError):
                text = Path(f"/proc/{found[-1]}/task/{task}/children").read_bytes()
                new = {int(word) for word in text.split()} - known
                left += sorted(new)
                known |= new
    return found


def _find_descendants(ancestor: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for name in _numbers("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name of a process stands in brackets, and may hold blanks and brackets itself: the fields follow the last one.
                text = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
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
    return _memory_file_devices() | {device for device, _ in tmpfs_of(pid)}


def tmpfs_of(pid: int | str) -> Iterator[tuple[int, str]]:
    """Yield device and place of each tmpfs that a process sees."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            words, _, kind = line.partition(" - ")
            if kind.split(" ", 1)[0] in ("tmpfs", "devtmpfs", "ramfs"):
                fields = words.split(" ")
                major, minor = fields[2].split(":")
                yield os.makedev(int(major), int(minor)), fields[4].encode().decode("unicode_escape")


class MemoryMeter:
    """Measures the memory of all processes of a job together: their own, and what they share, once.

    Counted are the pages of each process that no file gives back (its share of those that several processes have, PSS),
    what was swapped out, and files that are memory: memory files and files of a host's tmpfs as far as a process has them
    open or had them when it was looked at, and whole file systems of the job's own. Pages of files on a disk are not
    counted: the system takes them back.
    """

    def __init__(self) -> None:
        self._here = {device for device, _ in tmpfs_of("self")}
        self._named: dict[tuple[int, int], str] = {}

    def measure(self, pids: Sequence[int], most: int) -> int:
        """Return the bytes; an upper bound of them if that is at most ``most``, because it costs less.

        Args:
            pids: the job's processes.
            most: what they may take.
        """
        devices = memory_devices(pids[-1]) if pids else frozenset[int]()
        files = self._files(pids, devices)
        known = sum(files.values()) + self._own_file_systems(pids)
        above = known + sum(sum(_kilobytes(pid, "status", b"RssAnon:", b"RssShmem:", b"VmSwap:")) for pid in pids)
        if above <= most:
            return above
        private = sum(sum(_kilobytes(pid, "smaps_rollup", b"Pss_Anon:", b"SwapPss:")) for pid in pids)
        return known + private + sum(_measure_shared(pid, devices, files.keys()) for pid in pids)

    def _files(self, pids: Sequence[int], devices: frozenset[int]) -> dict[tuple[int, int], int]:
        """Device and inode -> size of each file that is memory, and no file of a file system of the job's own."""
        own = devices - self._here - {_memory_file_device()}
        sizes = dict[tuple[int, int], int]()
        for pid in pids:
            with contextlib.suppress(PermissionError):
                for name in _numbers(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        found = os.stat(f"/proc/{pid}/fd/{name}")
                        if stat.S_ISREG(found.st_mode) and found.st_dev in devices and found.st_dev not in own:
                            key = found.st_dev, found.st_ino
                            sizes[key] = found.st_blocks * _BLOCK
                            if found.st_nlink:
                                self._named[key] = os.readlink(f"/proc/{pid}/fd/{name}")
        for key, path in list(self._named.items()):
            try:
                found = os.lstat(path)
            except OSError:
                del self._named[key]
                continue
            if (found.st_dev, found.st_ino) != key:
                del self._named[key]
            elif key not in sizes:
                sizes[key] = found.st_blocks * _BLOCK
        return sizes

    def _own_file_systems(self, pids: Sequence[int]) -> int:
        """Bytes in file systems of memory that only the job has."""
        sizes = dict[int, int]()
        for pid in pids[-1:]:
            for device, place in tmpfs_of(pid):
                if device not in self._here and device not in sizes:
                    with contextlib.suppress(OSError):
                        found = os.statvfs(f"/proc/{pid}/root{place}")
                        sizes[device] = (found.f_blocks - found.f_bfree) * found.f_frsize
        return sum(sizes.values())


def _kilobytes(pid: int, file: str, *fields: bytes) -> list[int]:
    """Return fields of a file of /proc that tell kB, in bytes; nothing if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_bytes().splitlines()
    except OSError:
        return []
    return [int(line.split()[1]) * 1024 for line in lines if line.startswith(fields)]


def _measure_shared(pid: int, devices: frozenset[int], known: Collection[tuple[int, int]]) -> int:
    """Return a process's share of the memory that it has mapped from files that are memory and are not counted yet."""
    try:
        lines = Path(f"/proc/{pid}/smaps").read_bytes().splitlines()
    except OSError:
        return 0
    total, counts = 0, False
    for line in lines:
        first, *rest = line.split(maxsplit=5)
        if not first.endswith(b":"):
            major, minor = (int(word, 16) for word in rest[2].split(b":"))
            device = os.makedev(major, minor)
            counts = device in devices and (device, int(rest[3])) not in known
        elif counts and first == b"Pss:":
            total += int(rest[0]) * 1024
    return total


def _memory_file_device() -> int:
    return max(_memory_file_devices(), default=-1)


@functools.cache
def _memory_file_devices() -> frozenset[int]:
    with contextlib.suppress(OSError, AttributeError):
        handle = os.memfd_create("look")
        try:
            return frozenset({os.fstat(handle).st_dev})
        finally:
            os.close(handle)
    return frozenset()


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
        self._meter = MemoryMeter()
        self._pause = _LOOK if order.memory else _DISK

    @property
    def pause(self) -> float:
        """Seconds to the next look, at least."""
        return self._pause

    def look(self) -> None:
        """Take one look.

        Raises:
            _OverError: the job takes more than it may.
        """
        pids = self._readable() if sys.platform == "linux" else []
        for pid in pids:
            _offer_first(pid)
        if pids and self._order.memory:
            taken = self._meter.measure(pids, self._order.memory)
            if taken > self._order.memory:
                raise _OverError(of="memory", found=taken, most=self._order.memory)
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


def _offer_first(pid: int) -> None:
    """Have the system end a process before others where memory runs out, whatever it has set itself."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000", encoding="ascii")


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


def main(line: Callable[[], str]) -> int:
    """Watch one job until it ends; end it if it takes more than it may.

    Args:
        line: waits for the order, as a line; nothing if there will be none.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    text = line()
    if not text:
        return 0
    told = json.loads(text)
    order = WatchOrder(**{**told, "folders": tuple(told["folders"])})
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
        pause = max(looking.pause, 9 * (time.monotonic() - begun))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.stdin.readline))
