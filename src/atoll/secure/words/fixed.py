"""Fixed point: numbers as whole numbers, which add up exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass

from atoll.core.errors import CompositionError, ConfigError
from atoll.core.validation import Checked

__all__ = ["FixedPoint"]

LEAST, MOST = 8, 64
"""Bits of a word."""
_UNIT = -24
_FINEST = -1000
"""Exponent of the smallest unit: its inverse is still a number in double precision."""
_HEAVIEST = 2.0**16


@dataclass(frozen=True)
class FixedPoint(Checked):
    """How numbers become words of ``p`` bits: ``word = round(x / unit) mod 2^p``, and back from a sum by the centred lift.

    ================================================  =========================================  ===============================================
    what                                              ``p`` for ``n`` parties                    a number that does not fit
    ================================================  =========================================  ===============================================
    floats of an update whose range is known          value bits (+ weight bits) + log2 n        is clamped, and counted
    floats of an update whose range is not known      64, unit ``2^-24``                         is refused at the party, by name
    weights, counts, metrics, reports, side values    64, unit ``2^-24``                         is refused at the party, by name
    whole numbers                                     64, unit 1                                 is refused at the party, by name
    votes                                             2 + log2 n, at least 8                     cannot happen
    words that an uplink stage makes                  as the stage says                          the stage's own rule
    ================================================  =========================================  ===============================================

    The range of an update is ``value_range``, or else the bound that the uplink promises, such as that of ``Clip(1.0)``. It is rounded up to a power of two,
    so that units are powers of two and products with them are exact. ``log2 n`` is rounded up. For a ``Mean`` the word holds ``weight * value``, so it needs
    weight bits too; for a ``Sum`` it does not. The mean of ``n`` parties then errs by at most ``n unit / (2 sum of weights)``, a sum by ``n unit / 2``.

    Attributes:
        value_bits: bits of one value, with its sign.
        weight_bits: bits by which a weight multiplies it; weights are counted in steps of ``max_weight / 2^weight_bits`` at this precision, never rounded alone.
        max_weight: largest weight of a party, public; a party above it refuses to reply. By default ``2^16`` where the range is known, no limit elsewhere.
        value_range: largest magnitude of a value.

    Raises:
        ConfigError: a number makes no sense.
    """

    value_bits: int = 24
    weight_bits: int = 8
    max_weight: float | None = None
    value_range: float | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.value_bits <= 62 or not 0 <= self.weight_bits <= 40:
            raise ConfigError(
                f"value_bits={self.value_bits}, weight_bits={self.weight_bits}",
                where="FixedPoint",
                remedy="use 2 to 62 value bits and 0 to 40 weight bits",
            )
        for name in ("max_weight", "value_range"):
            given = getattr(self, name)
            if given is not None and not (math.isfinite(given) and given > 0):
                raise ConfigError(f"{name}={given}", where="FixedPoint", remedy="use a positive number")

    def range_of(self, bound: float | None) -> float | None:
        """The range of an update's values, given the bound that the uplink promises."""
        return self.value_range if self.value_range is not None else bound

    def heaviest(self, bound: float | None) -> float | None:
        """The largest weight of a party; ``None`` sets no limit."""
        return self.max_weight or (None if self.range_of(bound) is None else _HEAVIEST)

    def narrow(self, kind: str, parties: int, bound: float) -> tuple[int, int, int]:
        """Word length, exponent of the unit and largest whole number of an update's floats.

        Args:
            kind: of the aggregate, ``mean`` or ``sum``.
            parties: the largest number of parties in the sum.
            bound: the range.

        Raises:
            CompositionError: the numbers need words of more than 64 bits.
        """
        weighted = kind == "mean"
        bits = self.value_bits + (self.weight_bits if weighted else 0)
        unit = _exponent(bound) + 1 - self.value_bits
        unit += _exponent(self.max_weight or _HEAVIEST) - self.weight_bits if weighted else 0
        length = bits + spare(parties)
        if length > MOST:
            raise CompositionError(
                f"{self.value_bits} value bits, {self.weight_bits if weighted else 0} weight bits and a sum of {parties} parties need words of {length} bits",
                where="FixedPoint",
                remedy=f"use value_bits={max(2, self.value_bits - (length - MOST))} or fewer weight bits: a word has at most {MOST}",
            )
        return max(LEAST, length), max(_FINEST, unit), 2 ** (bits - 1) - 1

    def length(self, bound: float | None, parties: int) -> int:
        """Bits of a word of an update's value; see `narrow` and `wide`.

        Args:
            bound: largest magnitude of the values, as the uplink promises it.
            parties: largest number of parties in the sum.
        """
        known = self.range_of(bound)
        return self.wide(parties, whole=False)[0] if known is None else self.narrow("mean", parties, known)[0]

    @staticmethod
    def wide(parties: int, *, whole: bool) -> tuple[int, int, int]:
        """The same for numbers of any size."""
        return MOST, 0 if whole else _UNIT, 2 ** (MOST - 1 - spare(parties)) - 1

    @staticmethod
    def votes(parties: int) -> tuple[int, int, int]:
        """The same for signs."""
        return max(LEAST, 2 + spare(parties)), 0, 1


def spare(parties: int) -> int:
    """Bits by which a sum of so many numbers is longer than one of them: ``ceil(log2 parties)``."""
    return max(0, parties - 1).bit_length()


def _exponent(x: float) -> int:
    """The least ``e`` with ``x <= 2^e``."""
    fraction, exponent = math.frexp(x)
    return exponent - 1 if fraction == 0.5 else exponent
