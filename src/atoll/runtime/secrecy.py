"""What a process that holds a key keeps to itself: its memory, and the passphrase that opened the key."""

from __future__ import annotations

import contextlib
import os
import sys

__all__ = ["close_memory", "forget_variable"]

_PR_SET_DUMPABLE = 4  # linux/prctl.h


def close_memory() -> bool:
    """Let no process of the same user read this process's memory or first environment, and let it leave no core file.

    On Linux the process is then not *dumpable* (PR_SET_DUMPABLE of prctl(2)): below ``/proc/PID``, ``mem``, ``environ``
    and ``fd`` belong to root, and no debugger attaches. Programs that it starts are not affected. Root can read its
    memory still, and so can whoever reads the machine's swap.

    Returns:
        Whether the system does this.
    """
    with contextlib.suppress(ImportError):  # not on POSIX
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "linux":
        return False
    import ctypes

    return bool(ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)


def forget_variable(name: str) -> None:
    """Remove a variable from the environment, and overwrite it in the environment that the process was started with."""
    if name not in os.environ:
        return
    if sys.platform == "linux":
        import ctypes

        find = ctypes.CDLL(None).getenv
        find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
        if (place := find(os.fsencode(name))) is not None:
            ctypes.memset(place, 0, len(ctypes.string_at(place)))
    del os.environ[name]
