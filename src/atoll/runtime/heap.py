"""How a process that moves blocks and models all day deals with memory that it has let go."""

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

    Otherwise glibc maps each array of some MiB anew and gives it back, and each of its pages costs a fault and is cleared by the
    system: more than what the bytes cost to move. Arrays of 32 MiB and more still come and go one by one. Where the
    environment says how memory is to be dealt with (``MALLOC_...``, ``GLIBC_TUNABLES``), or the C library is another one, nothing is done.

    Returns:
        Whether it was done.
    """
    return _told({_MMAP_THRESHOLD: _MAPPED_FROM, _TRIM_THRESHOLD: _KEPT})


def share_one_heap() -> bool:
    """Let all threads of this process allocate from one heap; to be called before there are others.

    Otherwise glibc gives threads heaps of their own, and blocks that one thread allocates and another frees leave gaps in each of them. The threads of
    gRPC pass every block on to Python's. The same is left alone as by ``keep_freed_memory``.

    Returns:
        Whether it was done.
    """
    return _told({_ARENA_MAX: 1})


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Collect no garbage while modules are loaded, and never look for any among what they are made of.

    Loading a thousand modules makes hardly anything but objects that stay: looking through them again and again takes a fifth of the time.
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
    """Tell glibc's malloc, unless somebody else has, or there is none."""
    said = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if said or sys.platform != "linux":
        return False
    import ctypes

    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return all(bool(library.mallopt(option, value)) for option, value in options.items())
