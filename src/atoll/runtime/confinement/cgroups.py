"""Control groups of Linux (version 2), where a daemon may make some: the kernel then bounds the memory of a whole job, down to what sockets and pipes hold.

A service gets its own part of the tree with ``Delegate=yes`` (systemd), a container with a writable ``/sys/fs/cgroup``. The
daemon moves itself into a leaf, because a group with limits for others holds no process itself, and makes one group a job.
Everywhere else a process of its own watches, see `atoll.runtime.confinement.watching`. Documented in the kernel's
``Documentation/admin-guide/cgroup-v2.rst``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["JobGroup", "delegated_group"]

_DAEMONS = "atoll-daemons"
_JOB = "atoll-job-"
_ENTER = 'echo 0 > "$0/cgroup.procs" && exec "$@"'


@dataclass(frozen=True)
class JobGroup:
    """The group of one job's processes.

    Attributes:
        folder: its folder in the tree of groups.
    """

    folder: Path

    @classmethod
    def make(cls, above: Path, memory: int, processes: int) -> JobGroup:
        """Make a group.

        Args:
            above: the daemon's part of the tree, see `delegated_group`.
            memory: bytes that its processes may take together, swapped ones too.
            processes: how many they may be; 0 for any number.

        Raises:
            OSError: the system does not let it.
        """
        made = cls(above / f"{_JOB}{secrets.token_hex(8)}")
        made.folder.mkdir()
        try:
            _write(made.folder / "memory.max", str(memory))
            with contextlib.suppress(OSError):  # a kernel without swap has no such file
                _write(made.folder / "memory.swap.max", "0")
            _write(made.folder / "memory.oom.group", "1")
            if processes:
                _write(made.folder / "pids.max", str(processes))
        except OSError:
            made.remove()
            raise
        return made

    def entering(self, words: Sequence[str]) -> list[str]:
        """Return a command line whose process enters the group before it becomes the program."""
        return ["/bin/sh", "-c", _ENTER, str(self.folder), *words]

    def ran_out(self) -> bool:
        """Tell whether the kernel has ended processes because memory ran out here."""
        try:
            lines = (self.folder / "memory.events").read_text(encoding="ascii").splitlines()
        except OSError:
            return False
        return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in lines)

    def remove(self) -> None:
        """End what is left in it, and remove it."""
        with contextlib.suppress(OSError):
            _write(self.folder / "cgroup.kill", "1")
        with contextlib.suppress(OSError):
            self.folder.rmdir()


@functools.cache
def delegated_group() -> Path | None:
    """Return this daemon's part of the tree, in which it may bound memory; None if there is none. The daemon's process is in a leaf then."""
    return find_group(Path("/proc/self"), os.getpid())


def find_group(me: Path, pid: int) -> Path | None:
    """Return the part of the tree that a process may divide.

    Args:
        me: its folder below ``/proc``.
        pid: its number.
    """
    try:
        place = _place_of(me)
        if place is None or "memory" not in (place / "cgroup.controllers").read_text(encoding="ascii").split():
            return None
        if place.name == _DAEMONS:  # another daemon was started by one
            return place.parent
        leaf = place / _DAEMONS
        leaf.mkdir(exist_ok=True)
    except OSError:
        return None
    try:
        _write(leaf / "cgroup.procs", str(pid))
        _write(place / "cgroup.subtree_control", "+memory +pids")
    except OSError:  # somebody else's processes are in the group, as in a person's session
        with contextlib.suppress(OSError):
            _write(place / "cgroup.procs", str(pid))
        with contextlib.suppress(OSError):
            leaf.rmdir()
        return None
    return place


def _place_of(me: Path) -> Path | None:
    """The folder of a process's group in the tree of version 2."""
    paths = [line[3:] for line in (me / "cgroup").read_text(encoding="utf-8").splitlines() if line.startswith("0::")]
    for line in (me / "mountinfo").read_text(encoding="utf-8").splitlines():
        words, _, kind = line.partition(" - ")
        if paths and kind.startswith("cgroup2 "):
            root, mount = words.split(" ")[3:5]
            below = paths[0].removeprefix(root if root != "/" else "").strip("/")
            return Path(mount) / below
    return None


def _write(path: Path, text: str) -> None:
    handle = os.open(path, os.O_WRONLY)
    try:
        os.write(handle, text.encode("ascii"))
    finally:
        os.close(handle)
