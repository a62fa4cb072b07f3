"""The encodings of a secure sum, by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.errors import CompositionError
from atoll.secure import FixedPoint
from atoll.secure.words.fixed import spare

from .settings import SumSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from atoll.core.requests.stage import Stage

__all__ = ["ENCODINGS", "Encoding", "range_of"]


@dataclass(frozen=True)
class Encoding:
    """How arrays become words.

    Attributes:
        bound: number of survivors -> largest error of an entry of their sum, if nothing is clamped or overflows.
        modulus_bits: bits of a word.
        bits_per_weight: bits that a party sends for each of its numbers, without keys and shares.
        codec: how numbers become words.
        uplink: stages.
    """

    bound: Callable[[int], float]
    modulus_bits: int
    bits_per_weight: float
    codec: FixedPoint = field(default_factory=FixedPoint)
    uplink: Sequence[Stage] = ()


def range_of(settings: SumSettings, arrays: Sequence[NDArray[np.float64]]) -> float:
    """The public range of the values: as typed, or the largest magnitude in the arrays."""
    return settings.value_range or largest(arrays) or 1.0


def largest(arrays: Sequence[NDArray[np.float64]]) -> float:
    """The largest magnitude of a finite number in the arrays."""
    return max((float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) for a in arrays), default=0.0)


def fixed(settings: SumSettings, arrays: Sequence[NDArray[np.float64]]) -> Encoding:
    """Fixed point, see `FixedPoint`: ``p = bits + ceil(log2 parties)``.

    Raises:
        CompositionError: a word cannot hold the sum.
    """
    extra = spare(len(arrays))
    bits = settings.bits or min(24, (settings.modulus_bits or 64) - extra)
    if settings.modulus_bits is not None and settings.modulus_bits < bits + extra:
        raise CompositionError(
            f"words of {settings.modulus_bits} bits cannot hold a sum of {len(arrays)} values of {bits} bits",
            where="--modulus-bits",
            remedy=f"use --modulus-bits {bits + extra} or more, or --bits {max(2, settings.modulus_bits - extra)}",
        )
    codec = FixedPoint(value_bits=bits, value_range=range_of(settings, arrays))
    modulus, unit, _ = codec.narrow("sum", len(arrays), codec.value_range or 1.0)
    step = math.ldexp(1.0, unit)
    # The largest whole number is one unit below the range, so a value at the range itself is off by up to a unit.
    at_range = largest(arrays) > step * (2 ** (bits - 1) - 1.5)
    return Encoding(lambda n: n * step * (1.0 if at_range else 0.5), modulus, float(modulus), codec)


ENCODINGS: dict[str, Callable[[SumSettings, Sequence[NDArray[np.float64]]], Encoding]] = {"fixed": fixed}
"""Name -> function of the settings and all parties' arrays, which stand for what is public."""
