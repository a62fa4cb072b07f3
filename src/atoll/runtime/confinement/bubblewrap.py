"""A sandbox of Linux namespaces, made by bubblewrap (``bwrap``): a job sees what its walls name, and nothing else of the machine."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from .walls import Walls

__all__ = ["command", "program", "why_not"]

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
