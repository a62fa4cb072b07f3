"""The server's search for the values that become cuts, by counts over all parties.

The server knows intervals of single-precision numbers (`atoll.trees.cuts`), and how many rows each holds. It finds by XGBoost's rule (`atoll.trees.sketch`) which intervals hold
cuts, as if the rows inside an interval had different values, and asks for the parts of these intervals. It is done when all of them are single values. The cuts are then those
that XGBoost finds on the union of the rows, if

* at most 257 values are different: all of them are found;
* or the rows are at most 2,048, or at most 2,048 values are different;
* or the rows are at most 8,194 and all of them have different values, but for the lowest, the highest and those that are cuts.

The numbers are those of 256 bins. In other cases XGBoost's choice depends on more values. With ``exact`` the server asks for all of them, where the rows are at most 8,194 or the
different values at most 4,097 (more of many rows). Beyond that it depends on the order of the rows, which counts do not show, and a cut can be some ranks from XGBoost's, as XGBoost's own
are in another order. `atoll.trees.blocks` finds XGBoost's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .cuts import BITS, FIRST, STEP, value_of
from .sketch import SketchSizes, pruned

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CutSearch"]

_CONTACTS = 12
"""Five contacts find single values; a heavy lowest value moves the ranks once they are known, which may take a few more."""


@dataclass
class CutSearch:
    """The search for the cuts of several features.

    Args:
        features: how many.
        bins: at most so many bins of a feature.
        exact: whether to find all values where XGBoost's choice depends on more than those that become cuts.
    """

    features: int
    bins: int
    exact: bool = False
    contacts: int = 0
    _columns: list[_Column] = field(default_factory=list)
    _wanted: list[NDArray[np.int64]] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether all cuts are known, or the search has taken its contacts."""
        return self.contacts > 0 and (self.contacts >= _CONTACTS or not any(len(mine) for mine in self._wanted))

    def asked(self) -> dict[str, NDArray[np.uint32]]:
        """The intervals whose parts are counted next: where they begin and how many bits they share, ``(features, intervals)``; without bits it asks for nothing."""
        if not self.contacts:
            nothing = np.zeros((self.features, 1), np.uint32)
            return {"starts": nothing, "bits": nothing}
        made = np.zeros((2, self.features, max(len(mine) for mine in self._wanted)), np.uint32)
        for f, (column, mine) in enumerate(zip(self._columns, self._wanted, strict=True)):
            made[0, f, : len(mine)], made[1, f, : len(mine)] = column.starts[mine], column.bits[mine]
        return {"starts": made[0], "bits": made[1]}

    def take(self, counts: NDArray[np.int64]) -> None:
        """Learn the counts of the parts, ``(features, parts)``."""
        if not self.contacts:
            self._columns = [_Column.of(row) for row in counts]
        else:
            for column, mine, row in zip(self._columns, self._wanted, counts, strict=True):
                column.divide(mine, row[: len(mine) << STEP].reshape(-1, 1 << STEP))
        self.contacts += 1
        self._wanted = [column.wanted(self.bins, self.exact) for column in self._columns]

    def cuts(self) -> list[NDArray[np.float32]]:
        """Where the bins of each feature begin, ascending; its lowest value is not among them."""
        return [column.cuts(self.bins) for column in self._columns]


@dataclass
class _Column:
    """The intervals of one feature that hold rows, ascending: where they begin, how many bits their keys share, and their rows."""

    starts: NDArray[np.uint32]
    bits: NDArray[np.uint32]
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, counts: NDArray[np.int64]) -> _Column:
        held = np.flatnonzero(counts > 0)
        starts = held.astype(np.uint32) << np.uint32(BITS - FIRST)
        return cls(starts, np.full(len(held), FIRST, np.uint32), counts[held])

    def divide(self, mine: NDArray[np.int64], parts: NDArray[np.int64]) -> None:
        """Put the parts of some intervals in their place."""
        bits = self.bits[mine] + np.uint32(STEP)
        names = np.arange(1 << STEP, dtype=np.uint32) << (np.uint32(BITS) - bits[:, None])
        kept = np.delete(np.arange(len(self.starts)), mine)
        starts = np.concatenate((self.starts[kept], (self.starts[mine][:, None] + names).ravel()))
        bits = np.concatenate((self.bits[kept], np.repeat(bits, 1 << STEP)))
        rows = np.concatenate((self.rows[kept], parts.ravel()))
        order = np.argsort(starts, kind="stable")
        order = order[rows[order] > 0]
        self.starts, self.bits, self.rows = starts[order], bits[order], rows[order]

    def wanted(self, bins: int, exact: bool) -> NDArray[np.int64]:
        """The intervals that hold cuts and are wider than one value; with ``exact``, all that matter to XGBoost's choice."""
        held = self._held(bins)
        if exact and self._others_matter(bins):
            held = np.arange(len(self.rows))
        return held[self.bits[held] < BITS]

    def cuts(self, bins: int) -> NDArray[np.float32]:
        last = SketchSizes.of(int(self.rows.sum()), bins).bins
        found = value_of(self.starts[self._held(bins)][1:last])
        return found[np.isfinite(found)]

    def _others_matter(self, bins: int) -> bool:
        total = int(self.rows.sum())
        sizes = SketchSizes.of(total, bins)
        limit, middle, last = sizes.steps
        return total > middle and len(self.rows) > last and (total <= sizes.queue or self._different() <= limit)

    def _held(self, bins: int) -> NDArray[np.int64]:
        """The intervals that hold the entries of XGBoost's last sketch."""
        total, single = int(self.rows.sum()), self.bits == BITS
        sizes = SketchSizes.of(total, bins)
        if len(self.rows) <= sizes.steps[-1]:
            return np.arange(len(self.rows))
        limit, middle, last = sizes.steps
        different = self._different()
        if different <= middle or (total > sizes.queue and not (single.all() and different <= limit)):
            least, most = (int(self.rows[end]) if single[end] else 1 for end in (0, -1))
            return pruned(np.cumsum(self.rows) - self.rows, self.rows, last, (least, most))
        owner = np.repeat(np.arange(len(self.rows)), np.where(single, 1, self.rows))
        rows = np.where(single[owner], self.rows[owner], 1)
        below = np.cumsum(rows) - rows
        for size in sizes.steps:
            if different > size:
                kept = pruned(below, rows, size)
                owner, below, rows = owner[kept], below[kept], rows[kept]
        return np.unique(owner)

    def _different(self) -> float:
        """How many values are different. Of rows whose value is not known yet, those at equal steps of rank that are known tell by how many others share theirs."""
        single, ends, steps = self.bits == BITS, np.cumsum(self.rows), 256
        at = np.searchsorted(ends, np.arange(steps) * (ends[-1] / steps), side="right")
        alike = self.rows[at][single[at] & (self.rows[at] < ends[-1] / steps)]
        share = float(np.mean(1 / alike)) if len(alike) else 1.0
        return int(single.sum()) + share * float(self.rows[~single].sum())
