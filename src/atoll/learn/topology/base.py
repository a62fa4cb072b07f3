"""The contract of a topology, and that of topologies without a central server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.capability import CENTRAL_SERVER, FIXED_COHORT, RELEASED_ONLY, SERVER, STEPS, Capability, Need
from atoll.core.errors import CompositionError
from atoll.core.facets import facet
from atoll.core.requests.task import Task
from atoll.core.validation import Checked
from atoll.rounds.loop import Course

from ..algorithm import Phased
from ..capabilities import EVERYONE, ONE_SUM, PLAIN_MEAN, SELF_FOLDING

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.event import Event
    from atoll.core.federation.federation import Federation

    from ..algorithm import Algorithm
    from ..context import Context

__all__ = ["Decentralised", "NodeCourse", "Star", "Topology", "refuse", "require_every_visit_trains"]


@dataclass(frozen=True)
class Topology(Checked):
    """Base class of topologies: frozen dataclasses of settings. ``course`` defines the rounds; everything else is checked before them."""

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the other parts of a training must offer; add your own rows to ``super().needs``."""
        return ()

    @property
    def offers(self) -> frozenset[Capability]:
        """What the topology offers to the other parts of a training: one server that adds up the replies of all clients.

        A topology adds ``RELEASED_ONLY`` if all its messages follow from released replies. Otherwise it refuses private algorithms.
        """
        return frozenset({SERVER, FIXED_COHORT, ONE_SUM})

    def check(self, context: Context) -> None:
        """Refuse parts that do not work with this topology, before any client is contacted.

        Raises:
            CompositionError: with the reason and the remedy.
        """

    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return what clients run: the base, or the base with other replies."""
        return base

    def groups_of(self, n: int) -> list[NDArray[np.int64]]:
        """Return, for each server, the positions of the clients that it may invite, out of ``n``; by default one server with all."""
        return [np.arange(n)]

    def servers(self, n: int) -> dict[str, str]:
        """Return the parties that the topology needs in addition to ``n`` clients: name -> role."""
        del n
        return {}

    @property
    def helpers(self) -> Mapping[str, str]:
        """Return the parties with rows of their own that the topology asks: name -> role."""
        return {}

    @property
    def against(self) -> str:
        """From whom the topology's own noise protects: ``"server"``, ``"clients"`` or ``"model"``; see `Guarantee`."""
        return "server"

    def released(self, rounds: int) -> tuple[Event, ...]:
        """Return what messages with noise of the topology's own release of a client at most; empty if it adds none.

        Args:
            rounds: rounds of the training.
        """
        del rounds
        return ()

    def tasks(self, context: Context) -> tuple[Task, ...]:
        """Return the topology's own tasks, which the world must know beforehand."""
        del context
        return ()

    def course(self, context: Context) -> Course:
        """Return the course: what happens in the rounds."""
        raise NotImplementedError


@dataclass(frozen=True)
class Star(Topology):
    """One server, linked to every client: standard federated learning."""

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's capabilities and those of one server's rounds; clients send it only their replies."""
        return super().offers | {CENTRAL_SERVER, RELEASED_ONLY}

    def course(self, context: Context) -> Course:
        """Return the rounds of the training's pacing."""
        return context.pacing.course(context)


def refuse(topology: Topology, what: str, where: str, remedy: str) -> None:
    """Raise the error of parts that do not go together."""
    raise CompositionError(f"{type(topology).__name__}: {what}", where=f"Training.{where}", remedy=remedy)


# ---------------------------------------------------------------- the base of topologies without a server


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


def require_every_visit_trains(topology: Topology, context: Context) -> None:
    """Refuse an algorithm some of whose rounds are the server's alone, where the server's state travels and each visit is one of its rounds.

    With two visits a round, one client would train in every round and the other one never, and the promise to a client would count half of its releases.

    Raises:
        CompositionError: names the topology and the algorithm.
    """
    visits = context.rounds * max(2, len(context.clients))
    contacts = facet(context.algorithm, Phased).contacts(visits)
    if contacts is not None and contacts < visits:
        what = f"{type(context.algorithm).__name__} leaves some rounds to the server alone, and here each visit is a round: some clients would never train"
        refuse(topology, what, "topology", "use Star(), or an algorithm with the same phases in every round")


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
