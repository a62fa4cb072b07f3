"""Decentralised inside clusters, centralised between them: devices of a cluster mix, and a server samples one of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.tree import Tree
from atoll.core.capability import RELEASED_ONLY, Capability, Need
from atoll.core.errors import ConfigError
from atoll.core.requests.task import Task

from ..capabilities import EVERYONE
from .base import Decentralised
from .graphs import Graph, Ring
from .hierarchical import Grouped, Groups, check_groups, members_of
from .mixing import Mixer, mean_states, require_connected
from .nodes import Nodes

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

    from ..context import Context

__all__ = ["Cooperative"]


@dataclass(frozen=True, kw_only=True)
class Cooperative(Decentralised):
    """Device to device inside a cluster; every ``every`` rounds, the server samples one device per cluster and sends the mean to all.

    A round is local steps and ``mixing`` steps of gossip inside each cluster. In the server's turn, it asks one device of each cluster, drawn
    anew, averages their states by the clusters' examples, and broadcasts the mean. It receives ``clusters`` models, instead of one per client in
    a star, and never a device's model before mixing.

    Lin, Hosseinalipour, Azam, Brinton, Michelusi 2021, "Semi-Decentralized Federated Learning with Cooperative D2D Local Model Aggregations"
    (two-timescale hybrid federated learning), with a fixed number of mixing steps.

    Attributes:
        groups: number of clusters, or the positions of each cluster's members.
        graph: the graph of each cluster.
        mixing: mixing steps per round.
        every: rounds between the server's turns.
    """

    groups: Groups = 2
    graph: Graph = field(default_factory=Ring)
    mixing: int = 1
    every: int = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", check_groups(self.groups, "Cooperative"))
        for name in ("mixing", "every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}", where="Cooperative", remedy="use at least 1")

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, and all members of every cluster."""
        return (*super().needs, Need(EVERYONE, "lets clusters mix with all their members"))

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's capabilities, and only released content: devices send their server's state, folded from released replies."""
        return super().offers | {RELEASED_ONLY}

    def check(self, context: Context) -> None:
        """Refuse groups that do not match these clients."""
        members_of(self.groups, len(context.clients), "Cooperative")

    def course(self, context: Context) -> _Clusters:
        """Return rounds of gossip inside clusters, and the server's turns."""
        groups = members_of(self.groups, len(context.clients), "Cooperative")
        graph = Grouped(self.graph, tuple(tuple(g.tolist()) for g in groups), len(context.clients))
        return _Clusters(self, context, Mixer(graph, context.clients.names, self.mixing))


class _Clusters(Nodes):
    """Nodes in clusters, and a server with turns."""

    def __init__(self, topology: Cooperative, context: Context, mixer: Mixer) -> None:
        super().__init__(context, mixer)
        self.every, self.base = topology.every, topology.graph
        self.groups = members_of(topology.groups, len(context.clients), "Cooperative")
        self.weights = [context.clients.weight(members) for members in self.groups]

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The nodes' tasks, and the server's ``say`` and ``hear``."""
        return (*super().tasks, self.say, self.hear)

    @property
    def say(self) -> Task:
        """Send the state of a sampled device."""
        return Task("atoll.learn.topology:say", self._say)

    @property
    def hear(self) -> Task:
        """Take over the server's mean as the device's own state."""
        return Task("atoll.learn.topology:hear", self._hear)

    def _say(self, island: Island, message: Tree) -> Tree:
        node = self.at_node(island, message)
        return {"server": node["server"], "buffers": node["buffers"]}

    def _hear(self, island: Island, message: Tree) -> Tree:
        island.state = {"client": None, **(island.state or {}), **message["state"]}
        return {}

    def check(self, fed: Federation) -> None:
        """Refuse clusters with a disconnected graph."""
        for number, group in enumerate(self.groups):
            key = self.graph_key(fed, 1)
            names = [str(self.context.clients.names[int(i)]) for i in group]
            if len(group) > 1:
                require_connected(self.base, len(group), key, names, child=("group", number))

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Run local steps, gossip inside clusters and, every ``every`` rounds, the server's turn."""
        state, row = await super().round(fed, state, number)
        row |= {"server_bytes_up": 0, "server_bytes_down": 0}
        if number % self.every or "failed" in row:
            return state, row
        draw = fed.rng.child("sample", number).generator()
        sampled = fed.parties[np.array([int(draw.choice(group)) for group in self.groups], dtype=np.int64)]
        said = await fed.ask_all(sampled, self.say, {"init": state["init"]}, at=(number, "say"), quorum=0)
        if not len(said.senders):  # all of them crashed: the server sends nothing
            return state, row
        weights = dict(zip(sampled.names, self.weights, strict=True))
        mean = mean_states(said.values, [weights[name] for name in said.senders.names])
        await fed.ask_all(fed.parties, self.hear, {"state": mean}, at=(number, "hear"), quorum=0)
        row["server_bytes_up"] = sum(M.nbytes(value) for value in said.values)
        row["server_bytes_down"] = len(fed.parties) * M.nbytes({"state": mean})
        return state, row
