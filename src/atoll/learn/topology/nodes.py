"""Rounds of nodes, one by one or in blocks.

Nodes differ in everything, including the model, so a learner trains them through ``apart()``, with a separate broadcast for each client. The server's
functions run node by node, as in `Node.round`: they are cheap, and counters keep their types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean, Parts, stack_replies
from atoll.core.algebra.form import kinds_of_block
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import QuorumError
from atoll.core.persistence.state_table import StateBlock
from atoll.core.requests.cohort import Cohort
from atoll.core.requests.task import Batch, Task
from atoll.learn.selection.base import Seen, candidates_of

from ..learner import SupportsApart
from ..local.reports import COUNTERS, counters_in
from ..round.invitation import outcome_columns
from ..round.state import averaged_model, counter_moves
from ..wrapped import declare
from .base import NodeCourse
from .mixing import mixing_matrix, require_connected
from .node import Node, Round

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Parties

    from ..context import Context
    from .graphs import Membership
    from .mixing import Mixer

__all__ = ["Nodes", "seed_of"]


Begun = Callable[[Tree, Tree], Tree]


def blocks_of(node: Node, begun: Begun) -> NodeBlock | None:
    """Return a node's rounds in blocks, if its learner supports them; ``begun(state, message)`` returns a node's state, or the initial one."""
    made = node.learner.apart() if isinstance(node.learner, SupportsApart) else None
    return None if made is None else NodeBlock(node, made, begun)


class NodeBlock:
    """A round of an algorithm at many nodes: a task's ``many`` and its tuning.

    Args:
        node: a round at one node.
        apart: the learner's trainer, see `atoll.learn.learner.SupportsApart`.
        begun: returns a node's state, or the initial one.
    """

    def __init__(self, node: Node, apart: Any, begun: Begun) -> None:
        self.node, self.apart, self.begun = node, apart, begun

    def many(self, cohort: Cohort, message: Tree) -> Iterator[Batch]:
        """Run one round at every node of a cohort; return metrics of the last reply, and the nodes' next states."""
        turns = [self._begin(cohort, i, message) for i in range(len(cohort))]
        made = _Made()
        for at in range(max((len(turn.plan) for turn in turns), default=0)):
            asked: dict[str, list[int]] = {}
            for i, turn in enumerate(turns):
                phase = None if i in made.errors else turn.phase(at)
                if phase is not None:
                    asked.setdefault(phase, []).append(i)
            for phase, places in asked.items():
                self._phase(cohort, turns, (phase, at), np.array(places), made)
        for i, (turn, name) in enumerate(zip(turns, cohort.parties.names, strict=True)):
            made.attempt(i, partial(made.end, i, turn, name))
        yield from made.batches()

    def _begin(self, cohort: Cohort, i: int, message: Tree) -> Round:
        state = self.begun(cohort.state(i), message)
        examples = float(len(cohort.shard(i)))
        return Round(self.node, state, int(message["round"]), examples, Rng(int(cohort.keys[i])))

    def _phase(
        self, cohort: Cohort, turns: list[Round], what: tuple[str, int], places: NDArray[np.int64], made: _Made
    ) -> None:
        """Run the updates of some nodes, and fold each."""
        phase, at = what
        keys = np.array([turns[i].rng.child("phase", at).key for i in places], dtype=np.uint64)
        some = Cohort(cohort.parties[places], keys, cohort.population)
        sent, clients = [turns[i].make_broadcast(phase) for i in places], [turns[i].state["client"] for i in places]
        for batch in self.apart.train(some, phase, sent, clients):
            made.errors.update({int(places[place]): error for place, error in batch.errors.items()})
            states = dict(enumerate(clients)) if batch.states is None else _rows(batch)
            for row, place in enumerate(batch.positions.tolist()):
                reply = {name: aggregate.row(row) for name, aggregate in batch.reply.items()}
                turn, state = turns[places[place]], states[place]
                made.attempt(int(places[place]), partial(turn.take, phase, reply, state))

    @property
    def choices(self) -> dict[str, Any]:
        """How blocks run."""
        return dict(self.apart.choices)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds spent on tracing and compiling so far."""
        return dict(self.apart.seconds)

    def recall(self, choices: dict[str, Any]) -> None:
        """Repeat an earlier decision."""
        self.apart.recall(choices)

    def prepare(self, cohort: Cohort, message: Tree, cores: int = 1) -> float:
        """Decide and compile on these nodes; return the expected seconds of their round on one core, whatever their number."""
        del cores
        for _ in self.many(cohort, message):
            pass
        return float(self.apart.expected_seconds(len(cohort)))


class _Made:
    """Results of the nodes of a cohort."""

    def __init__(self) -> None:
        self.errors: dict[int, Exception] = {}
        self.states: dict[int, Tree] = {}
        self.replies: dict[int, dict[str, Aggregate]] = {}

    def attempt(self, place: int, work: Callable[[], None]) -> None:
        """Run ``work`` for one node, unless it failed before; an error affects only that node."""
        if place not in self.errors:
            try:
                work()
            except Exception as error:
                self.errors[place] = error

    def end(self, place: int, turn: Round, name: str) -> None:
        """End a node's round."""
        self.states[place] = turn.end(name)
        self.replies[place] = {**turn.metrics, "updated": Mean(np.float64(1.0), role="side")}

    def batches(self) -> Iterator[Batch]:
        """Return stacked replies, one batch per set of names: idle nodes have fewer metrics."""
        alike: dict[tuple[str, ...], list[int]] = {}
        for place, reply in self.replies.items():
            alike.setdefault(tuple(reply), []).append(place)
        errors = self.errors
        for names, places in alike.items() or [((), [])]:
            reply = {name: stack_replies([self.replies[place][name] for place in places]) for name in names}
            singles = {place: self.states[place] for place in places}
            yield Batch(np.array(places, dtype=np.int64), reply, singles=singles, errors=errors)
            errors = {}


