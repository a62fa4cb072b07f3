"""The rounds of nodes that mix: local steps, mixing, newcomers, and what an observer sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean, Parts
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import QuorumError
from atoll.core.requests.task import Task

from ..selection import Candidates, Seen
from ..selection.members import places_of
from ..server.declared import declare
from ..server.device_outcomes import outcome_columns
from ..server.state import global_model
from .decentralised import NodeCourse
from .mixing import mixing_matrix, require_connected
from .node import Node
from .node_block import blocks_of

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Parties

    from ..context import Context
    from .membership import Membership
    from .mixer import Mixer

__all__ = ["Nodes", "seed_of"]


def seed_of(rng: Rng, *path: str | int) -> int:
    """Return a public key of 63 bits, which fits a message."""
    return rng.child(*path).key >> 1


class Nodes(NodeCourse):
    """A course of nodes that are their own servers.

    Args:
        context: the training's context.
        mixer: mixes neighbours' states.
        members: which nodes take part when.
    """

    def __init__(self, context: Context, mixer: Mixer, members: Membership | None = None) -> None:
        self.context = context
        self.node = Node(context.algorithm, context.learner)
        self.mixer = mixer
        self.members = members
        self.blocks = blocks_of(self.node, self._begun)
        self.declared: list[int | None] = []

    # ------------------------------------------------------------------ tasks

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks of the nodes."""
        return (self.local, self.mixer.task, self.peek, self.distance, self.give, self.take)

    @property
    def local(self) -> Task:
        """Run one round of the algorithm at the node."""
        blocks: dict[str, Any] = {} if self.blocks is None else {"many": self.blocks.many, "tuning": self.blocks}
        return Task("atoll.learn.topology:local", self._local, work=self.node.work, **blocks)

    @property
    def peek(self) -> Task:
        """Report the node's model, with equal weight."""
        return Task("atoll.learn.topology:peek", self._peek)

    @property
    def distance(self) -> Task:
        """Report the distance of the node's model from a given one."""
        return Task("atoll.learn.topology:distance", self._distance)

    @property
    def give(self) -> Task:
        """Send the server's state to some nodes."""
        return Task("atoll.learn.topology:give", self._give)

    @property
    def take(self) -> Task:
        """Start with the state that a neighbour sent."""
        return Task("atoll.learn.topology:take", self._take)

    def at_node(self, island: Island, message: Tree) -> Tree:
        """Return the node's state, or the initial one."""
        return self._begun(island.state, message)

    def _begun(self, node: Tree, message: Tree) -> Tree:
        return self.mixer.begun(self.node.begin(message["init"])) if node is None else node

    async def _local(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        node = self.at_node(island, message)
        island.state, metrics = await self.node.round(island, node, int(message["round"]))
        return {**metrics, "updated": Mean(np.float64(1.0), role="side")}

    def _peek(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        node = self.at_node(island, message)
        return {"params": Mean(global_model(node), role="side")}

    def _distance(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        mine = self.at_node(island, message)["server"]["params"]
        off = T.norm({name: np.asarray(leaf, np.float64) - message["mean"][name] for name, leaf in mine.items()})
        return {"distance": Parts(np.float64(off), role="side")}

    def _give(self, island: Island, message: Tree) -> Tree:
        for name in message["to"][island.name]:
            node = self.at_node(island, message)
            island.post(name, {"server": node["server"], "buffers": node["buffers"]})
        return {}

    def _take(self, island: Island, message: Tree) -> Tree:
        del message
        for came in island.inbox.values():  # from one sponsor, if its letter arrived
            island.state = {"client": None, **came}
        return {}

    # ------------------------------------------------------------------ the course

    def graph_key(self, fed: Federation, number: int) -> int:
        """Return the key from which the graph of a round is drawn."""
        return seed_of(fed.rng, "graph", number if self.mixer.graph.changes else 0)

    def check(self, fed: Federation) -> None:
        """Refuse a disconnected graph, for every set of members in the schedule."""
        names = [str(name) for name in self.context.clients.names]
        if self.members is None:
            require_connected(self.mixer.graph, len(names), self.graph_key(fed, 1), names)
            return
        self.members.check(len(names))
        for number in self.members.changes():
            there = self.members.at(number, len(names))
            require_connected(self.mixer.graph, len(there), self.graph_key(fed, number), [names[i] for i in there])

    def initial(self, fed: Federation) -> Tree:
        """Start with the selection rule's memory and the key of the initial model; the nodes keep the models."""
        self.check(fed)
        return {"selection": self.context.selection.init(fed.parties), "init": seed_of(fed.rng, "init")}

    def there(self, fed: Federation, number: int) -> Parties:
        """Return the members of a round."""
        return fed.parties if self.members is None else fed.parties[self.members.at(number, len(fed.parties))]

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Welcome newcomers, take local steps, mix."""
        there = self.there(fed, number)
        welcomed = await self._welcome(fed, state, number)
        invited, size = self._invite(fed, there, state, number)
        row: dict[str, Any] = {"selected": len(invited)}
        if self.members is not None:
            row |= {"members": len(there), "joined": welcomed}
        try:
            done = await fed.sum(
                invited,
                self.local,
                {"init": state["init"], "round": number},
                at=(number, "local"),
                **self.context.pacing.terms(size),
            )
            row |= {name: float(value) for name, value in done.of("metric").items()}
            row |= {"silent": len(done.silent), "rejected": len(done.rejected)}
            spoilt = outcome_columns(fed, done)  # mixing may lose other nodes: the meter knows all crashes of the round
            row |= {name: spoilt[name] for name in ("late", "wasted") if name in spoilt}
            if done.errors:
                row["errors"] = {name: str(error) for name, error in done.errors.items()}
            mixed, heard = await self.mixed(fed, done.senders, state, number)
            row["replied"] = len(mixed)
            declare(row, self._bits(state["init"]), heard)
        except QuorumError as error:
            if self.context.pacing.on_failure == "stop":
                raise type(error)(error.what, where=f"round {number}, {error.where}", remedy=error.remedy) from error
            return state, {**row, "replied": 0, "failed": str(error.what)}
        seen = Seen(number, invited, mixed, np.zeros(len(mixed)), row={"round": number, **row})
        row.update(self.context.evaluation.told(invited, mixed))
        selection = self.context.selection.accept(seen, state["selection"])
        return {**state, "selection": selection}, row

    async def mixed(self, fed: Federation, nodes: Parties, state: Tree, number: int) -> tuple[Parties, int]:
        """Mix the states of nodes; return those that finished, and how many messages arrived."""
        del state
        return await self.mixer.mix(fed, nodes, number, self.graph_key(fed, number))

    def _bits(self, key: int) -> int | None:
        """Return the bits that the compressor declares for a message, found once: neighbours' copies always have the initial model's form."""
        if self.mixer.compress is not None and not self.declared:
            self.declared.append(self.mixer.declared(self.node.begin(key)))
        return self.declared[0] if self.declared else None

    def _invite(self, fed: Federation, there: Parties, state: Tree, number: int) -> tuple[Parties, int]:
        """Return the nodes that are awake."""
        selection, sizes = self.context.selection, self.context.clients.sizes
        count = selection.cohort_size(len(there))
        known = None if sizes is None else np.asarray(sizes)[places_of(fed.parties.positions, there.positions)]
        candidates = Candidates(there, number, fed.rng.child("selection", number), lambda: known)
        invited = there[selection.invite(candidates, self.context.pacing.invited(count), state["selection"])]
        return invited, min(count, len(invited))

    async def _welcome(self, fed: Federation, state: Tree, number: int) -> int:
        """Give newcomers the state of a neighbour that was present before; of several, the one with the lowest position.

        If either crashes, the newcomer starts from the initial state.
        """
        if self.members is None:
            return 0
        there = self.members.at(number, len(fed.parties))
        fresh = self.members.joined(number, len(fed.parties))
        if not len(fresh):
            return 0
        matrix = mixing_matrix(self.mixer.graph, there, self.graph_key(fed, number))
        to: dict[str, list[str]] = {}
        for position in fresh.tolist():
            near = there[np.flatnonzero(matrix[int(np.searchsorted(there, position))])]
            known = np.setdiff1d(near, fresh)
            sponsor = int(known[0]) if len(known) else int(np.setdiff1d(there, fresh)[0])
            to.setdefault(str(self.context.clients.names[sponsor]), []).append(
                str(self.context.clients.names[position])
            )
        sponsors = fed.parties.named(*to)
        sent = await fed.exchange(sponsors, self.give, {"init": state["init"], "to": to}, at=(number, "give"), quorum=0)
        await fed.exchange(fed.parties[fresh], self.take, None, mail=sent.mail, at=(number, "take"), quorum=0)
        return len(fresh)

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Return the mean of the nodes' models, and the distance of the farthest node from it."""
        there, message = self.there(watch, number), {"init": state["init"]}
        mean = (await watch.sum(there, self.peek, message, at=(number, "peek")))["params"]
        away = await watch.sum(there, self.distance, {**message, "mean": mean}, at=(number, "distance"))
        return mean, {"consensus": max(float(part.value) for part in away["distance"])}
