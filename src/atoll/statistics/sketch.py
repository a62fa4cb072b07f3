"""Quantiles from counts: numbers as ordered whole numbers, and sketches of how many have which leading bits.

The 64 bits of a double, with those of negative numbers turned round, are a whole number with the order of the numbers. A *sketch* counts the values by the
leading ``12 + digits`` bits of it: sign, exponent and ``digits`` bits of the fraction. Values of one bucket differ by a factor of at most ``1 + 2^-digits``,
so the middle of a bucket is within ``2^-(digits + 1)`` of each of them, relative to its magnitude (the guarantee of DDSketch, Masson, Rim and Lee 2019). Counts
add up: a sketch of a union is the sum of the sketches, whatever the partition and the order, and secure sums add them up too.

The remaining bits follow in rounds: each counts the next bits of the values in the bucket where a rank lies, until one number is left. It is a value of the
data, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BITS",
    "Sketch",
    "between",
    "edges_of_bucket",
    "keys_of",
    "middle_of",
    "number_of",
    "positions_of",
    "refine_counts",
]

Keys = NDArray[np.int64]
Numbers = NDArray[np.float64]

BITS = 64
"""Bits of a key."""
_CHUNK = 1 << 18
_REST = np.int64(0x7FFF_FFFF_FFFF_FFFF)


def keys_of(values: NDArray[Any]) -> Keys:
    """Whole numbers in the order of the finite numbers, ``(values,)``; zeros of either sign are one."""
    bits = np.add(values, 0.0, dtype=np.float64).view(np.int64)  # -0.0 becomes 0.0
    signs = bits >> 63
    signs &= _REST
    bits ^= signs
    return np.asarray(bits)


def number_of(key: int) -> float:
    """The number with this key."""
    bits = np.int64(key)
    return float(np.int64(bits ^ ((bits >> np.int64(63)) & _REST)).view(np.float64))


@dataclass(frozen=True)
class Sketch:
    """How many values have which leading bits.

    Attributes:
        buckets: leading bits of the keys, ascending, ``(buckets,)``.
        counts: values in each, ``(buckets,)``.
        digits: bits of the fraction.
    """

    buckets: Keys
    counts: NDArray[np.int64]
    digits: int = 7

    @property
    def shift(self) -> int:
        """Bits of a key that the sketch does not look at."""
        return 52 - self.digits

    @property
    def error(self) -> float:
        """The largest relative error of a value."""
        return 2.0 ** -(self.digits + 1)

    @property
    def size(self) -> int:
        """Number of values."""
        return int(self.counts.sum())

    @classmethod
    def none(cls, digits: int = 7) -> Sketch:
        """The sketch of no values."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), digits)

    @classmethod
    def of(cls, values: NDArray[Any], digits: int = 7) -> Sketch:
        """The sketch of values; what is not finite is left out."""
        flat, made = values.reshape(-1), cls.none(digits)
        for start in range(0, len(flat), _CHUNK):
            part = flat[start : start + _CHUNK]
            if part.dtype.kind == "f" and not (np.isfinite(part.min()) and np.isfinite(part.max())):
                part = part[np.isfinite(part)]
            if len(part):
                made = made.merge(_count_leading(keys_of(part) >> (52 - digits), digits))
        return made

    def merge(self, other: Sketch) -> Sketch:
        """The sketch of the union."""
        if not len(self.buckets) or not len(other.buckets):
            return self if len(self.buckets) else other
        buckets, place = np.unique(np.concatenate([self.buckets, other.buckets]), return_inverse=True)
        counts = np.bincount(place, np.concatenate([self.counts, other.counts]), len(buckets))
        return Sketch(buckets, counts.astype(np.int64), self.digits)

    @classmethod
    def union(cls, parts: Sequence[Sketch], digits: int = 7) -> Sketch:
        """The sketch of all parts."""
        made = cls.none(digits)
        for part in parts:
            made = made.merge(part)
        return made

    # ------------------------------------------------------------------ reading

    def bucket_at(self, rank: int) -> tuple[int, int]:
        """The bucket of the value of this rank, counted from 0, and how many values lie below the bucket."""
        below = np.cumsum(self.counts)
        place = int(np.searchsorted(below, rank, side="right"))
        place = min(place, len(below) - 1)
        return int(self.buckets[place]), int(below[place] - self.counts[place])

    def value_at(self, rank: int) -> float:
        """The value of this rank, within `error`."""
        return middle_of(self.bucket_at(rank)[0], self.shift)

    def quantile(self, share: float) -> float:
        """The quantile, interpolated as `numpy.quantile` does; NaN without values.

        With ``a`` and ``b`` the two values that NumPy interpolates between, the error is at most ``error * max(|a|, |b|)``.
        """
        if not self.size:
            return float("nan")
        low, high, weight = positions_of(share, self.size)
        return between(self.value_at(low), self.value_at(high), weight)

    def below(self, edges: Numbers) -> NDArray[np.int64]:
        """How many values are in buckets whose middle is below each edge, ``(edges,)``."""
        middles = np.array([middle_of(bucket, self.shift) for bucket in self.buckets.tolist()])
        cumulative = np.concatenate([[0], np.cumsum(self.counts)])
        return np.asarray(cumulative[np.searchsorted(middles, edges, side="left")])

    def range(self) -> tuple[float, float]:
        """Numbers between which all values lie."""
        return edges_of_bucket(int(self.buckets[0]), self.shift)[0], edges_of_bucket(int(self.buckets[-1]), self.shift)[
            1
        ]

    # ------------------------------------------------------------------ on the wire

    def pack(self) -> dict[str, Any]:
        """The sketch as a message."""
        return {"buckets": self.buckets, "counts": self.counts, "digits": self.digits}

    @classmethod
    def unpack(cls, message: Any) -> Sketch:
        """The inverse of `pack`."""
        return cls(np.asarray(message["buckets"]), np.asarray(message["counts"]), int(message["digits"]))


