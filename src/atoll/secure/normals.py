"""Random numbers of a keystream: standard normal numbers and biased coins that nobody without the 32-byte seed can predict.

Normal numbers come from the transform of Box and Muller 1958: ``sqrt(-2 ln u) (cos t, sin t)`` with ``u`` uniform in (0, 1) and ``t`` uniform in ``[-pi, pi)``. They are
floating-point numbers: ``t`` has 24 bits, and ``u`` has 31, or 80 where it is below ``2^-20``, so that the tails reach 10.5 standard deviations. Floating-point noise
has gaps that an exact analysis of privacy would have to count (Mironov 2012, "On Significance of the Least Significant Bits for Differential Privacy").

It is several times faster than the generators of NumPy (``benchmarks/example_privacy.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError

from .keystream import opened

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["NoiseStream"]

_PIECE = 1 << 14
"""Pairs made at once: their buffers stay in the processor's cache."""
_LEAST = 1e-15
"""Deviations below this, or above its inverse, are multiplied at the end."""
_SMALL = 1 << 12
"""Draws of ``u 2^32`` below this get 48 more bits."""
Transform = Callable[["NDArray[Any]", "NDArray[Any]", float], None]
"""``(words, out, deviation)``: write normal numbers made of 32-bit words, none of the first half below ``_SMALL``."""
_ZEROS = memoryview(bytes(8 * _PIECE))


class NoiseStream:
    """Numbers from AES-128 in counter mode; see the module.

    Args:
        seed: 32 secret bytes, for this stream only.

    Attributes:
        transform: a faster way from words to normal numbers, which differs by rounding only.

    Raises:
        MissingExtraError: cryptography is not installed.
    """

    def __init__(self, seed: bytes) -> None:
        self._stream = opened(seed)
        self._raw = bytearray(8 * _PIECE + 16)
        self._work: list[NDArray[np.float32]] = []
        self.transform: Transform | None = None

    def normal(self, count: int, out: NDArray[np.float32] | None = None, deviation: float = 1.0) -> NDArray[np.float32]:
        """Return ``count`` normal numbers of mean 0, in float32; two calls for ``n`` give other numbers than one for ``2 n``.

        Args:
            count: how many.
            out: where to put them: float32, ``(count,)``, contiguous.
            deviation: their standard deviation.
        """
        made = np.empty(count, dtype=np.float32) if out is None else out
        if not _LEAST < deviation < 1.0 / _LEAST:  # its square may not be a float32
            np.multiply(self.normal(count, made), np.float32(deviation), out=made)
            return made
        self._work = self._work or [np.empty(_PIECE, np.float32) for _ in range(3)]
        for start in range(0, count, 2 * _PIECE):
            part = made[start : start + 2 * _PIECE]
            pairs = -(-len(part) // 2)
            radius, angle, turned = (buffer[:pairs] for buffer in self._work)
            bits = self._words(2 * pairs, np.dtype("<u4"))
            if self.transform is not None and bits[:pairs].min(initial=_SMALL) >= _SMALL:
                self.transform(bits, part, deviation)
                continue
            np.multiply(bits[pairs:].view(np.int32), np.float32(math.pi / 2**31), out=angle, casting="unsafe")
            self._radii(bits[:pairs], radius, deviation)  # the last use of the words: it may draw more
            np.cos(angle, out=turned)
            np.multiply(radius, turned, out=part[:pairs])
            np.sin(angle, out=turned)
            np.multiply(radius[: len(part) - pairs], turned[: len(part) - pairs], out=part[pairs:])
        return made

    def coins(self, count: int, probability: float) -> NDArray[np.bool_]:
        """Return independent booleans, each true with the given probability, rounded down to a multiple of ``2^-64``.

        Raises:
            ConfigError: the probability is not between 0 and 1.
        """
        if not 0.0 <= probability <= 1.0:
            raise ConfigError(f"probability={probability}", where="NoiseStream", remedy="use a number in [0, 1]")
        if probability == 1.0:
            return np.ones(count, dtype=bool)
        below = np.uint64(int(math.ldexp(probability, 64)))
        made = np.empty(count, dtype=bool)
        for start in range(0, count, _PIECE):
            part = made[start : start + _PIECE]
            np.less(self._words(len(part), np.dtype("<u8")), below, out=part)
        return made

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return the next uniform words of 64 bits."""
        parts = [self._words(min(_PIECE, count - at), np.dtype("<u8")).copy() for at in range(0, count, _PIECE)]
        return np.concatenate([np.empty(0, np.uint64), *parts])

    def _words(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the next words of the stream, in a buffer that the next call overwrites."""
        size = count * dtype.itemsize
        self._stream.update_into(_ZEROS[:size], self._raw)
        return np.frombuffer(self._raw, dtype=dtype, count=count)

    def _radii(self, bits: NDArray[np.uint32], out: NDArray[np.float32], deviation: float = 1.0) -> None:
        """Write the deviation times ``sqrt(-2 ln u)``, with ``u = (bits | 1) / 2^32``; for the small ones, which make the tails, ``(bits + r) / 2^32`` with a uniform ``r``."""
        np.multiply(bits | np.uint32(1), np.float32(2.0**-32), out=out, casting="unsafe", dtype=np.float32)
        if bits.min(initial=_SMALL) < _SMALL:
            small = np.flatnonzero(bits < _SMALL)
            whole = bits[small].astype(np.float64)
            more = self._words(len(small), np.dtype("<u8")) >> np.uint64(16)
            out[small] = (whole + (more + 0.5) * 2.0**-48) * 2.0**-32
        np.log(out, out=out)
        out *= np.float32(-2.0 * deviation**2)
        np.sqrt(out, out=out)
