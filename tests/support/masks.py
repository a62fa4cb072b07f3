"""Masks that cancel, for the miniatures: words modulo 2^64 from a shared seed."""

from __future__ import annotations

import numpy as np


def mask(seed, shape):
    """The words of a seed, an integer or bytes."""
    key = seed if isinstance(seed, int) else int.from_bytes(seed)
    return np.random.Generator(np.random.Philox(key=key)).integers(2**64, size=shape, dtype=np.uint64)
