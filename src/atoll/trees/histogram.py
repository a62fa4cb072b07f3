"""Boosting on sums of histograms: the trees of all rows together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import DataError
from atoll.core.federation.reducer import Plain

from . import columns as C
from .blocks import cuts_by_blocks
from .growing import Growth, TreeLimits
from .objectives import TreeLoss
from .parties import add_gradients, count_labels, count_values
from .search import CutSearch
from .tree import Ensemble

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation

    from .job import Trees
    from .scores import Scores

_NEEDED = ("feature", "cut", "left", "value", "default_left")
"""What a party must know of the nodes of finished trees."""

__all__ = ["first_guess", "grow_together"]


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
