"""How a daemon confines its jobs: by namespaces (bubblewrap) and control groups where the machine has them, and who insists on it."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from atoll.core.errors import ConfigError

from .walls import JobLimits, Walls, why_open

__all__ = [
    "INSTALL",
    "MODES",
    "SCRATCH",
    "UNCONFINED",
    "Confinement",
    "JobGroup",
    "command",
    "confinement",
    "delegated_group",
    "program",
    "why_not",
]


# ------------------------------------------------------------------ control groups of Linux (version 2), where a daemon may make some
#
# Control groups of Linux (version 2), where a daemon may make some: the kernel then bounds the memory of a whole job, down to what sockets and pipes hold.
# A service gets its own part of the tree with ``Delegate=yes`` (systemd), a container with a writable ``/sys/fs/cgroup``. The
# daemon moves itself into a leaf, because a group with limits for others holds no process itself, and makes one group a job.
# Everywhere else a process of its own watches, see `atoll.runtime.confinement.watching`. Documented in the kernel's
# ``Documentation/admin-guide/cgroup-v2.rst``.


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


# ------------------------------------------------------------------ a sandbox of Linux namespaces, made by bubblewrap (``bwrap``)
#
# A sandbox of Linux namespaces, made by bubblewrap (``bwrap``): a job sees what its walls name, and nothing else of the machine.


_NAME = "bwrap"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt/rocm", "/nix/store")
_SETTINGS = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "timezone", "passwd", "group", "nsswitch.conf", "fonts",
)  # fmt: skip
"""Of ``/etc``, what programs need; kits and passwords of others may lie there too."""
_NETWORK = ("resolv.conf", "hosts", "host.conf", "gai.conf", "services", "protocols", "ssl", "pki", "ca-certificates")
_DEVICES = ("nvidia*", "dri", "kfd", "accel")
_TEMPORARY = 64 << 20
"""Bytes of ``/tmp``, which is memory; a job's scratch is on the disk."""
_PATIENCE = 20.0


def program() -> str | None:
    """Return the path of bubblewrap; None if it is not installed."""
    return shutil.which(_NAME) if sys.platform == "linux" else None


def command(bwrap: str, walls: Walls, child: Sequence[str], network: bool = False) -> list[str]:
    """Return the command line that runs a child between walls.

    It has a user, a process, a network and an IPC namespace of its own: it sees no other process, has no network and no
    rights of root, and when it or its daemon ends, the system kills everything that it started.

    Args:
        bwrap: the path of bubblewrap.
        walls: what the child may reach.
        child: its command line.
        network: let it use the machine's network.
    """
    seen = [*map(Path, _python()), *walls.reads]
    hidden = [path for path in walls.hides if any(path.is_relative_to(one) for one in seen)]
    return [
        bwrap, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent",
        *([] if network else ["--unshare-net"]), *(["--disable-userns"] if _bars_namespaces(bwrap) else []), "--cap-drop", "ALL",
        "--proc", "/proc", "--dev", "/dev", "--size", str(walls.shared or _half()), "--tmpfs", "/dev/shm", "--size", str(_TEMPORARY), "--tmpfs", "/tmp",  # noqa: S108 - its own
        *_bind_paths(_SYSTEM), *_bind_paths(f"/etc/{name}" for name in (*_SETTINGS, *(_NETWORK if network else ()))),
        *_bind_paths(map(str, seen)), *(_accelerators() if walls.devices else ()),
        *(word for path in hidden for word in ("--tmpfs", str(path))),
        *_bind_paths(str(path) for path in walls.reads if any(path.is_relative_to(one) for one in hidden)),
        *(word for path in (*walls.writes, walls.home) for word in ("--bind", str(path), str(path))),
        "--setenv", "HOME", str(walls.home), "--setenv", "TMPDIR", str(walls.home), "--setenv", "XDG_CACHE_HOME", str(walls.home),
        "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(walls.home), "--", *child,
    ]  # fmt: skip


@functools.cache
def why_not(bwrap: str, network: bool = False) -> str:
    """Return why bubblewrap cannot make a sandbox here, in words; nothing if it can."""
    words = command(bwrap, Walls(Path("/tmp")), [sys.executable, "-c", ""], network)  # noqa: S108 - the child's own
    try:
        done = subprocess.run(words, capture_output=True, check=False, timeout=_PATIENCE, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return "" if done.returncode == 0 else said[-1][:300] if said else f"exit code {done.returncode}"


@functools.cache
def _bars_namespaces(bwrap: str) -> bool:
    """Whether this bubblewrap can keep a child from making namespaces of its own (since 0.8)."""
    done = subprocess.run([bwrap, "--help"], capture_output=True, check=False, timeout=_PATIENCE)
    return b"--disable-userns" in done.stdout


def _half() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _bind_paths(paths: Iterable[str]) -> Iterator[str]:
    for path in dict.fromkeys(paths):
        if Path(path).is_symlink() and path in _SYSTEM:  # /bin -> usr/bin
            yield from ("--symlink", str(Path(path).readlink()), path)
        else:
            yield from ("--ro-bind-try", path, path)


def _python() -> list[str]:
    """Return where this Python, its libraries and Atoll are; not the folder that the daemon was started in."""
    found = [sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(__file__).parents[3])]
    found += [path for path in sys.path if path and path != str(Path.cwd()) and os.path.exists(path)]  # noqa: PTH110
    found += [str(Path(sys.executable).resolve().parent)]
    return [path for path in dict.fromkeys(found) if not path.startswith("/usr/") and path != "/usr"]


