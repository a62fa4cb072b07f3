"""Slots: one array of a reply as a run of words in its lane."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.errors import DataError
from atoll.core.message import Words

__all__ = ["Slot"]

Array = np.ndarray[Any, np.dtype[Any]]
_PIECE = 1 << 16


@dataclass(frozen=True)
class Slot:
    """One array of a party's totals, and its place among the words.

    Attributes:
        path: name of the total and path of the leaf, for errors.
        dtype: the array's dtype.
        shape: the array's shape.
        bits: word length, and so the lane.
        start: place of its first word in the lane.
        unit: the exponent of its unit: a whole number ``q`` stands for ``q 2^unit``; ``None`` for words that a stage has made.
        limit: the largest magnitude of a whole number.
        clamps: whether a larger one is clamped and counted; otherwise it is refused.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    bits: int
    start: int
    unit: int | None = 0
    limit: int = 0
    clamps: bool = False

    @property
    def size(self) -> int:
        """Number of words."""
        return math.prod(self.shape)

    @property
    def where(self) -> slice:
        """Its words in the lane."""
        return slice(self.start, self.start + self.size)

    @property
    def whole(self) -> bool:
        """Whether the array holds whole numbers."""
        return np.dtype(self.dtype).kind in "iub"

    def put(self, block: Array, into: Array) -> tuple[Array | None, Array | None]:
        """Write the words of a block of clients.

        Args:
            block: the arrays, with a leading client axis.
            into: the lane, ``(clients, words)``; changed in place.

        Returns:
            How many numbers of each client were clamped, ``(clients,)``, and whether a client has a number that does not fit; ``None`` for none.
        """
        rows = block.reshape(len(block), -1)
        if self.unit is None:
            into[:, self.where] = Words.reduced(rows) if isinstance(rows, Words) else rows
            return None, None
        if self.whole:
            return None, self._put_whole(rows, into)
        return self._put_numbers(rows, into[:, self.where])

    def _put_numbers(self, rows: Array, into: Array) -> tuple[Array | None, Array | None]:
        """Round, some columns at a time, so that they stay in the processor's cache."""
        # Whole numbers below 2^24 are exact in single precision too, and products with a power of two always are.
        short = rows.dtype == np.float32 and self.limit < 1 << 24 and into.dtype.itemsize == 4
        dtype, whole = (np.float32, np.int32) if short else (np.float64, np.int64)
        scale, over = dtype(2.0**-self.unit), np.zeros(len(rows), dtype=np.int64)  # type: ignore[operator]
        step = max(1, _PIECE // max(1, len(rows)))
        largest = dtype(self.limit)
        if (
            int(largest) > self.limit
        ):  # above 2^53 a float rounds the limit up, to one whole number more than a sum can hold
            largest = np.nextafter(largest, dtype(0))
        for start in range(0, rows.shape[1], step):
            with np.errstate(over="ignore"):  # infinity is above the limit too
                numbers = np.multiply(rows[:, start : start + step], scale, dtype=dtype)
            np.rint(numbers, out=numbers)
            if max(float(numbers.max()), -float(numbers.min())) > largest:
                over += (np.abs(numbers) > largest).sum(axis=1)
                np.clip(numbers, -largest, largest, out=numbers)
            if into.dtype.itemsize == np.dtype(whole).itemsize:
                np.copyto(into[:, start : start + step].view(whole), numbers, casting="unsafe")
            else:
                into[:, start : start + step] = numbers.astype(whole)
        if not over.any():
            return None, None
        return (over, None) if self.clamps else (None, over > 0)

    def _put_whole(self, rows: Array, into: Array) -> Array | None:
        over = (rows > self.limit) | (rows < -self.limit) if rows.dtype.kind != "b" else np.zeros(rows.shape, bool)
        into[:, self.where] = rows.astype(np.int64).astype(into.dtype)
        return np.asarray(over.any(axis=1)) if over.any() else None

    def take(self, lane: Words) -> Any:
        """The array of a sum's words; a scalar if it has no axes. Words that a stage has made stay whole numbers modulo ``2^bits``."""
        mine = Words.of(lane[self.where], self.bits)
        if self.unit is None:
            return Words.of(mine.reduced(), self.bits).reshape(self.shape)
        numbers: Array = mine.lifted()
        if not self.whole:
            numbers = numbers * 2.0**self.unit
        return numbers.astype(self.dtype).reshape(self.shape)[()]

    def unfit(self, party: str, n: int) -> DataError:
        """The error of a party whose number does not fit."""
        most = self.limit if self.unit is None else self.limit * 2.0**self.unit
        return DataError(
            f"a number of {self.path!r} is above {most:g} in magnitude, the most that a word of {self.bits} bits holds in a sum of {n}",
            where=party or None,
            remedy="scale it down, clip it, or send it as another role",
        )
