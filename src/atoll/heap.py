"""Memory settings for processes that move or compute much: what happens to memory that they free."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator, Mapping

__all__ = ["keep_freed_memory", "loading", "share_one_heap"]

# glibc's malloc.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_MAPPED_FROM = 32 << 20  # bytes; the most that glibc takes
_KEPT = 256 << 20  # bytes


def keep_freed_memory() -> bool:
    """Let this process keep up to 256 MiB of memory that it has freed, for what it needs next.

    By default glibc maps and unmaps each array of a few MiB. Each page then costs a fault, and the system
    clears it: more than moving the bytes costs. Arrays of 32 MiB and more are still mapped one by one. This does
    nothing if the environment sets malloc options (``MALLOC_...``, ``GLIBC_TUNABLES``) or the C library is not glibc.

    Returns:
        Whether it was set.
    """
    return _told({_MMAP_THRESHOLD: _MAPPED_FROM, _TRIM_THRESHOLD: _KEPT})


def share_one_heap() -> bool:
    """Let all threads of this process allocate from one heap; call it before you start any.

    By default glibc gives threads heaps of their own, and blocks that one thread allocates and another frees leave gaps
    in each heap. The threads of gRPC pass every block on to Python's. It does nothing in the cases in which
    ``keep_freed_memory`` does nothing.

    Returns:
        Whether it was set.
    """
    return _told({_ARENA_MAX: 1})


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Turn garbage collection off while modules load, and exempt what they created for good.

    Loading a thousand modules creates almost only objects that stay. Scanning them again and again takes a fifth of the
    time.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collecting:
            gc.enable()


def _told(options: Mapping[int, int]) -> bool:
    """Set options of glibc's malloc, unless the environment sets some or there is no glibc."""
    said = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if said or sys.platform != "linux":
        return False
    import ctypes

    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return all(bool(library.mallopt(option, value)) for option, value in options.items())
