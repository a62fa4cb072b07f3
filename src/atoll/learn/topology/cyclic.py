"""Cyclic weight transfer: the model visits the clients one after the other, and each trains it further."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from atoll.core.algebra.rng import name_order
from atoll.core.algebra.tree import Tree
from atoll.core.capability import FIXED_COHORT, RELEASED_ONLY, Capability, Need
from atoll.core.errors import ConfigError
from atoll.core.requests.request import Mailboxes
from atoll.core.requests.task import Task

from ..capabilities import EVERYONE
from ..round.state import global_model
from .base import Decentralised, NodeCourse, require_every_visit_trains
from .node import Node
from .nodes import seed_of

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.core.requests.results import Exchanged

    from ..context import Context

__all__ = ["Cyclic"]

ORDERS = ("fixed", "shuffled")


@dataclass(frozen=True, kw_only=True)
class Cyclic(Decentralised):
    """Cyclic weight transfer: in a round, the model visits every client once.

    Each client takes the algorithm's local steps and folds its own reply::

        for k in order(round):
            w <- w + update_k(w)            # with FedAvg: the model that client k has trained

    The server's state (momentum, control variates) travels with the model in letters from client to client, which the server relays unread. A
    client that does not answer is skipped: the last one that answered sends its state to the next. If that one is down as well, the rest of the
    round is skipped (``skipped`` in the history). The deadline of the pacing holds for each visit. The server asks for the model when it is
    evaluated, and at the end.

    Chang et al. 2018, "Distributed deep learning networks among institutions for medical imaging"; NVIDIA FLARE calls it ``CyclicController``.

    Attributes:
        order: ``"fixed"``, the clients' own order, or ``"shuffled"``, a new random order in every round.
    """

    order: Literal["fixed", "shuffled"] = "fixed"

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ConfigError(f"order={self.order!r}", where="Cyclic", remedy=f"use one of {', '.join(ORDERS)}")

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, and all clients."""
        return (*super().needs, Need(EVERYONE, "visits every client in every round"))

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's capabilities without rounds of all clients at once; only released content: the state is folded from released replies."""
        return (super().offers - {FIXED_COHORT}) | {RELEASED_ONLY}

    @property
    def lacks(self) -> Mapping[Capability, str]:
        """Reasons for capabilities that the topology does not offer."""
        return {**super().lacks, FIXED_COHORT: "has a model that meets one client at a time"}

    def check(self, context: Context) -> None:
        """Refuse an algorithm with rounds of the server alone."""
        require_every_visit_trains(self, context)

    def course(self, context: Context) -> _Cycle:
        """Visits."""
        return _Cycle(self, context)


class _Cycle(NodeCourse):
    """The rounds of one model that goes around. Its state says who holds the model (``at``), and the letter under way."""

    def __init__(self, topology: Cyclic, context: Context) -> None:
        self.topology, self.context = topology, context
        self.names = [str(name) for name in context.clients.names]
        self.node = Node(context.algorithm, context.learner, population=len(self.names))

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks of a visit, of sending the model elsewhere, and the observer's."""
        return (self.visit, self.send_on, self.show)

    @property
    def visit(self) -> Task:
        """Train the model that came, and send it on."""
        return Task("atoll.learn.topology:cyclic_visit", self._visit, work=self.node.work)

    @property
    def send_on(self) -> Task:
        """Send the model last trained here to another client."""
        return Task("atoll.learn.topology:cyclic_send_on", self._send_on)

    @property
    def show(self) -> Task:
        """Report the model last trained here."""
        return Task("atoll.learn.topology:cyclic_show", self._show)

    async def _visit(self, island: Island, message: Tree) -> Tree:
        mine = island.state or {"client": None, "model": None}
        if message["at"] is None:
            came = self.node.begin(message["init"])
        else:
            came = mine["model"] if message["at"] == island.name else island.inbox[message["at"]]
        node, metrics = await self.node.round(island, {**came, "client": mine["client"]}, int(message["round"]))
        model = {"server": node["server"], "buffers": node["buffers"]}
        island.state = {"client": node["client"], "model": model}
        if message["next"] != island.name:
            island.post(message["next"], model)
        totals = {name: a.total() for name, a in metrics.items()}
        return {name: [float(t.result()), float(t.weight)] for name, t in totals.items() if np.ndim(t.value) == 0}

    def _send_on(self, island: Island, message: Tree) -> Tree:
        island.post(message["to"], island.state["model"])
        return {}

    def _show(self, island: Island, message: Tree) -> Tree:
        del message
        return global_model(island.state["model"])

    # ------------------------------------------------------------------ the course

    def order(self, fed: Federation, number: int) -> list[str]:
        """Return the names of the clients in the order of a round."""
        if self.topology.order == "fixed":
            return self.names
        drawn = fed.rng.child("order", number).generator().permutation(len(self.names))
        return [self.names[int(i)] for i in name_order(self.names)[drawn]]

    def initial(self, fed: Federation) -> Tree:
        """Start with a model that the first client draws from a key."""
        return {"at": None, "mail": {}, "init": seed_of(fed.rng, "init")}

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Visit every client once."""
        order, told = self.order(fed, number), list[Tree]()
        following = [*order[1:], self.order(fed, number + 1)[0]]
        for i, (name, then) in enumerate(zip(order, following, strict=True)):
            ready = await self._brought(fed, state, name, (number, "send", i))
            if ready is None:
                continue
            state = ready
            message = {"init": state["init"], "round": number, "at": state["at"], "next": then}
            heard = await self._one(fed, name, self.visit, message, (number, "visit", i), Mailboxes(state["mail"]))
            if len(heard):
                state = {**state, "at": name, "mail": heard.mail.sealed()}
                told += heard.values
        row: dict[str, Any] = {"selected": len(order), "replied": len(told), "skipped": len(order) - len(told)}
        if not told:
            row["failed"] = (
                "no client answered" if state["at"] is None else f"{state['at']} has the model, and is silent"
            )
        return state, {**row, **_means(told)}

    async def _brought(self, fed: Federation, state: Tree, name: str, at: tuple[int, str, int]) -> Tree | None:
        """Return the state with the model on its way to a client; ``None`` if the holder of the model does not answer."""
        if state["at"] in (None, name) or name in state["mail"]:
            return state
        sent = await self._one(fed, state["at"], self.send_on, {"to": name}, at)
        return {**state, "mail": sent.mail.sealed()} if len(sent) else None

    async def _one(
        self,
        fed: Federation,
        name: str,
        task: Task,
        message: Tree,
        at: tuple[int, str, int],
        mail: Mailboxes | None = None,
    ) -> Exchanged:
        deadline = self.context.pacing.deadline
        return await fed.exchange(fed.parties.named(name), task, message, mail=mail, quorum=0, at=at, deadline=deadline)

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Return the model, from the client that trained it last."""
        if state["at"] is None:
            return global_model(self.node.begin(state["init"])), {}
        return await watch.ask(state["at"], self.show, at=(number, "show")), {}


def _means(told: list[Tree]) -> dict[str, float]:
    """Return the mean of each metric over the visits, by weight."""
    found = dict[str, float]()
    for name in sorted({key for reply in told for key in reply}):
        values, weights = zip(*(reply[name] for reply in told if name in reply), strict=True)
        if sum(weights) > 0:
            found[name] = float(np.average(values, weights=weights))
    return found
