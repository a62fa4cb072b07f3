"""Boosting on sums of histograms: the trees of all rows together.

The server's search for the values that become cuts, by counts over all parties.

The server knows intervals of single-precision numbers (`atoll.trees.sketch`), and how many rows each holds. It finds by XGBoost's rule (`atoll.trees.sketch`) which intervals hold
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
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import DataError
from atoll.core.federation.reducer import Plain

from . import columns as C
from .blocks import cuts_by_blocks
from .objectives import TreeLoss
from .parties import add_gradients, count_labels, count_values
from .sketch import BITS, FIRST, STEP, SketchSizes, pruned, value_of
from .tree import Ensemble, Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation

    from .job import Trees
    from .tree import Scores

__all__ = ["BestSplit", "CutSearch", "Growth", "TreeLimits", "first_guess", "grow_together"]


# A tree in growth at the server: which split each node gets, from sums of gradients alone.


_EPSILON = 1e-6
"""The least gain of a split, as in XGBoost."""
_NOTHING = 1e-7
"""The share of a node's second derivatives up to which no row lacks a feature: sums round, and masked ones are whole numbers of a unit."""
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class TreeLimits:
    """What trees may become, in XGBoost's terms: see `atoll.trees.Trees`.

    Attributes:
        single: whether scores are rounded to single precision where XGBoost rounds them. Splits whose gains differ by less are equal then, and the first counts,
            as in XGBoost; the sums must be exact.
    """

    eta: float
    max_depth: int
    reg_lambda: float
    gamma: float
    min_child_weight: float
    single: bool = False

    def weight(self, total: NDArray[np.float64]) -> NDArray[np.float64]:
        """``-G / (H + lambda)``."""
        made: NDArray[np.float64] = -total[..., 0] / (total[..., 1] + self.reg_lambda)
        return made

    def score(self, total: NDArray[np.float64]) -> NDArray[np.float64]:
        """``G^2 / (H + lambda)``; 0 for nothing."""
        below = total[..., 1] + self.reg_lambda
        made: NDArray[np.float64] = np.divide(total[..., 0] ** 2, below, out=np.zeros_like(below), where=below > 0)
        return made.astype(np.float32) if self.single else made

    def allow(self, left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which splits leave both sides enough second derivatives."""
        least = self.min_child_weight
        made: NDArray[np.bool_] = (left[..., 1] >= least) & (right[..., 1] >= least)
        return made & (right[..., 1] > 0) & (left[..., 1] > 0)


@dataclass(frozen=True)
class BestSplit:
    """The split of a node.

    Attributes:
        gain: what it gains.
        feature: which feature it looks at.
        cut: rows up to this bin go left.
        default_left: whether rows without the feature do.
        left: sums of the rows that go left.
        right: of the others.
    """

    gain: float
    feature: int
    cut: int
    default_left: bool
    left: NDArray[np.float64]
    right: NDArray[np.float64]


@dataclass
class Growth:
    """One tree, level by level.

    Chen, Guestrin 2016, equation 7: the gain of a split is ``G_L^2 / (H_L + lambda) + G_R^2 / (H_R + lambda) - G^2 / (H + lambda)`` (theirs
    is half of it), and it must exceed ``gamma``. Of two children, parties add up the one with less weight; the other is the difference to their parent.

    Where features are missing (section 3.4 there), the last bin has the sums of the rows without the feature. Each split is tried with them on its right
    and on its left, and with all other rows on one side; the node keeps the better direction, and of equal ones what XGBoost finds first.

    Attributes:
        limits: the settings.
        cuts: cuts of each feature.
        group: the output that the tree adds to.
        missing: whether features may be missing.
    """

    limits: TreeLimits
    cuts: list[NDArray[np.float32]]
    group: int
    missing: bool = False
    feature: list[int] = field(default_factory=lambda: [-1])
    cut: list[int] = field(default_factory=lambda: [0])
    left: list[int] = field(default_factory=lambda: [-1])
    gain: list[float] = field(default_factory=lambda: [0.0])
    default_left: list[bool] = field(default_factory=lambda: [False])
    total: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    _sums: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    _open: list[int] = field(default_factory=lambda: [0])
    _pairs: list[tuple[int, int, int]] = field(default_factory=list)
    depth: int = 0

    @property
    def asked(self) -> list[int]:
        """Nodes that the parties must add up next; none when the tree is grown."""
        if self.depth >= self.limits.max_depth:
            return []
        return [0] if self.depth == 0 else [small for _, small, _ in self._pairs]

    @property
    def message(self) -> dict[str, Any]:
        """The tree so far, in bins."""
        columns = {"feature": np.int32, "cut": np.int16, "left": np.int32, "default_left": np.bool_}
        return {"group": self.group, **{name: np.array(getattr(self, name), dtype) for name, dtype in columns.items()}}

    def without_sums(self, features: slice) -> None:
        """Forget the sums of some features so far, so that nothing splits on them: a guess by the others."""
        for sums in self._sums.values():
            sums[features] = 0

    def take(self, histograms: NDArray[np.float64]) -> None:
        """Split the open nodes by the sums that `asked` wanted, ``(nodes, features, width, 2)``."""
        sums: dict[int, NDArray[np.float64]] = {}
        if self.depth == 0:
            sums[0] = histograms[0]
            self.total[0] = histograms[0][0].sum(axis=0)
        for (parent, small, large), found in zip(self._pairs, histograms, strict=False):
            sums[small], sums[large] = found, self._sums[parent] - found
        self._sums, self._pairs, open_ = sums, [], self._open
        self._open = []
        self.depth += 1
        for node in open_:
            self._split(node, sums[node])

    def _split(self, node: int, sums: NDArray[np.float64]) -> None:
        best = self.find_best(sums, self.total[node])
        if best is None or not best.gain > max(self.limits.gamma, _EPSILON):
            return
        self.apply(node, best)

    def apply(self, node: int, best: BestSplit) -> None:
        """Give a node its split, and two children."""
        child = len(self.feature)
        self.default_left[node], self.feature[node], self.left[node] = best.default_left, best.feature, child
        self.cut[node], self.gain[node] = best.cut, best.gain
        for part in (best.left, best.right):
            self._open.append(len(self.feature))
            self.total[len(self.feature)] = part
            self.feature.append(-1)
            self.cut.append(0)
            self.left.append(-1)
            self.gain.append(0.0)
            self.default_left.append(False)
        small, large = sorted((child, child + 1), key=lambda one: (self.total[one][1], one))
        self._pairs.append((node, small, large))

    def find_best(self, sums: NDArray[np.float64], whole: NDArray[np.float64]) -> BestSplit | None:
        """The split that gains most, of equal ones the first; ``None`` if there is none.

        Args:
            sums: of the node's rows by feature and bin, ``(features, width, 2)``.
            whole: of all its rows.
        """
        if sums.shape[1] < 2:
            return None  # all values of each feature are equal: nothing can split, and the node is a leaf
        left = self._candidates(sums, whole)
        right = whole - left
        gains = self.limits.score(left) + self.limits.score(right) - self.limits.score(whole)
        nothing = 0.0 if self.limits.single else _NOTHING * whole[1]
        gains = np.where(self._allowed(left, right, sums[:, -1, 1] > nothing), gains, -np.inf)
        f, place = divmod(int(gains.argmax()), gains.shape[1])
        middle = sums.shape[1] - 1
        cut = place if place < middle else 2 * middle - 2 - place
        return BestSplit(float(gains[f, place]), f, cut, place >= middle, left[f, place], right[f, place])

    def _candidates(self, sums: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
        """What goes left in each split, ``(features, splits, 2)``.

        Split ``c`` sends the bins up to ``c`` left. Where features are missing, further ones send them left too: backwards from the last bin, as XGBoost
        looks for them, to the split that sends nothing else left.
        """
        if not self.missing:
            return np.cumsum(sums, axis=1)[:, :-1]
        known = np.cumsum(sums[:, :-1], axis=1)
        absent = sums[:, -1:]
        nothing = np.zeros_like(absent)
        return np.concatenate([known, absent + np.concatenate([nothing, known[:, :-1]], axis=1)[:, ::-1]], axis=1)

    def _allowed(
        self, left: NDArray[np.float64], right: NDArray[np.float64], absent: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Which splits may be, ``(features, splits)``; ``absent`` says of which features some rows have none."""
        made = self.limits.allow(left, right)
        counts, place = np.array([len(mine) for mine in self.cuts])[:, None], np.arange(left.shape[1])
        if not self.missing:
            return made & (place < counts)
        middle = left.shape[1] // 2
        cut = np.where(place < middle, place, 2 * middle - 2 - place)
        return made & np.where(
            place < middle, (cut < counts) | ((cut == counts) & absent[:, None]), (cut < counts) & absent[:, None]
        )

    def value(self) -> NDArray[np.float32]:
        """What each node adds, or would add, as a leaf: ``-eta G / (H + lambda)``."""
        totals = np.stack([self.total[node] for node in range(len(self.feature))])
        if self.limits.single:
            return np.float32(self.limits.eta) * self.limits.weight(totals).astype(np.float32)
        return (self.limits.eta * self.limits.weight(totals)).astype(np.float32)

    def tree(self) -> Tree:
        """The tree, with numbers in place of bins."""
        feature, totals = np.array(self.feature, np.int32), [self.total[n] for n in range(len(self.feature))]
        threshold = [self._threshold(f, c) if f >= 0 else 0.0 for f, c in zip(self.feature, self.cut, strict=True)]
        hessian = np.array([total[1] for total in totals], np.float32)
        columns = np.array(threshold, np.float32), np.array(self.left, np.int32), self.value(), hessian
        return Tree(feature, *columns, np.array(self.gain, np.float32), np.array(self.default_left), self.group)

    def _threshold(self, f: int, cut: int) -> float:
        """The number that a feature is below in the bins up to ``cut``; below or above all numbers if only missing rows go one way."""
        if 0 <= cut < len(self.cuts[f]):
            return float(self.cuts[f][cut])
        return -_LARGEST if cut < 0 else _LARGEST


# The server's search for the values that become cuts, by counts over all parties.


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


_NEEDED = ("feature", "cut", "left", "value", "default_left")
"""What a party must know of the nodes of finished trees."""


async def grow_together(
    fed: Federation, job: Trees, objective: TreeLoss, features: tuple[str, ...], scores: Scores, missing: bool = False
) -> Ensemble:
    """The program of ``scheme="histogram"``; ``missing`` says whether features may be.

    Contacts: the labels; five to twelve for the cuts, unless all are agreed, and with ``exact_cuts`` two more and one or more with each party; one for each level of each tree.
    All contacts of a tree have the same parties. If one is lost in the middle, the tree is begun again without it.
    """
    start = {"base": None, "rows": 0, "cuts": None, "counts": None, "trees": C.empty(["cut"])}
    state = await fed.restore(start)
    if state["base"] is None:
        base, rows = await first_guess(fed, job, objective)
        state = {**state, "base": base, "rows": rows}
        await fed.checkpoint(state)
    if state["cuts"] is None:
        cuts = await _common_cuts(fed, job, features)
        state = {**state, "cuts": np.concatenate(cuts), "counts": np.array([len(mine) for mine in cuts])}
        await fed.checkpoint(state)
    grower = _Grower(fed, job, objective, state, missing)
    while len(grower) < job.rounds and not fed.ending:
        before = C.trees_in(grower.trees) if scores.fresh else []
        first = C.count(grower.trees)
        for group in range(objective.outputs):
            await grower.add(group)
        new = C.trees_in(grower.trees, first)
        fed.record({"trees": C.count(grower.trees), "parties": grower.parties, **scores.of(new, state["base"], before)})
        await fed.checkpoint({**state, "trees": grower.trees})
    rounds = [objective.outputs * (t + 1) for t in range(len(grower))]
    return Ensemble(objective, np.asarray(state["base"]), features, C.trees_in(grower.trees), rounds)


async def first_guess(fed: Federation, job: Trees, objective: TreeLoss) -> tuple[NDArray[np.float64], int]:
    """The margins before the first tree, and the number of rows.

    Raises:
        DataError: no party has a row, or a class has none.
    """
    asked = {"objective": objective.name, "outputs": objective.outputs}
    found = await fed.sum(fed.parties, count_labels, asked, reducer=job.reducer, quorum=job.least)
    rows = round(float(found["rows"]))
    if rows < 1:
        raise DataError("no party has a row", where="Trees", remedy="invite parties that have data")
    return objective.first_guess(np.asarray(found["labels"], np.float64), rows), rows


async def _common_cuts(fed: Federation, job: Trees, features: tuple[str, ...]) -> list[NDArray[np.float32]]:
    # The ranks are those of the rows that are counted; a party that is lost meanwhile makes bins less even, no more.
    known = {name: np.asarray(values, np.float32) for name, values in job.cuts.items()}
    left = [f for f, name in enumerate(features) if name not in known]
    if left and job.exact_cuts and type(job.reducer) is Plain:  # other reducers do not show what one party sends
        known |= {features[f]: mine for f, mine in (await cuts_by_blocks(fed, job, left)).items()}
    counted = [f for f, name in enumerate(features) if name not in known]
    search = CutSearch(len(counted), job.max_bin, job.exact_cuts)
    while counted and not search.done:
        message = {"features": np.array(counted), **search.asked()}
        found = await fed.sum(
            fed.parties, count_values, message, reducer=job.reducer, quorum=job.least, at=search.contacts
        )
        search.take(np.rint(np.asarray(found["counts"], np.float64)).astype(np.int64))
    known |= {features[f]: mine for f, mine in zip(counted, search.cuts(), strict=True)}
    return [known[name] for name in features]


class _Grower:
    """The trees so far, and how one more is grown with the parties."""

    def __init__(self, fed: Federation, job: Trees, objective: TreeLoss, state: dict[str, Any], missing: bool) -> None:
        self.fed, self.job, self.objective, self.missing = fed, job, objective, missing
        self.trees: dict[str, Any] = state["trees"]
        self.facts = {name: state[name] for name in ("cuts", "counts", "base")}
        self.cuts = np.split(np.asarray(state["cuts"]), np.cumsum(np.asarray(state["counts"]))[:-1])
        self.limits = TreeLimits(job.eta, job.max_depth, job.reg_lambda, job.gamma, job.min_child_weight)
        self.parties = 0

    def __len__(self) -> int:
        return C.count(self.trees) // self.objective.outputs

    async def add(self, group: int) -> None:
        """Grow one tree."""
        growth, cohort, tries = Growth(self.limits, self.cuts, group, self.missing), self.fed.parties, 0
        while growth.asked:
            at = (C.count(self.trees), tries, growth.depth)
            found = await self.fed.sum(
                cohort, add_gradients, self._message(growth), reducer=self.job.reducer, quorum=self.job.least, at=at
            )
            lost, cohort = len(found.senders) < len(cohort), found.senders
            if lost and growth.depth > 0:
                growth, tries = Growth(self.limits, self.cuts, group, self.missing), tries + 1
                continue
            growth.take(np.asarray(found["histograms"], np.float64))
        self.parties = len(cohort)
        cut = growth.message["cut"]
        self.trees = C.appended(self.trees, [growth.tree()], {"cut": cut})

    def _message(self, growth: Growth) -> dict[str, Any]:
        needed = {name: self.trees[name] for name in (*_NEEDED, "starts")}
        return {
            **self.facts,
            "objective": self.objective.name,
            "outputs": self.objective.outputs,
            "width": max(len(mine) for mine in self.cuts) + 1 + self.missing,
            "missing": self.missing,
            "trees": needed,
            "growing": growth.message,
            "build": np.array(growth.asked, np.int64),
        }
