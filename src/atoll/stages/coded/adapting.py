"""Ranges and word lengths that follow what was counted in the last sum, within bounds that are set beforehand.

Round parameters have, beside scale and zero point, ``spread`` (the range is so many times that of the mean), ``word`` (bits of a word, ``p``) and ``hold`` (fits for which words do not shrink). With each fit:

* **Range.** If more than the share ``adapt`` of the entries was clamped, the factor grows by 1.5; if less than a quarter of it, it shrinks by 0.9.
* **Wrapped sums fit nothing.** If more than the share ``adapt`` of the sums overflowed, their mean is no guide: the scale stays. If words are as long as they may be, scale and factor double.
* **Words.** If more than the share ``adapt`` of the sums overflowed, ``p`` grows by a bit, by two if more than ten times as many did, and does not shrink at the next eight fits.
  Otherwise it goes to the length that the last sum needs with a bit to spare (`bits_for`): up at once, down by a bit a fit.

Only counts of the current version move anything, so that an old version's replies, which come late, are not answered twice. If overflows are not known, ``p`` is the most.

All of it follows from sums that the server has: the mean, the number of clamped entries of all parties together, and check words. So the choice tells
nobody more. A server that lies may choose any range and ``p`` within the form of the stage; what it learns is then the sum of other roundings of the same updates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atoll.core.algebra.tree import Tree

__all__ = ["Bounds", "begun", "bits_for", "exceeded"]

_HOLD = 8


def begun(spread: float, word: int) -> dict[str, Any]:
    """The parameters of the first fit."""
    return {"spread": float(spread), "word": int(word), "hold": 0}


def bits_for(most: float) -> int:
    """The length of a word for sums up to ``most`` in magnitude, with a sign and a bit to spare: a sum may be twice as large as the last."""
    return 2 + math.ceil(math.log2(most + 1))


def exceeded(known: Tree, told: Mapping[str, int], share: float) -> bool:
    """Whether more than a share was clamped or overflowed under these parameters."""
    if told["version"] != known["version"]:
        return False
    return _clamped(told) > share or (_overflowed(told) or 0.0) > share


def _clamped(told: Mapping[str, int]) -> float:
    return told["clamped"] / max(1, told["coded"])


def _overflowed(told: Mapping[str, int]) -> float | None:
    """The share of sums that wrapped around; ``None`` if it is not known."""
    return None if told.get("unchecked") or "overflowed" not in told else told["overflowed"] / max(1, told["words"])


@dataclass(frozen=True)
class Bounds:
    """What is tolerated, and how far parameters may move.

    Attributes:
        share: of clamped entries and of overflowed sums.
        least_spread: smallest factor of the range.
        most_spread: largest.
        least_word: smallest word length.
        most_word: largest.
    """

    share: float
    least_spread: float
    most_spread: float
    least_word: int
    most_word: int

    def spread(self, known: Tree, told: Mapping[str, int] | None) -> float:
        """The next factor of the range."""
        before = float(known["spread"])
        if told is None or told["version"] != known["version"]:
            return before
        if self.wrapped(known, told):
            return min(self.most_spread, 2 * before) if int(known["word"]) >= self.most_word else before
        clamped = _clamped(told)
        factor = 1.5 if clamped > self.share else 0.9 if clamped < self.share / 4 else 1.0
        return min(self.most_spread, max(self.least_spread, before * factor))

    def wrapped(self, known: Tree, told: Mapping[str, int] | None) -> bool:
        """Whether so many sums overflowed under these parameters that their mean is no guide."""
        current = told is not None and told["version"] == known["version"]
        return told is not None and current and (_overflowed(told) or 0.0) > self.share

    def steered(self, known: Tree, told: Mapping[str, int] | None, spread: float, needed: int) -> dict[str, Any]:
        """The next factor and word length.

        Args:
            known: the parameters so far.
            told: what was counted in the last sum.
            spread: the next factor of the range.
            needed: the length that the last sum needs under the next scale.
        """
        word, hold = int(known["word"]), int(known["hold"])
        if told is not None and told["version"] == known["version"]:
            lost = _overflowed(told)
            if lost is None:
                word, hold = self.most_word, 0
            elif lost > self.share:
                word, hold = word + (2 if lost > 10 * self.share else 1), _HOLD
            elif needed >= word or not hold:
                word, hold = max(word - 1, needed), max(0, hold - 1)
            else:
                hold -= 1
        return {"spread": spread, "word": min(self.most_word, max(self.least_word, word)), "hold": hold}