def _rows(batch: Batch) -> dict[int, Tree]:
    block = StateBlock(batch.positions, batch.states, kinds_of_block(batch.states))
    return dict(block.rows())


# ---------------------------------------------------------------- the rounds of nodes that mix


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
        self.blocks = blocks_of(self.node, self._begin_node)
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
        return self._begin_node(island.state, message)

    def _begin_node(self, node: Tree, message: Tree) -> Tree:
        return self.mixer.begin_state(self.node.begin(message["init"])) if node is None else node

    async def _local(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        node = self.at_node(island, message)
        island.state, metrics = await self.node.round(island, node, int(message["round"]))
        return {**metrics, "updated": Mean(np.float64(1.0), role="side")}

    def _peek(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        node = self.at_node(island, message)
        counters = {name: node["buffers"][name] for name in counters_in(node["buffers"])}
        counted = {COUNTERS: Parts(counters, role="counter")} if counters else {}
        return {"params": Mean(averaged_model(node), role="side"), **counted}

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
            mixed, heard = await self.mix_nodes(fed, done.senders, state, number)
            row["replied"] = len(mixed)
            declare(row, self._bits(state["init"]), heard)
        except QuorumError as error:
            if self.context.pacing.on_failure == "stop":
                raise type(error)(error.what, where=f"round {number}, {error.where}", remedy=error.remedy) from error
            return state, {**row, "replied": 0, "failed": str(error.what)}
        seen = Seen(number, invited, mixed, np.zeros(len(mixed)), row={"round": number, **row})
        row.update(self.context.evaluation.list_participants(invited, mixed))
        selection = self.context.selection.accept(seen, state["selection"])
        return {**state, "selection": selection}, row

    async def mix_nodes(self, fed: Federation, nodes: Parties, state: Tree, number: int) -> tuple[Parties, int]:
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
        candidates = candidates_of(fed, there, number, sizes)
        invited = candidates.parties[
            selection.invite(candidates, self.context.pacing.invited(count), state["selection"])
        ]
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
        seen = await watch.sum(there, self.peek, message, at=(number, "peek"))
        mean = {**seen["params"], **counter_moves(seen.value, seen.n)}
        away = await watch.sum(there, self.distance, {**message, "mean": mean}, at=(number, "distance"))
        return mean, {"consensus": max(float(part.value) for part in away["distance"])}
