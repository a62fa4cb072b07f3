"""Selection after training: replies merge in order of arrival, with priority for clients left out last time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.requests.party import Parties, among

from .base import Candidates, Seen
from .uniform import Uniform

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CFCFM"]


@dataclass(frozen=True)
class CFCFM(Uniform):
    """Compensatory first-come-first-merge: every client trains, and a round takes ``count`` replies.

    The round takes a reply as it arrives if its client was not taken in the round before; other replies wait. The round closes when ``count`` are
    taken. If it ends before, waiting replies fill it up in order of arrival.

    Wu 2021, "Towards Efficient Horizontal Federated Learning", Algorithm 1, with three repairs: no client counts as taken at the start (the printed
    text starts with the bypass, which was merged before), only clients taken before wait (an ``else`` is missing), and replies that fill up are added
    to those taken.

    Attributes:
        count: replies per round, as in ``Uniform``: a fraction means ``ceil(fraction * population)``.
    """

    picks: ClassVar[bool] = True

    def init(self, parties: Parties) -> Tree:
        """Start with no client taken."""
        del parties
        return {"taken": np.zeros(0, dtype=np.int64)}

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Return every available client."""
        del count, state
        return np.arange(len(candidates.parties))

    def take(self, arrived: NDArray[np.int64], count: int, state: Tree) -> tuple[NDArray[np.int64], int | None]:
        """Return the first ``count`` clients that were not taken last time; if they are fewer, also the first of the others."""
        first = np.flatnonzero(~among(arrived, state["taken"]))
        if len(first) >= count:
            return first[:count], int(first[count - 1])
        waiting = np.setdiff1d(np.arange(len(arrived)), first, assume_unique=True)
        return np.sort(np.concatenate([first, waiting[: count - len(first)]])).astype(np.int64), None

    def missing(self, arrived: NDArray[np.int64], count: int, state: Tree) -> int:
        """Return how many replies are missing; clients taken last time do not fill a round before its end."""
        return count - int((~among(arrived, state["taken"])).sum())

    def accept(self, seen: Seen, state: Tree) -> Tree:
        """Remember the clients that were taken."""
        del state
        return {"taken": np.sort(seen.replied.positions)}