def _accelerators() -> Iterator[str]:
    for pattern in _DEVICES:
        for path in sorted(Path("/dev").glob(pattern)):
            yield from ("--dev-bind-try", str(path), str(path))
    yield from ("--ro-bind-try", "/sys", "/sys")


# ------------------------------------------------------------------ how a daemon confines its jobs: in a sandbox where the machine has one, and who insists on it


Mode = Literal["auto", "always", "never"]
MODES: tuple[Mode, ...] = ("auto", "always", "never")
INSTALL = "install bubblewrap (apt-get install bubblewrap), and let users make namespaces"
"""What to do where jobs cannot be confined."""
_PROCESSES, _FILES, _SIZE = 1024, 1 << 16, 64 << 30
SCRATCH = 64 << 30
"""Bytes that a job may write in total, unless the operator says otherwise."""


@dataclass(frozen=True)
class Confinement:
    """How the jobs of a daemon are confined.

    Attributes:
        program: the path of bubblewrap; empty if jobs are not confined.
        why: why they are not.
        network: whether they may use the machine's network.
        reads: files and folders that every job may read.
        hides: folders that no job may see: the kit, and the daemon's own.
        scratch: bytes that a job may write in total, confined or not.
    """

    program: str = ""
    why: str = ""
    network: bool = False
    reads: tuple[Path, ...] = ()
    hides: tuple[Path, ...] = ()
    scratch: int = SCRATCH

    @property
    def confined(self) -> bool:
        """Tell whether jobs are confined."""
        return bool(self.program)

    def __str__(self) -> str:
        if not self.confined:
            rest = f", and system calls are open: {why_open()}" if why_open() else ""
            return f"jobs are not confined: {self.why}. A job can do whatever the user of this process can{rest}"
        where = "with this machine's network" if self.network else "without a network"
        calls = f"system calls are open: {why_open()}" if why_open() else "system calls that no job needs are shut"
        return f"jobs are confined by bubblewrap, {where}; {calls}"

    def hiding(self, *folders: Path) -> Confinement:
        """Return it with folders that no job may see."""
        return replace(self, hides=(*self.hides, *(folder.resolve() for folder in folders)))

    def command(self, child: Sequence[str], walls: Walls) -> list[str]:
        """Return the command line that runs a child between walls, or the child's own if jobs are not confined."""
        if not self.confined:
            return list(child)
        walls = replace(walls, reads=(*self.reads, *walls.reads), hides=(*self.hides, *walls.hides))
        return command(self.program, walls, child, self.network)

    def limits(self, memory: int, devices: bool = False) -> JobLimits:
        """Return what a job's process may take.

        Args:
            memory: the bytes that it has been granted; 0 if it asked for none, and then it is the machine's memory.
            devices: whether it uses accelerators, whose drivers reserve more addresses than there is memory.
        """
        if not self.confined:
            return JobLimits(memory)
        return JobLimits(memory or (0 if devices else _machine()), _PROCESSES, _FILES, _SIZE)


def _machine() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


UNCONFINED = Confinement(why="nobody asked for it")


def confinement(
    mode: str = "auto", *, network: bool = False, show: Sequence[Path] = (), where: str = "--confine"
) -> Confinement:
    """Return how jobs are confined on this machine.

    Args:
        mode: ``auto``: where it is possible; ``always``: or not at all; ``never``.
        network: let jobs use the machine's network.
        show: files and folders that jobs may read.
        where: who asks, for errors.

    Raises:
        ConfigError: the mode is unknown, a path is not there, or jobs must be confined and cannot be.
    """
    if mode not in MODES:
        raise ConfigError(f"{mode!r} is not a way to confine jobs", where="--confine", remedy=f"use {', '.join(MODES)}")
    for path in show:
        if not path.exists():
            raise ConfigError(f"there is no file or folder {str(path)!r}", where="--show", remedy="correct the path")
    if mode == "never":
        return Confinement(why="--confine never says so")
    found = program()
    why = "bubblewrap is not installed" if found is None else why_not(found, network)
    if found is not None and not why:
        return Confinement(found, "", network, tuple(path.resolve() for path in show))
    if found is not None:
        why = f"bubblewrap cannot make a sandbox here ({why})"
    if mode == "always":
        raise ConfigError(f"jobs must be confined, and {why}", where=where, remedy=INSTALL)
    return Confinement(why=why)
