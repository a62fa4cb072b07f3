"""``python -m atoll.runtime.daemon.child PARENT LIMITS [--shut] MODULE [ARGUMENTS]``: run a module that dies with its parent, within limits.

PARENT is the parent's process id, with ``+`` behind it for a guardian between the two. LIMITS is the word of a
`atoll.runtime.confinement.walls.JobLimits`. With ``--shut``, the system calls that no job needs are shut first.

The parent cannot arrange this itself: between fork and exec no Python may run in a process with threads.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
from pathlib import Path

from atoll.heap import keep_freed_memory
from atoll.runtime.confinement.system_calls import shut_system_calls
from atoll.runtime.confinement.walls import JobLimits

from .guardian import guard

__all__ = ["SHUT", "die_with_parent", "keep_limits", "main"]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
SHUT = "--shut"
ORPHANED = 113
"""Exit code of a child whose parent died before it started."""


def die_with_parent(parent: int) -> bool:
    """Ask the system to kill this process when its parent ends, however that ends; Linux only.

    Args:
        parent: the process id that this process was started by.

    Returns:
        Whether the parent is still there.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


def keep_limits(limits: JobLimits) -> None:
    """Set the limits of this process, and of each that it starts; beyond that of memory, allocation raises MemoryError.

    Memory counts its data and private writable mappings (RLIMIT_DATA of getrlimit(2)), not libraries and files that it
    maps.
    """
    if sys.platform != "linux":
        return
    import resource

    for name, most in (
        (resource.RLIMIT_DATA, limits.memory), (resource.RLIMIT_NPROC, limits.processes),
        (resource.RLIMIT_NOFILE, limits.files), (resource.RLIMIT_FSIZE, limits.size),
    ):  # fmt: skip
        hard = resource.getrlimit(name)[1]
        if most > 0 and (hard == resource.RLIM_INFINITY or most < hard):
            resource.setrlimit(name, (most, most))


def offer_first() -> None:
    """Have the system end this process, and what it starts, before others where memory runs out."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def main(argv: list[str]) -> None:
    """Tie this process to its parent, then become the module."""
    shut = argv[2] == SHUT
    parent, limits, module, *rest = [*argv[:2], *argv[2 + shut :]]
    keep_limits(JobLimits.read(limits))
    if shut:
        offer_first()
    keep_freed_memory()
    # Ctrl-C at a terminal goes to everyone: the daemon decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not die_with_parent(int(parent.removesuffix("+"))):
        sys.exit(ORPHANED)
    if parent.endswith("+"):
        guard()
    if shut:
        shut_system_calls()
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