def _count_leading(leading: Keys, digits: int) -> Sketch:
    low, high = int(leading.min()), int(leading.max())
    if high - low < 1 << 17:
        counts = np.bincount(leading - low)
        found = np.flatnonzero(counts)
        return Sketch(found + low, counts[found], digits)
    buckets, counts = np.unique(leading, return_counts=True)
    return Sketch(buckets, counts, digits)


def edges_of_bucket(bucket: int, shift: int) -> tuple[float, float]:
    """The smallest and the largest number whose key, without its last bits, is this bucket."""
    first = bucket << shift
    return number_of(first), number_of(first + (1 << shift) - 1)


def middle_of(bucket: int, shift: int) -> float:
    """The number in the middle of the keys that begin with these bits; the one number, if all bits are known."""
    low, high = edges_of_bucket(bucket, shift)
    if shift and bucket in (0, -1):  # below the least exponent of the sketch all are nothing
        return 0.0
    return low if low == high else low / 2 + high / 2


def positions_of(share: float, size: int) -> tuple[int, int, float]:
    """The two ranks between which `numpy.quantile` interpolates, and the weight of the upper."""
    place = share * (size - 1)
    low = min(int(np.floor(place)), size - 1)
    return low, min(low + 1, size - 1), place - low


def between(low: float, high: float, weight: float) -> float:
    """``low + weight (high - low)``, with NumPy's care for rounding."""
    return high - (high - low) * (1.0 - weight) if weight >= 0.5 else low + (high - low) * weight


def refine_counts(values: NDArray[Any], prefix: int, known: int, bits: int) -> NDArray[np.int64]:
    """Count the next bits of the values whose keys begin with ``prefix``, ``(2^bits,)``.

    Args:
        values: numbers.
        prefix: the leading ``known`` bits of a key, signed.
        known: how many bits are known.
        bits: how many are counted.
    """
    keys = keys_of(values[np.isfinite(values)] if values.dtype.kind == "f" else values)
    inside = keys[(keys >> (BITS - known)) == prefix]
    left = BITS - known - bits
    return np.bincount((inside >> left) & ((1 << bits) - 1), minlength=1 << bits)
