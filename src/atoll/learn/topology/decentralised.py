"""The base of topologies without a server: every node runs the algorithm by itself, and the round loop is the shared one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.core.capability import FIXED_COHORT, STEPS, Capability, Need
from atoll.core.requests.task import Task
from atoll.rounds.loop import Course

from ..capabilities import EVERYONE, ONE_SUM, PLAIN_MEAN, SELF_FOLDING
from .base import Topology

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

    from ..context import Context

__all__ = ["Decentralised", "NodeCourse"]


class NodeCourse(Course):
    """A course over nodes: what it asks of them, and what it wants of their graph.

    Every request of a round has the round's number first in its label: who crashes in a round is down for all of it.
    """

    def turns(self, rounds: int) -> int | None:
        """A turn is a round."""
        return rounds

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Tasks that the world must know beforehand."""
        raise NotImplementedError

    def check(self, fed: Federation) -> None:
        """Refuse a graph in parts; asked where the state begins."""


@dataclass(frozen=True)
class Decentralised(Topology):
    """A topology whose ``course`` says everything."""

    def course(self, context: Context) -> NodeCourse:
        """What happens in a round."""
        raise NotImplementedError

    @property
    def needs(self) -> tuple[Need, ...]:
        """An algorithm that can be a server to itself, and no other weights than the graph's."""
        return (
            *super().needs,
            Need(PLAIN_MEAN, "weighs what neighbours say by its graph", "Star()"),
            Need(STEPS, "has every node go on from what its neighbours said", "Star()"),
            Need(SELF_FOLDING, "makes every node a server of its own", "Star()"),
        )

    @property
    def offers(self) -> frozenset[Capability]:
        """Everybody in every round: a node is the only client of its own server, and always there."""
        return frozenset({FIXED_COHORT, EVERYONE})

    @property
    def lacks(self) -> Mapping[Capability, str]:
        """Why it does not offer a capability."""
        return {ONE_SUM: "knows that of one node alone"}

    def tasks(self, context: Context) -> tuple[Task, ...]:
        """The course's."""
        return self.course(context).tasks
