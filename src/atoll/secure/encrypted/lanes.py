"""From a party's words to the numbers that it encrypts, and from their sums back to sums of words.

A word of p bits in a sum of n parties is at most ``2^(p - 1 - g)`` in magnitude, ``g = ceil(log2 n)``: the codec sees to that. A party encrypts
``u = word + 2^(p - 1 - g) mod 2^p``, a whole number of ``p - g`` bits; sums of n of them need p bits. Words that an uplink stage makes wrap around
instead. They travel as they are, and their sums need ``p + g`` bits; where that is more than a scheme takes, low and high half travel apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .digits import Digits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ..words import WordLayout

__all__ = ["Lane", "lanes_of", "numbers_of", "words_of"]

_HALF = 32


@dataclass(frozen=True)
class Lane:
    """A lane of words as numbers to encrypt.

    Attributes:
        name: the lane's.
        bits: word length p.
        size: number of words.
        parties: at most so many add up.
        wraps: whether words wrap around.
        most: bits of the largest number that the scheme takes; larger ones travel in halves.
    """

    name: str
    bits: int
    size: int
    parties: int
    wraps: bool
    most: int

    @property
    def offset(self) -> int:
        """What a party adds to each word, ``2^(p - 1 - g)``; 0 for words that wrap around."""
        return 0 if self.wraps else 1 << (self.bits - 1 - (self.parties - 1).bit_length())

    @property
    def form(self) -> list[Digits]:
        """The numbers' form: one array, or two halves."""
        bits = self.bits if self.wraps else self.bits - (self.parties - 1).bit_length()
        parts = (bits,) if bits <= self.most else (_HALF, bits - _HALF)
        return [Digits(self.size, each, self.parties) for each in parts]

    def numbers(self, words: NDArray[Any]) -> list[NDArray[np.uint64]]:
        """Return a party's numbers from its words, ``(size,)``."""
        plain = (words.view(np.ndarray).astype(np.uint64) + np.uint64(self.offset)) & _ones(self.bits)
        if len(self.form) == 1:
            return [plain]
        return [plain & _ones(_HALF), plain >> np.uint64(_HALF)]

    def words(self, sums: Sequence[NDArray[np.uint64]], n: int) -> NDArray[np.uint64]:
        """Return the sum of the words of n parties, modulo ``2^p``, from the sums of their numbers."""
        total = sums[0] if len(sums) == 1 else sums[0] + (sums[1] << np.uint64(_HALF))
        return np.asarray((total - np.uint64((n * self.offset) & 0xFFFF_FFFF_FFFF_FFFF)) & _ones(self.bits))


def lanes_of(layout: WordLayout, most: int) -> list[Lane]:
    """Return the lanes of a layout, in order.

    Args:
        layout: of the totals.
        most: bits of the largest number that the scheme takes; see ``Scheme.most``.
    """
    made = {str(slot.bits) for slot in layout.slots if slot.unit is None}
    return [Lane(name, int(name), size, layout.parties, name in made, most) for name, size in layout.lengths.items()]


def numbers_of(lanes: Sequence[Lane], words: Mapping[str, NDArray[Any]]) -> list[NDArray[np.uint64]]:
    """Return a party's arrays to encrypt."""
    return [numbers for lane in lanes for numbers in lane.numbers(words[lane.name])]


def words_of(lanes: Sequence[Lane], sums: Sequence[NDArray[np.uint64]], n: int) -> dict[str, NDArray[np.uint64]]:
    """Return the sum of each lane's words from the sums of the arrays."""
    found, at = {}, 0
    for lane in lanes:
        end = at + len(lane.form)
        found[lane.name] = lane.words(sums[at:end], n)
        at = end
    return found


def _ones(bits: int) -> np.uint64:
    return np.uint64((1 << bits) - 1)
