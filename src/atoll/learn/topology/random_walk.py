"""Random walks: tokens move from neighbour to neighbour, and each visited node trains them one step further."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import FIXED_COHORT, RELEASED_ONLY, Capability, Need
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.requests.request import Mailboxes
from atoll.core.requests.task import Task

from ..capabilities import EVERYONE
from ..round.state import global_model
from .base import Decentralised, NodeCourse, require_every_visit_trains
from .graphs import Expander, Graph
from .mixing import mean_states, mixing_matrix, require_connected
from .node import Node
from .nodes import seed_of

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

    from ..context import Context

__all__ = ["RandomWalk"]


@dataclass(frozen=True, kw_only=True)
class RandomWalk(Decentralised):
    """The server's state is a token that walks on the graph. Each visit is a round of the algorithm with one client, the visited node.

    The next node follows the Metropolis weights (a token may stay), so in the long run, all nodes are visited equally often. Each hop is one
    message of one model per token, whatever the graph's degree. Several tokens walk at the same time, and the global model is their mean;
    ``spread`` in the history is the distance of the farthest token from it. With ``FedAvg``, this is incremental SGD by a random walk, which circles
    around the optimum; with ``Walkman``, it is the parallel random-walk ADMM, which reaches the optimum.

    Mao, Yuan, Hu, Gu, Sayed, Yin 2020, "Walkman: A Communication-Efficient Random-Walk Algorithm for Decentralized Optimization"; with
    several tokens Xiao et al. 2021. If a token's node does not answer, the token waits and is sent again.

    Attributes:
        graph: the neighbours of each node; with ``TimeVarying``, the links of each round.
        tokens: number of tokens.
        hops: visits of each token in a round of the history.
    """

    graph: Graph = field(default_factory=Expander)
    tokens: int = 1
    hops: int = 1

    def __post_init__(self) -> None:
        for name in ("tokens", "hops"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}", where="RandomWalk", remedy="use at least 1")

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, and no selection: the walk determines the visited nodes."""
        return (*super().needs, Need(EVERYONE, "determines itself which nodes are visited"))

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's capabilities without rounds of all clients; only released content: a token is folded from released replies."""
        return (super().offers - {FIXED_COHORT}) | {RELEASED_ONLY}

    @property
    def lacks(self) -> Mapping[Capability, str]:
        """Reasons for capabilities that the topology does not offer."""
        return {**super().lacks, FIXED_COHORT: "has a token that meets one client at a time"}

    def check(self, context: Context) -> None:
        """Refuse a number of tokens that does not fit the clients or the algorithm."""
        if self.tokens > len(context.clients):
            raise ConfigError(
                f"tokens={self.tokens} on {len(context.clients)} nodes", where="RandomWalk", remedy="use fewer"
            )
        require_every_visit_trains(self, context)
        mark = _mark_token(context.algorithm.init(context.learner.init(Rng(0))), 0)[1]
        if mark is not None and len(mark) != self.tokens:
            raise CompositionError(
                f"{type(context.algorithm).__name__} is made for {len(mark)} token(s), but tokens={self.tokens}",
                where="Training.topology",
                remedy=f"use {type(context.algorithm).__name__}(tokens={self.tokens})",
            )

    def course(self, context: Context) -> _Walk:
        """Hops."""
        return _Walk(self, context)


