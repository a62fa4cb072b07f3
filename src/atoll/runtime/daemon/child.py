"""``python -m atoll.runtime.daemon.child PARENT MEMORY MODULE [ARGUMENTS]``: run a module that dies with its parent, within limits.

The parent cannot arrange this itself: between fork and exec no Python may run in a process with threads.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys

from atoll.runtime.heap import keep_freed_memory

__all__ = ["die_with_parent", "limit_memory", "main"]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
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


def limit_memory(size: int) -> None:
    """Let this process, and each that it starts, allocate at most ``size`` bytes; beyond that, allocation raises MemoryError.

    This counts its data and private writable mappings (RLIMIT_DATA of getrlimit(2)), not libraries and files that it
    maps.
    """
    if sys.platform == "linux" and size > 0:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def main(argv: list[str]) -> None:
    """Tie this process to its parent, then become the module."""
    parent, memory, module, *rest = argv
    limit_memory(int(memory))
    keep_freed_memory()
    # Ctrl-C at a terminal goes to everyone: the front decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not die_with_parent(int(parent)):
        sys.exit(ORPHANED)
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
