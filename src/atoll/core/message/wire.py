r"""The binary form: constants and layout.

```
prologue   24 B   magic b"ATOL" | version u16 | reserved u16 = 0 | header bytes u64 | body bytes u64
header            the tree in depth-first order: one tag byte a node, then its fields
padding           zeros up to a multiple of 64 (only where there is a body)
body              the buffers in header order, each padded with zeros to a multiple of 64
```

All numbers are little-endian and of fixed width. The header is a binary schema, not JSON: its size
is a sum of constants (so `nbytes` is arithmetic), floats keep their bits, integers have no bound except
the limit, and there are no escapes, number forms or duplicate fields that readers could interpret differently.

Buffers have **no offsets on the wire**. Each begins where the previous one ended, and its length
follows from dtype and shape, so overlapping, misaligned or out-of-range buffers cannot be
expressed; only the sum of the lengths must be checked against the declared body. Each tree has
exactly one encoding (except for dict order): the reader requires minimal integers, zero padding and zeros
in null slots.
"""

from __future__ import annotations

import struct
from enum import IntEnum

__all__ = ["ALIGN", "INLINE", "MAGIC", "MAX_NDIM", "PROLOGUE", "VERSION", "Fields", "Tag", "aligned"]

MAGIC = b"ATOL"
VERSION = 1
PROLOGUE = struct.Struct("<4sHHQQ")
ALIGN = 64
"""Buffers begin at multiples of this many bytes from the start of the message: a cache line."""
INLINE = 256
"""``str`` and ``bytes`` leaves up to this many bytes are in the header, longer ones in the body."""
MAX_NDIM = 32
"""Maximum number of dimensions of an array (the bound of NumPy 1.26; NumPy 2 has 64)."""


class Fields:
    """The fixed-width fields of the header; those with a leading B begin with the tag."""

    u32 = struct.Struct("<I")
    u64 = struct.Struct("<Q")
    counted = struct.Struct("<BI")
    long = struct.Struct("<BQ")
    real = struct.Struct("<Bd")
    complex = struct.Struct("<Bdd")
    naive = struct.Struct("<BQB")
    aware = struct.Struct("<BQq")
    delta = struct.Struct("<Biii")


class Tag(IntEnum):
    """The first byte of a node in the header."""

    NONE = 0
    FALSE = 1
    TRUE = 2
    INT = 3
    FLOAT = 4
    COMPLEX = 5
    TEXT = 6
    BYTES = 7
    LONG_TEXT = 8
    LONG_BYTES = 9
    DATE = 10
    NAIVE_DATETIME = 11
    AWARE_DATETIME = 12
    TIMEDELTA = 13
    NUMPY_SCALAR = 14
    ARRAY = 15
    STRING_ARRAY = 16
    BYTES_ARRAY = 17
    BFLOAT16 = 18
    BITS = 19
    MASKED = 20
    LIST = 21
    TUPLE = 22
    DICT = 23
    WORDS = 24


def aligned(size: int) -> int:
    """Return ``size`` rounded up to a multiple of 64."""
    return (size + 63) & -64
