"""How a process that moves blocks and models all day deals with memory that it has let go."""

from __future__ import annotations

import os
import sys

__all__ = ["keep_freed_memory"]

# glibc's malloc.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
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
    said = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if said or sys.platform != "linux":
        return False
    import ctypes

    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return bool(library.mallopt(_MMAP_THRESHOLD, _MAPPED_FROM)) and bool(library.mallopt(_TRIM_THRESHOLD, _KEPT))
