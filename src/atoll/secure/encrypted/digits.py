"""Whole numbers on their way into plaintexts: how many bits a party's number has, and how many their sum needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError, DataError

__all__ = ["Digits", "Form", "Numbers", "checked", "from_slots", "parties_of", "slot_count", "to_slots"]


@dataclass(frozen=True)
class Digits:
    """What every party encrypts, the same at all parties and public.

    Attributes:
        size: how many numbers.
        bits: each party's numbers are in ``[0, 2^bits)``.
        parties: at most this many parties add up.

    Raises:
        ConfigError: a sum needs more than 64 bits.
    """

    size: int
    bits: int
    parties: int

    def __post_init__(self) -> None:
        if self.size < 0 or self.bits < 1 or self.parties < 1 or self.width > 64:
            raise ConfigError(
                f"{self.size} numbers of {self.bits} bits from {self.parties} parties",
                where="encrypted sum",
                remedy="a sum has at most 64 bits; use fewer bits a number",
            )

    @property
    def guard(self) -> int:
        """Guard bits: ``ceil(log2 parties)``."""
        return (self.parties - 1).bit_length()

    @property
    def width(self) -> int:
        """Bits of a sum: ``bits + ceil(log2 parties)``, so that no sum carries into its neighbour."""
        return self.bits + self.guard

    def check(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the numbers, after checking that they have this form.

        Raises:
            DataError: they have not.
        """
        found = np.ascontiguousarray(numbers, dtype=np.uint64).ravel()
        largest = int(found.max(initial=0))
        if found.size != self.size or largest >> self.bits:
            raise DataError(
                f"{found.size} numbers up to {largest}, for {self.size} numbers of {self.bits} bits",
                where="encrypted sum",
                remedy="encrypt what the form says",
            )
        return found


Form: TypeAlias = Sequence[Digits]
"""The arrays of one ciphertext."""
Numbers: TypeAlias = Sequence[NDArray[np.uint64]]
"""Arrays, one for each of a form."""


def checked(numbers: Numbers, form: Form) -> list[NDArray[np.uint64]]:
    """Return arrays, after checking that each has its form.

    Raises:
        DataError: one has not.
    """
    return [each.check(row) for each, row in zip(form, numbers, strict=True)]


def to_slots(numbers: NDArray[np.uint64], form: Digits, capacity: int) -> NDArray[np.uint64]:
    """Return the slots of a plaintext, each below ``2^capacity`` also after adding up.

    Several numbers share a slot, side by side, if their sums fit; a number whose sum is too wide takes several slots, low bits first.
    """
    if form.width <= capacity:
        per = capacity // form.width
        padded = np.zeros(-(-form.size // per) * per, dtype=np.uint64)
        padded[: form.size] = numbers
        rows = padded.reshape(-1, per)
        shifts = np.arange(per, dtype=np.uint64) * np.uint64(form.width)
        return np.asarray(np.bitwise_or.reduce(rows << shifts, axis=1), dtype=np.uint64)
    limb = _limb(form, capacity)
    shifts = np.arange(-(-form.bits // limb), dtype=np.uint64) * np.uint64(limb)
    return np.asarray((numbers[:, None] >> shifts) & _ones(limb)).ravel()


def from_slots(slots: NDArray[np.uint64], form: Digits, capacity: int) -> NDArray[np.uint64]:
    """Return the sums of the numbers from sums of slots; slots behind the last number are ignored."""
    if form.width <= capacity:
        per = capacity // form.width
        rows = slots[: -(-form.size // per)]
        shifts = np.arange(per, dtype=np.uint64) * np.uint64(form.width)
        return np.asarray((rows[:, None] >> shifts) & _ones(form.width)).ravel()[: form.size]
    limb = _limb(form, capacity)
    count = -(-form.bits // limb)
    shifts = np.arange(count, dtype=np.uint64) * np.uint64(limb)
    rows = slots[: form.size * count].reshape(-1, count)
    return np.asarray((rows << shifts).sum(axis=1, dtype=np.uint64))


def slot_count(form: Digits, capacity: int) -> int:
    """Return how many slots the numbers take."""
    if form.width <= capacity:
        return -(-form.size // (capacity // form.width))
    return form.size * -(-form.bits // _limb(form, capacity))


def parties_of(form: Form, capacity: int) -> int:
    """Return how many parties add up at most, after checking that their numbers fit slots."""
    for each in form:
        slot_count(each, capacity)
    return max((each.parties for each in form), default=0)


def _limb(form: Digits, capacity: int) -> int:
    if capacity <= form.guard:
        raise ConfigError(
            f"{form.parties} parties, in slots of {capacity} bits",
            where="encrypted sum",
            remedy="use fewer parties, or a scheme with larger plaintexts",
        )
    return capacity - form.guard


def _ones(bits: int) -> np.uint64:
    return np.uint64((1 << bits) - 1)
