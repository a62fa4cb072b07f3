"""Selection after training: who comes first is merged first, and who was left out last time goes before the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.requests.party import Parties, among

from .seen import Candidates, Seen
from .uniform import Uniform

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CFCFM"]


@dataclass(frozen=True)
class CFCFM(Uniform):
    """Compensatory first-come-first-merge: everyone trains, and a round takes ``count`` replies.

    A reply is taken as it arrives if its client was not taken in the round before; the others wait. The round closes when ``count`` are taken. If it
    ends before, those that wait fill it up in their order of arrival.

    Wu 2021, "Towards Efficient Horizontal Federated Learning", Algorithm 1, with three repairs: the round starts with nobody taken (the printed text
    starts with the bypass, which was merged before), only those who were taken before wait (an ``else`` is missing), and what fills up is added to
    those taken.

    Attributes:
        count: replies a round, as in ``Uniform``: a fraction means ``ceil(fraction * population)``.
    """

    picks: ClassVar[bool] = True

    def init(self, parties: Parties) -> Tree:
        """Nobody was taken."""
        del parties
        return {"taken": np.zeros(0, dtype=np.int64)}

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Everyone who is there."""
        del count, state
        return np.arange(len(candidates.parties))

    def take(self, arrived: NDArray[np.int64], count: int, state: Tree) -> tuple[NDArray[np.int64], int | None]:
        """The first ``count`` of those who were not taken last time; if they are fewer, then the first of the others too."""
        first = np.flatnonzero(~among(arrived, state["taken"]))
        if len(first) >= count:
            return first[:count], int(first[count - 1])
        waiting = np.setdiff1d(np.arange(len(arrived)), first, assume_unique=True)
        return np.sort(np.concatenate([first, waiting[: count - len(first)]])).astype(np.int64), None

    def missing(self, arrived: NDArray[np.int64], count: int, state: Tree) -> int:
        """Those who were taken last time do not fill a round before its end."""
        return count - int((~among(arrived, state["taken"])).sum())

    def accept(self, seen: Seen, state: Tree) -> Tree:
        """Remember who was taken."""
        del state
        return {"taken": np.sort(seen.replied.positions)}
