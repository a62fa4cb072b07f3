"""Swarm learning: one of the clients is the server of a round, another one of the next."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Part, Total
from atoll.core.algebra.rng import Rng, name_order
from atoll.core.algebra.tree import Tree
from atoll.core.capability import FIXED_COHORT, RELEASED_ONLY, STEPS, Capability, Need
from atoll.core.errors import ConfigError
from atoll.core.facets import facet
from atoll.core.requests.request import Mailboxes
from atoll.core.requests.task import Task

from ..algorithm import Phased, RoundInfo
from ..capabilities import EVERYONE, ONE_SUM, PLAIN_MEAN
from ..checks import require_finite
from ..round.state import broadcast_extras, global_model, moved_buffers
from ..wrapped import overrides
from .base import NodeCourse, Topology, refuse
from .node import Turn

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Exchanged
    from atoll.core.requests.task import Work

    from ..context import Context

__all__ = ["Swarm"]

ORDERS = ("fixed", "shuffled")


@dataclass(frozen=True, kw_only=True)
class Swarm(Topology):
    """Swarm learning: in each round one of the clients aggregates, and the role moves on.

    All clients train on the model and send their replies to the aggregator in letters. The aggregator folds them as a server does, and sends
    the server's state to all clients in letters, so that any of them can be the next aggregator. The server relays letters that it cannot
    read, and learns who took part and the mean training loss. The result is that of ``Star`` to rounding, with the same draws. The server asks
    for the model when it is evaluated, and at the end.

    Trust: the aggregator of a round sees the other clients' updates. If it does not answer, the clients send the same replies again to the
    next one. A client that misses a round's letter waits for the next.

    Warnat-Herresthal et al. 2021, "Swarm Learning for decentralized and confidential clinical machine learning". There, a blockchain elects the
    aggregator; here, the order follows from the seed, and everybody knows it.

    Attributes:
        order: ``"fixed"``, the clients take turns in their own order, or ``"shuffled"``, a random one in every round.
    """

    order: Literal["fixed", "shuffled"] = "fixed"

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ConfigError(f"order={self.order!r}", where="Swarm", remedy=f"use one of {', '.join(ORDERS)}")

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, all clients, and the plain mean that an aggregator takes."""
        return (
            *super().needs,
            Need(EVERYONE, "sends the state to every client, any of which may aggregate next"),
            Need(PLAIN_MEAN, "has aggregators without memory of their own", "Star()"),
            Need(STEPS, "lets every aggregator continue from the last one's state", "Star()"),
        )

    @property
    def offers(self) -> frozenset[Capability]:
        """One sum over all clients in every round, which no central server sees."""
        return frozenset({FIXED_COHORT, EVERYONE, ONE_SUM, RELEASED_ONLY})

    def check(self, context: Context) -> None:
        """Refuse algorithms whose rounds depend on the server's state, which no program sees here."""
        for hook in ("plan", "wanted"):
            if overrides(context.algorithm, hook):
                what = f"{type(context.algorithm).__name__} plans a round from the server's state, which is at a client here"
                refuse(self, what, "topology", "use Star(), or an algorithm with the same phases in every round")

    def tasks(self, context: Context) -> tuple[Task, ...]:
        """The tasks of clients and aggregators."""
        return self.course(context).tasks

    def course(self, context: Context) -> _Swarm:
        """Rounds with an aggregator each."""
        return _Swarm(self, context)


