"""The radius within which k rows of all owners lie: halved until it is as narrow as the precision, or chosen among rings for an approximate answer. No owner's count is seen; see `atoll.secure.owners`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.event import Laplace
from atoll.secure.owners import OwnerCircle, find_first_above, margin_of

from .spatial import DistanceRange

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["RadiusSearch", "choose_rows"]


class RadiusSearch:
    """The radius within which k rows lie, for each of E points, by halving.

    Args:
        reach: extent and precision of the distance.
        k: how many rows.
        distances: this owner's k smallest distances of each point, ascending, infinite where there are none; shape ``(E, k)``.
        radii: radii that are compared at once; more of them take fewer rounds and more comparisons.

    Attributes:
        comparisons: thresholds that were compared, each for all points.
        radius: the radius of each point; infinite if no circle of the extent holds k rows.
    """

    def __init__(self, reach: DistanceRange, k: int, distances: NDArray[np.float64], radii: int = 1) -> None:
        self.reach, self.k, self.distances, self.radii = reach, k, distances, radii
        self.comparisons = 0
        points = len(distances)
        self._low, self._high = np.zeros(points), np.full(points, reach.extent)
        self._known = np.zeros(points, bool)
        self._classes = math.ceil(math.log2(reach.extent / reach.precision))

    @property
    def radius(self) -> NDArray[np.float64]:
        """The radius of each point."""
        return np.where(self._known, self._high, np.inf)

    async def begin(self, circle: OwnerCircle) -> None:
        """Begin with the smallest power of two times the precision below which an owner has k rows of its own."""
        bounds = np.minimum(self.reach.precision * 2.0 ** np.arange(self._classes + 1), self.reach.extent)
        said = await circle.any(self.distances[:, -1:] <= bounds[None])
        self._known = np.asarray(said.any(axis=1))
        self._high = np.where(self._known, bounds[np.argmax(said, axis=1)], self._high)

    async def begin_privately(self, circle: OwnerCircle, island: Any, distances: NDArray[np.float64], epsilon: float, comparison: str) -> None:  # fmt: skip
        """The same, but what each owner says is differentially private; one comparison finds out whether it is true.

        Args:
            circle: the owners.
            island: this one; its ledger has the release before it leaves.
            distances: more distances than k, shape ``(1, m)``.
            epsilon: of one row of this owner.
            comparison: see `narrow`.
        """
        bounds = np.minimum(self.reach.precision * 2.0 ** np.arange(self._classes + 1), self.reach.extent)
        counts = (distances[0][None] <= bounds[:, None]).sum(axis=1)
        island.spend(Laplace(epsilon=epsilon))
        level = self.k + margin_of(len(bounds), epsilon)
        first = find_first_above(island.secret, counts.tolist(), level, epsilon)
        said = await circle.any(np.arange(len(bounds)) >= (len(bounds) if first is None else first))
        if not said.any():
            return
        bound = bounds[np.argmax(said)]
        held = await circle.reach((self.distances <= bound).sum(axis=1), self.k, comparison)
        self.comparisons += 1
        if held[0]:
            self._high[:], self._known[:] = bound, True
        else:
            self._low[:] = bound

    async def narrow(self, circle: OwnerCircle, comparison: str) -> None:
        """Halve the intervals until all are as narrow as the precision."""
        while (wide := np.flatnonzero(self._high - self._low > self.reach.precision * (1 + 1e-9))).size:
            parts = np.arange(1, self.radii + 1) / (self.radii + 1)
            low, high = self._low[wide, None], self._high[wide, None]
            tried = low + (high - low) * parts
            counts = (self.distances[wide][:, None, :] <= tried[:, :, None]).sum(axis=2)
            held = (await circle.reach(counts.reshape(-1), self.k, comparison)).reshape(tried.shape)
            first = np.where(held.any(axis=1), held.argmax(axis=1), self.radii)  # counts grow with the radius
            ends = np.concatenate([low, tried, high], axis=1)
            rows = np.arange(len(wide))
            self._low[wide], self._high[wide] = ends[rows, first], ends[rows, first + 1]
            self._known[wide] |= held.any(axis=1)
            self.comparisons += self.radii


async def choose_rows(circle: OwnerCircle, plan: Any, rows: Sequence[tuple[Any, ...]], *, own: bool, comparison: str) -> tuple[list[tuple[Any, ...]], int]:  # fmt: skip
    """An owner's rows of an approximate answer, and how many comparisons it took.

    Owners look for the smallest ring within which k rows lie. All rows of smaller rings are in the answer; those of the last one draw lots for the places that are left. So no row is farther than ``1 + error``
    times the k-th distance, unless that is below the precision.

    Args:
        circle: the owners.
        plan: the plan, with ``k`` and ``rings``.
        rows: this owner's k nearest rows, their distance first.
        own: whether to begin with the smallest ring that holds k rows of one owner.
        comparison: see `OwnerCircle.reach`.
    """
    rings = plan.rings
    near = np.array([math.inf if row[0] is None else row[0] for row in rows] or [math.inf])
    counts = (near[None] <= rings[:, None]).sum(axis=1)
    low, high, known, comparisons = -1, len(rings), False, 0
    if own:
        said = await circle.any(counts >= plan.k)
        if said.any():
            high, known = int(said.argmax()), True
    while high - low > 1:
        middle = (low + high) // 2
        held = bool((await circle.reach(counts[middle : middle + 1], plan.k, comparison))[0])
        low, high, known = (low, middle, True) if held else (middle, high, known)
        comparisons += 1
    if not known:  # no ring holds k rows: each owner gives its k nearest
        return list(rows), comparisons
    inner = [row for row, d in zip(rows, near, strict=False) if low >= 0 and d <= rings[low]]
    last = [row for row, d in zip(rows, near, strict=False) if d <= rings[high] and (low < 0 or d > rings[low])]
    (taken,) = (int(one) for one in await circle.add([len(inner)]))
    lots, _ = await circle.reserve(len(last))
    return [*inner, *(row for row, lot in zip(last, lots, strict=True) if lot < plan.k - taken)], comparisons
