"""The contract of a local index: it finds rows of a site's own table by a range of a column, or by a box and by nearness of a point.

An index is built from keys in the order of their rows, and answers with numbers of rows. It is exact: what it finds is what a scan finds, whatever it has learned, because each model knows its largest error from
all keys that it was built on. What is asked comes as arrays, many ranges at once, and answers as *runs*: all rows one after the other, and where those of each question begin.

An index of Atoll is one file here with one class, and one line in the stub. A module of your own adds others as soon as it is imported: a class with a name, and `build` with `rank`, or with `spans` and `near`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError, DataError

__all__ = [
    "LARGEST",
    "KeyIndex",
    "LocalIndex",
    "PointIndex",
    "RowRuns",
    "expand_spans",
    "known_indexes",
    "measure_distances",
    "require_keys",
    "search_within",
]

_AT_ONCE, _LOOKED, _PARTS = 512, 64, (1 / 16, 1 / 4, 1.0)
"""Points that are asked for together, rows that bound a distance, and parts of the bound that are tried."""
Floats = NDArray[np.float64]
Places = NDArray[np.int64]


LARGEST = 1e300
"""Keys lie between it and its opposite, so that differences are finite."""


class RowRuns(NamedTuple):
    """Rows that several questions found.

    Attributes:
        rows: their numbers, those of the first question first.
        starts: where the rows of each question begin, and at last how many there are.
    """

    rows: Places
    starts: Places

    def of(self, k: int) -> Places:
        """The rows of one question."""
        return self.rows[self.starts[k] : self.starts[k + 1]]


class LocalIndex:
    """Base class of all local indexes.

    Attributes:
        name: what a policy calls it.
    """

    name: ClassVar[str] = ""
    inserts: ClassVar[bool] = False
    """Whether rows may be added to it."""

    @property
    def bytes(self) -> int:
        """Bytes of its arrays."""
        return sum(one.nbytes for one in vars(self).values() if isinstance(one, np.ndarray)) + sum(one.bytes for one in vars(self).values() if isinstance(one, LocalIndex))  # fmt: skip


def known_indexes() -> Mapping[str, type[LocalIndex]]:
    """Name -> index: those of Atoll, and those of modules that are imported."""
    home: Any = importlib.import_module("atoll.query.indexes")
    for name in dir(home):
        getattr(home, name)  # loads the module
    waiting, found = [LocalIndex], dict[str, type[LocalIndex]]()
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.name:
            found.setdefault(kind.name, kind)
    return dict(sorted(found.items()))


def search_within(keys: Floats, asked: Floats, low: Places, high: Places) -> Places:
    """The first place from ``low`` to ``high`` whose key is not below what is asked; ``high`` if there is none: a binary search in a window of each question.

    Args:
        keys: ascending within every window.
        asked: what is looked for, shape ``(m,)``.
        low: where windows begin.
        high: where they end, behind the last key.
    """
    low, high = low.copy(), np.maximum(low, high)
    width = int((high - low).max(initial=0))
    for _ in range(width.bit_length()):
        middle = (low + high) >> 1
        open_ = low < high
        below = open_ & (keys[np.minimum(middle, len(keys) - 1)] < asked)
        low = np.where(below, middle + 1, low)
        high = np.where(open_ & ~below, middle, high)
    return low


def expand_spans(starts: Places, stops: Places) -> tuple[Places, Places]:
    """The places of many spans, one span after the other, and which span each is of."""
    lengths = np.maximum(0, stops - starts)
    span = np.repeat(np.arange(len(starts)), lengths)
    return np.arange(len(span)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + starts[span], span


def require_keys(values: Any, where: str, width: int = 1) -> Floats:
    """Keys as numbers, or points of two.

    Raises:
        ConfigError: they have another shape.
        DataError: one is missing, or beyond `LARGEST`.
    """
    made = np.asarray(values, np.float64)
    if made.ndim != width or (width == 2 and made.shape[1] != 2):
        raise ConfigError(f"an array of shape {made.shape}", where=where, remedy="give one key a row" if width == 1 else "give two coordinates a row")  # fmt: skip
    if not (np.abs(made) <= LARGEST).all():
        raise DataError(f"a key is missing, or beyond {LARGEST:g}", where=where, remedy="leave such rows out, and look at each of them")  # fmt: skip
    return made


class KeyIndex(LocalIndex):
    """An index of numbers.

    Args:
        keys: of each row, shape ``(n,)``, in any order; equal ones may be many.

    Raises:
        ConfigError: keys have another shape.
        DataError: a key is missing, or beyond `LARGEST`.
    """

    def __init__(self, keys: Any) -> None:
        made = require_keys(keys, self.name)
        self._rows = np.argsort(made, kind="stable").astype(np.int64)
        self._index(made[self._rows])

    def _index(self, ascending: Floats) -> None:
        unique, first = np.unique(ascending, return_index=True)
        self._starts = np.append(first, len(ascending)).astype(np.int64)
        self.build(unique)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def begins(self) -> Places:
        """Of each different key, the smallest first, how many rows are before its own; and at last how many there are."""
        return self._starts

    def build(self, keys: Floats) -> None:
        """Learn where keys are.

        Args:
            keys: ascending, each once.
        """
        raise NotImplementedError

    def rank(self, asked: Floats) -> Places:
        """How many different keys are below each of some numbers.

        Args:
            asked: finite numbers, shape ``(m,)``.
        """
        raise NotImplementedError

    def lookup(self, low: Any, high: Any) -> RowRuns:
        """The rows of ranges, both ends included, those of the smallest keys first.

        Args:
            low: shape ``(m,)``; may be infinite.
            high: as many.
        """
        ends = np.stack([np.asarray(low, np.float64), np.nextafter(np.asarray(high, np.float64), np.inf)])
        found = self.rank(np.clip(ends, -2 * LARGEST, 2 * LARGEST).ravel()).reshape(ends.shape)
        first, last = self._starts[found]
        places, question = expand_spans(first, last)
        counts = np.bincount(question, minlength=len(first))
        return RowRuns(self._rows[places], np.concatenate([[0], np.cumsum(counts)]))


class PointIndex(LocalIndex):
    """An index of points in a plane.

    Args:
        points: of each row, shape ``(n, 2)``, in any order; equal ones may be many.

    Raises:
        ConfigError: points have another shape.
        DataError: a coordinate is missing, or beyond `LARGEST`.
    """

    def __init__(self, points: Any) -> None:
        made = require_keys(points, self.name, 2)
        self._rows = np.arange(len(made))
        self._points = made
        if len(made):
            order = self.build(made)
            self._rows, self._points = order, made[order]

    def __len__(self) -> int:
        return len(self._rows)

    def build(self, points: Floats) -> Places:
        """Learn where points are; the order in which they are kept.

        Args:
            points: one or more.
        """
        raise NotImplementedError

    def spans(self, low: Floats, high: Floats) -> tuple[Places, Places, Places]:
        """Where the points of boxes are kept, and perhaps others: the box, the first place and the one behind the last, of as many spans as it takes.

        Args:
            low: the lower corners, shape ``(m, 2)``.
            high: the upper corners, none below the lower one.
        """
        raise NotImplementedError

    def of_row(self, row: int) -> Floats:
        """The point of a row."""
        made: Floats = self._points[np.flatnonzero(self._rows == row)[0]]
        return made

    def near(self, points: Floats) -> Places:
        """A place whose neighbors are close to each of some points; any place will do."""
        raise NotImplementedError

    def lookup(self, low: Any, high: Any) -> RowRuns:
        """The rows of boxes, their edges included, in ascending order.

        Args:
            low: the lower corners, shape ``(m, 2)``.
            high: the upper corners.
        """
        box, place = self._inside(np.asarray(low, np.float64), np.asarray(high, np.float64))
        rows = self._rows[place]
        order = np.lexsort((rows, box))
        counts = np.bincount(box, minlength=len(low))
        return RowRuns(rows[order], np.concatenate([[0], np.cumsum(counts)]))

    def _inside(self, low: Floats, high: Floats) -> tuple[Places, Places]:
        """The boxes and places of points in boxes."""
        real = np.flatnonzero((low <= high).all(axis=1))
        if not len(self) or not len(real):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        question, first, last = self.spans(low[real], high[real])
        place, span = expand_spans(first, last)
        box = real[question[span]]
        points = self._points[place]
        inside = ((points >= low[box]) & (points <= high[box])).all(axis=1)
        return box[inside], place[inside]

    def nearest(self, points: Any, k: int) -> Places:
        """The k rows nearest to each of some points, the nearest first and of equal distances the first row; -1 where there are fewer rows. Shape ``(m, k)``.

        The k-th distance among some rows is no smaller than that among all. So all that can be nearer lie in a circle of that size, and if a smaller circle has k rows, in that one.
        """
        asked = require_keys(points, self.name, 2)
        found = np.full((len(asked), k), -1, np.int64)
        for begin in range(0, len(asked) if len(self) else 0, _AT_ONCE):
            self._nearest(asked[begin : begin + _AT_ONCE], k, found[begin : begin + _AT_ONCE])
        return found

    def _nearest(self, asked: Floats, k: int, found: Places) -> None:
        size = min(len(self), max(_LOOKED, 2 * k))
        begin = np.clip(self.near(asked) - size // 2, 0, len(self) - size)
        some = self._points[begin[:, None] + np.arange(size)]
        enough = min(k, len(self))
        most = np.partition(measure_distances(asked[:, None], some), enough - 1, axis=1)[:, enough - 1]
        waiting = np.arange(len(asked))
        for part in _PARTS:  # the neighbors on a curve may be far away: a smaller circle may hold k rows already
            # A distance that is computed may be a little too small, and 0 for differences whose squares are.
            radius = part * most[waiting]
            reach, here = (radius * (1 + 1e-15) + 1e-150)[:, None], asked[waiting]
            box, place = self._inside(np.nextafter(here - reach, -np.inf), np.nextafter(here + reach, np.inf))
            distance, rows = measure_distances(here[box], self._points[place]), self._rows[place]
            done = np.bincount(box[distance <= radius[box]], minlength=len(waiting)) >= enough
            kept = done[box]
            box, distance, rows = box[kept], distance[kept], rows[kept]
            order = np.lexsort((rows, distance, box))
            box, rows = box[order], rows[order]
            turn = np.arange(len(box)) - np.searchsorted(box, box)
            found[waiting[box[turn < k]], turn[turn < k]] = rows[turn < k]
            waiting = waiting[~done]


def measure_distances(one: Floats, other: Floats) -> Floats:
    """Euclidean distances as local SQL computes them."""
    apart = one - other
    with np.errstate(over="ignore", under="ignore"):
        made: Floats = np.sqrt(apart[..., 0] * apart[..., 0] + apart[..., 1] * apart[..., 1])
    return made
