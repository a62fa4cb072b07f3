"""The base of topologies without a server: every node runs the algorithm itself, and the round loop is the shared one."""

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
    """A course over nodes: its tasks, and what it needs from their graph.

    Every request's label starts with the round number: a node that crashes in a round is down for the whole round.
    """

    def turns(self, rounds: int) -> int | None:
        """Return ``rounds``: a turn is a round."""
        return rounds

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks that the world must know beforehand."""
        raise NotImplementedError

    def check(self, fed: Federation) -> None:
        """Refuse a disconnected graph; called when the state starts."""


@dataclass(frozen=True)
class Decentralised(Topology):
    """A topology that ``course`` defines completely."""

    def course(self, context: Context) -> NodeCourse:
        """Return the course: what happens in a round."""
        raise NotImplementedError

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, an algorithm that each node can fold alone, and only the graph's weights."""
        return (
            *super().needs,
            Need(PLAIN_MEAN, "weights neighbours' states by its graph", "Star()"),
            Need(STEPS, "lets every node continue from its neighbours' states", "Star()"),
            Need(SELF_FOLDING, "makes every node its own server", "Star()"),
        )

    @property
    def offers(self) -> frozenset[Capability]:
        """All clients in every round: a node is the only client of its own server, and always available."""
        return frozenset({FIXED_COHORT, EVERYONE})

    @property
    def lacks(self) -> Mapping[Capability, str]:
        """Reasons for capabilities that the topology does not offer."""
        return {ONE_SUM: "knows only that of one node"}

    def tasks(self, context: Context) -> tuple[Task, ...]:
        """Return the course's tasks."""
        return self.course(context).tasks