class _Swarm(NodeCourse):
    """The rounds of a swarm. Its state has who holds the newest model (``at``) and the letters under way."""

    def __init__(self, topology: Swarm, context: Context) -> None:
        self.topology, self.context = topology, context
        self.names = [str(name) for name in context.clients.names]

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks of clients, of aggregators, and the observer's."""
        return (self.train, self.send_again, self.aggregate, self.show)

    @property
    def train(self) -> Task:
        """Train on the state that came, and send the reply to the aggregator."""
        return Task("atoll.learn.topology:swarm_train", self._train, work=self._work)

    @property
    def send_again(self) -> Task:
        """Send the last reply to another aggregator."""
        return Task("atoll.learn.topology:swarm_send_again", self._send_again)

    @property
    def aggregate(self) -> Task:
        """Fold the replies that came, and send the new state to everybody."""
        return Task("atoll.learn.topology:swarm_aggregate", self._aggregate)

    @property
    def show(self) -> Task:
        """Report the model last aggregated here."""
        return Task("atoll.learn.topology:swarm_show", self._show)

    # ------------------------------------------------------------------ at the clients

    def _work(self, data: Any, args: Any, message: Tree) -> Work:
        del args
        return self.context.learner.train.declared(data, {"phase": message["phase"]})

    def _begin_model(self, message: Tree) -> Tree:
        learner = self.context.learner
        params = learner.init(Rng(int(message["init"])))
        return {"server": self.context.algorithm.init(params), "buffers": learner.buffers()}

    async def _train(self, island: Island, message: Tree) -> Tree:
        mine = island.state or {"client": None, "state": None, "version": 0, "said": None}
        came = next(iter(island.inbox.values()), None)
        if came is not None:
            mine = {**mine, "state": came["state"], "version": came["version"]}
        elif mine["state"] is None and message["version"] == 0:
            mine = {**mine, "state": self._begin_model(message)}
        if mine["version"] != message["version"]:  # a letter was missed
            return {"trained": False}
        state, phase = mine["state"], message["phase"]
        key = Rng(int(message["key"])).child(island.name)
        view = Turn(island, mine["client"], key)
        sent = {
            **self.context.algorithm.broadcast(state["server"], phase),
            **broadcast_extras(state, self.context.learner, int(message["round"])),
        }
        made = self.context.learner.train(view, {"broadcast": sent, "phase": phase})  # type: ignore[arg-type]
        reply = await made if inspect.isawaitable(made) else made
        said = {name: _write_summand(aggregate) for name, aggregate in reply.items()}
        island.state = {**mine, "client": view.state, "said": said}
        if message["to"] != island.name:
            island.post(message["to"], said)
        return {"trained": True}

    def _send_again(self, island: Island, message: Tree) -> Tree:
        if message["to"] != island.name:
            island.post(message["to"], island.state["said"])
        return {}

    def _aggregate(self, island: Island, message: Tree) -> Tree:
        mine, algorithm = island.state, self.context.algorithm
        said = {**island.inbox, island.name: mine["said"]}
        replies = [said[name] for name in message["senders"]]
        totals = {name: _add_parts([reply[name] for reply in replies]) for name in replies[0]}
        sums = {name: t.result() for name, t in totals.items() if t.role in ("update", "side")}
        state = mine["state"]
        told = {name: t.result() for name, t in totals.items() if t.role in ("buffer", "counter")}
        buffers = {**state, "buffers": moved_buffers(state["buffers"], told, len(replies))}
        info = RoundInfo(
            int(message["round"]), len(self.names), len(replies), len(self.names), None, Rng(int(message["draws"]))
        )
        server = algorithm.fold(state["server"], sums, info, message["phase"])
        if message["phase"] == algorithm.phases[-1]:
            server = facet(algorithm, Phased).advance(server, info)
        require_finite(server["params"], info.round, whose=island.name, rate="the learning rate")
        new = {**buffers, "server": server}
        version = int(message["version"]) + 1
        island.state = {**mine, "state": new, "version": version}
        for name in self.names:
            if name != island.name:
                island.post(name, {"state": new, "version": version})
        metrics = {name: t.result() for name, t in totals.items() if t.role == "metric"}
        return {"metrics": {name: float(value) for name, value in metrics.items() if np.ndim(value) == 0}}

    def _show(self, island: Island, message: Tree) -> Tree:
        del message
        return global_model(island.state["state"])

    # ------------------------------------------------------------------ the course

    def candidates(self, fed: Federation, number: int) -> list[str]:
        """Return the names of the clients in the order in which they are asked to aggregate a round."""
        if self.topology.order == "fixed":
            first = (number - 1) % len(self.names)
            return [*self.names[first:], *self.names[:first]]
        drawn = fed.rng.child("aggregator", number).generator().permutation(len(self.names))
        return [self.names[int(i)] for i in name_order(self.names)[drawn]]

    def initial(self, fed: Federation) -> Tree:
        """Start with the key of the initial model, which every client draws."""
        return {"at": None, "mail": {}, "version": 0, "init": str(fed.rng.child("init").key)}

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Run the phases of a round."""
        row: dict[str, Any] = {"selected": len(self.names), "replied": 0}
        for phase in self.context.algorithm.phases:
            state, found = await self._phase(fed, state, (number, phase))
            row.update(found)
            if "failed" in found:
                break
        return state, row

    async def _phase(self, fed: Federation, state: Tree, at: tuple[int, str]) -> tuple[Tree, dict[str, Any]]:
        """Train, and let the first candidate that answers aggregate."""
        number, phase = at
        order = self.candidates(fed, number)
        # The key of the learner's own request in a star: the same mini-batches.
        train = Rng.of(fed.world.seed).child(fed.slot, self.context.learner.train.name, f"@{number}/{phase}")
        common = {"round": number, "phase": phase, "version": state["version"], "init": state["init"]}
        heard = await self._ask(
            fed, fed.parties, self.train, {**common, "to": order[0], "key": str(train.key)}, (number, phase, "train"),
            Mailboxes(state["mail"]),
        )  # fmt: skip
        trained = [name for name, reply in heard.by_name().items() if reply["trained"]]
        draws = str(fed.rng.child("server", number).key)
        message, mail = {**common, "senders": trained, "draws": draws}, heard.mail
        for turn, name in enumerate([name for name in order if name in trained]):
            if name != order[0]:
                again = await self._ask(
                    fed, fed.parties.named(*trained), self.send_again, {"to": name}, (number, phase, "again", turn)
                )
                message, mail = {**message, "senders": list(again.by_name())}, again.mail
                if name not in message["senders"]:
                    continue
            done = await self._ask(
                fed, fed.parties.named(name), self.aggregate, message, (number, phase, "aggregate", turn), mail
            )
            if len(done):
                new = {**state, "at": name, "mail": done.mail.sealed(), "version": state["version"] + 1}
                position = self.names.index(name)
                return new, {
                    "replied": len(message["senders"]), "aggregator": position, **done.values[0]["metrics"]
                }  # fmt: skip
        return state, {"replied": 0, "failed": "no client could aggregate"}

    async def _ask(
        self,
        fed: Federation,
        parties: Parties,
        task: Task,
        message: Tree,
        at: tuple[Any, ...],
        mail: Mailboxes | None = None,
    ) -> Exchanged:
        deadline = self.context.pacing.deadline
        return await fed.exchange(parties, task, message, mail=mail, quorum=0, at=at, deadline=deadline)

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Return the model, from the client that aggregated last."""
        if state["at"] is None:
            return global_model(self._begin_model(state)), {}
        return await watch.ask(state["at"], self.show, at=(number, "show")), {}


def _write_summand(aggregate: Aggregate) -> Tree:
    """Return one reply's summand as a message."""
    total = aggregate.total()
    value = total.value[0].value if total.kind == "parts" else total.value
    return {"kind": total.kind, "value": value, "weight": float(total.weight), "role": total.role}


def _add_parts(parts: list[Mapping[str, Any]]) -> Total:
    """Return the sum of the replies of one name, in the order of the clients."""

    def read(part: Mapping[str, Any]) -> Total:
        value = [Part(part["value"], part["weight"])] if part["kind"] == "parts" else part["value"]
        return Total(part["kind"], value, part["weight"], 1, part["role"])

    total = read(parts[0])
    for part in parts[1:]:
        total = total.merge(read(part))
    return total