class _Walk(NodeCourse):
    """The rounds of walking tokens."""

    def __init__(self, topology: RandomWalk, context: Context) -> None:
        self.topology, self.graph, self.context = topology, topology.graph, context
        self.node = Node(context.algorithm, context.learner, population=len(context.clients))
        self.place_of = {str(name): place for place, name in enumerate(context.clients.names)}

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The task of a visit, and the observer's task."""
        return (self.visit, self.show)

    def check(self, fed: Federation) -> None:
        """Refuse a disconnected graph: a token would never reach the other parts."""
        require_connected(
            self.graph,
            len(self.context.clients),
            self.graph_key(fed, 1),
            [str(name) for name in self.context.clients.names],
        )

    @property
    def visit(self) -> Task:
        """Train the received tokens one step further, and pass them on."""
        return Task("atoll.learn.topology:visit", self._visit, work=self.node.work)

    @property
    def show(self) -> Task:
        """Report the models of the tokens last seen here."""
        return Task("atoll.learn.topology:show", self._show)

    def graph_key(self, fed: Federation, number: int) -> int:
        """Return the key from which the graph of a round is drawn."""
        return seed_of(fed.rng, "graph", number if self.graph.changes else 0)

    def _begin_token(self, key: int, token: int) -> Tree:
        """Return a token before its first visit."""
        node = self.node.begin(key)
        return {"server": _mark_token(node["server"], token)[0], "buffers": node["buffers"]}

    async def _visit(self, island: Island, message: Tree) -> Tree:
        mine = island.state or {"client": None}
        tokens: dict[str, Tree] = dict(mine.get("held", {}))
        for box in island.inbox.values():
            tokens.update(box)
        fresh = message["start"].get(island.name, [])
        tokens.update({str(token): self._begin_token(message["init"], int(token)) for token in fresh})
        moves, metrics = dict[str, dict[str, Tree]](), []
        client = mine["client"]
        for token in sorted(tokens, key=int):
            node = {**tokens[token], "client": client}
            node, found = await self.node.round(island, node, int(message["round"]), f"token-{token}")
            client = node["client"]
            tokens[token] = {"server": node["server"], "buffers": node["buffers"]}
            metrics += [float(a.total().result()) for name, a in found.items() if name == "loss"]
            moves.setdefault(self._next(island, message, token), {})[token] = tokens[token]
        held = moves.pop(island.name, {})
        for name, payload in moves.items():
            island.post(name, payload)
        island.state = {"client": client, "held": held, "sent": tokens}
        to = {token: name for name, payload in {**moves, island.name: held}.items() for token in payload}
        return {"to": to, "loss": metrics}

    def _next(self, island: Island, message: Tree, token: str) -> str:
        row = mixing_matrix(self.graph, np.arange(len(self.context.clients)), message["key"])[
            self.place_of[island.name]
        ]
        chosen = island.rng.child("next", int(token)).generator().choice(len(row), p=row / row.sum())
        return str(self.context.clients.names[int(chosen)])

    def _show(self, island: Island, message: Tree) -> Tree:
        """Return the requested tokens."""
        sent = island.state["sent"]
        return {t: global_model(sent[t]) for t in message["of"] if t in sent}

    # ------------------------------------------------------------------ the course

    def initial(self, fed: Federation) -> Tree:
        """Start with each token at its own node, and no message under way."""
        self.check(fed)
        draw = fed.rng.child("start").generator()
        places = draw.choice(len(fed.parties), self.topology.tokens, replace=False)
        at = {str(token): str(self.context.clients.names[int(i)]) for token, i in enumerate(places)}
        return {"at": at, "was": {}, "mail": {}, "hops": 0, "init": seed_of(fed.rng, "init")}

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Run ``hops`` visits of every token."""
        losses: list[float] = []
        visits = 0
        for _ in range(self.topology.hops):
            state, said = await self._hop(fed, state, number)
            visits += sum(len(reply["to"]) for reply in said)
            losses += [loss for reply in said for loss in reply["loss"]]
        row = {"selected": self.topology.tokens * self.topology.hops, "replied": visits}
        return state, {**row, **({"loss": float(np.mean(losses))} if losses else {})}

    async def _hop(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, list[Tree]]:
        hop, at = state["hops"], state["at"]
        names = sorted(set(at.values()), key=fed.world.roster.position)
        start: dict[str, list[int]] = {}
        for token, name in at.items():
            if token not in state["was"]:  # the token has not visited any node yet
                start.setdefault(name, []).append(int(token))
        message = {"init": state["init"], "round": number, "key": self.graph_key(fed, number), "start": start}
        nodes = fed.parties.named(*names)
        heard = await fed.exchange(
            nodes, self.visit, message, mail=Mailboxes(state["mail"]), quorum=0, at=(number, "visit", hop)
        )
        replies = heard.by_name()
        waiting = {name: box for name, box in state["mail"].items() if name in names and name not in replies}
        moved = {token: (name, reply["to"][token]) for name, reply in replies.items() for token in reply["to"]}
        mail = heard.mail.sealed()
        for name, box in waiting.items():
            mail[name] = {**box, **mail.get(name, {})}
        was = {**state["was"], **{token: came for token, (came, _) in moved.items()}}
        at = {**at, **{token: goes for token, (_, goes) in moved.items()}}
        return {**state, "hops": hop + 1, "at": at, "was": was, "mail": mail}, list(replies.values())

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Return the mean of the tokens, from the nodes that saw them last."""
        if not state["was"]:  # no token has met an available node
            return global_model(self._begin_token(state["init"], 0)), {"spread": 0.0}
        nodes = watch.parties.named(*sorted(set(state["was"].values()), key=watch.world.roster.position))
        said = await watch.ask_all(nodes, self.show, {"of": sorted(state["was"])}, at=(number, "show"))
        found = {
            token: reply[token]
            for name, reply in said.by_name().items()
            for token in reply
            if state["was"][token] == name
        }
        models = [found[token] for token in sorted(found, key=int)]
        mean = mean_states(models, [1.0] * len(models))
        numbers = [n for n, leaf in mean.items() if np.asarray(leaf).dtype.kind == "f"]
        off = [np.sqrt(sum(np.sum((np.asarray(m[n]) - mean[n]) ** 2) for n in numbers)) for m in models]
        return mean, {"spread": float(max(off))}


def _mark_token(server: Tree, token: int) -> tuple[Tree, Any]:
    """Return a server's state with its token's mark, and the mark, if the algorithm (or the one in a wrapper) has one."""
    if "token" in server:
        hot = np.zeros_like(server["token"])
        hot[token] = 1
        return {**server, "token": hot}, hot
    if "base" not in server:
        return server, None
    inner, mark = _mark_token(server["base"], token)
    return {**server, "base": inner}, mark
