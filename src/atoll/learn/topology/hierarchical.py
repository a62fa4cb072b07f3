"""Client, edge, cloud: edge servers run their own rounds, and a cloud averages them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import FIXED_COHORT, RELEASED_ONLY, SERVER, Capability, Need
from atoll.core.errors import ConfigError
from atoll.core.job import EDGE
from atoll.core.validation import whole_rows
from atoll.learn.selection.base import Candidates, Selection
from atoll.rounds.loop import Course

from ..capabilities import EDGE_ROUNDS, ONE_SUM, SAMPLE
from ..round.invitation import Inviter
from ..round.rounds import server_round
from ..round.state import global_model, initial
from .base import Topology, refuse
from .graphs import Complete, Graph
from .mixing import mean_states, mixing_matrix, pick_shared, pull_leaves, require_connected, with_shared
from .nodes import seed_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation

    from ..context import Context

__all__ = [
    "ClusteredGossip",
    "EdgeRounds",
    "Grouped",
    "Groups",
    "Hierarchical",
    "check_groups",
    "members_of",
    "sum_rows",
]


Groups = int | tuple[tuple[int, ...], ...]
"""Number of groups of (nearly) equal size, in the order of the clients; or the positions of each group's members."""


def check_groups(groups: Groups, where: str) -> Groups:
    """Refuse impossible groups; return valid ones as plain tuples.

    Raises:
        ConfigError: ``groups`` is neither a number nor groups of positions, has no group, an empty one, or a client in two groups.
    """
    if isinstance(groups, int | np.integer):
        if groups < 1:
            raise ConfigError(f"groups={groups}", where=where, remedy="use at least 1")
        return int(groups)
    made = whole_rows(where, "groups", groups, "use a number, or lists of positions such as [[0, 1], [2]]")
    everyone = [i for group in made for i in group]
    if not made or not all(made) or len(set(everyone)) < len(everyone):
        raise ConfigError(f"groups={made}", where=where, remedy="put each client into one group, and leave none empty")
    return made


def members_of(groups: Groups, n: int, where: str) -> list[NDArray[np.int64]]:
    """Return the positions of each group's members, sorted.

    Raises:
        ConfigError: the groups do not match ``n`` clients.
    """
    if isinstance(groups, int):
        if groups > n:
            raise ConfigError(f"groups={groups} of {n} clients", where=where, remedy="use at most one group per client")
        return [np.sort(part) for part in np.array_split(np.arange(n), groups)]
    found = [np.array(sorted(group), dtype=np.int64) for group in groups]
    if sorted(int(i) for part in found for i in part) != list(range(n)):
        raise ConfigError(
            f"the groups have {sum(map(len, found))} clients, but the federation has {n}",
            where=where,
            remedy="put each of the federation's clients into one group",
        )
    return found


@dataclass(frozen=True)
class Grouped(Graph):
    """A graph inside each group, and no links between groups.

    Attributes:
        base: the graph of each group.
        groups: the groups.
        n: total number of nodes.
    """

    base: Graph
    groups: Groups
    n: int

    @property
    def changes(self) -> bool:
        """Whether the base changes."""
        return self.base.changes

    def edges(self, n: int, rng: Rng) -> NDArray[np.int64]:
        """Return the edges among all nodes."""
        return self.among(np.arange(n), rng)

    def among(self, members: NDArray[np.int64], rng: Rng) -> NDArray[np.int64]:
        """Return the edges inside each group."""
        found = [np.zeros((0, 2), dtype=np.int64)]
        for number, group in enumerate(members_of(self.groups, self.n, "topology.groups")):
            there = np.flatnonzero(np.isin(members, group))
            if len(there) > 1:
                found.append(there[self.base.edges(len(there), rng.child("group", number))])
        return np.concatenate(found)


# ---------------------------------------------------------------- client, edge, cloud


_COUNTS = (
    "selected",
    "replied",
    "silent",
    "rejected",
    "crashed",
    "late",
    "synchronised",
    "wasted",
    "bits_declared",
)


@dataclass(frozen=True, kw_only=True)
class _Edges(Topology):
    """Clients in groups, each with an edge server.

    Attributes:
        groups: number of groups, or the positions of each group's members.
        every: rounds that an edge runs with its own members before edges exchange models.
    """

    groups: Groups = 2
    every: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", check_groups(self.groups, type(self).__name__))
        if self.every < 1:
            raise ConfigError(f"every={self.every}", where=type(self).__name__, remedy="use at least 1 round")

    def groups_of(self, n: int) -> list[NDArray[np.int64]]:
        """Return the members of each edge."""
        return members_of(self.groups, n, type(self).__name__)

    def servers(self, n: int) -> dict[str, str]:
        """Return ``edge-0``, ``edge-1``, ..."""
        return {f"edge-{e}": EDGE for e in range(len(self.groups_of(n)))}

    @property
    def offers(self) -> frozenset[Capability]:
        """Servers that receive only released replies from clients; one sum, if one edge has all clients."""
        one = self.groups == 1 if isinstance(self.groups, int) else len(self.groups) == 1
        return frozenset({SERVER, FIXED_COHORT, RELEASED_ONLY, *((ONE_SUM,) if one else ())})

    @property
    def lacks(self) -> Mapping[Capability, str]:
        """Reasons for capabilities that the topology does not offer."""
        return {ONE_SUM: "knows only that of an edge's clients"}


@dataclass(frozen=True, kw_only=True)
class Hierarchical(_Edges):
    """Client-edge-cloud: an edge runs ``every`` rounds with its members, then the cloud averages the edges, by examples.

    A round of the history is one of the cloud's rounds: ``every`` rounds at each edge. Selection, uplink, reducer, aggregation and pacing act
    between edges and clients. The edges' servers are averaged leaf by leaf (parameters, momentum, control variates). With ``every=1`` and
    all clients, it is flat training if the server's fold is linear (FedAvg, FedAvgM, FedProx, FedDyn). The cloud's traffic is
    ``2 * edges`` models for ``every`` rounds, instead of ``2 * clients`` per round.

    Liu, Zhang, Song, Letaief 2020, "Client-Edge-Cloud Hierarchical Federated Learning" (HierFAVG): ``kappa_1`` is the algorithm's local steps,
    ``kappa_2`` is ``every``.

    With ``lockstep=True``, a round of the history is one round of the clients: edges wait for each other in every round, and the cloud acts once in
    ``every`` rounds. W. Wu's thesis (2021, section 4.5.2) times HierFAVG this way, to compare it with methods with rounds of one kind. Between the cloud's
    rounds, the global model is the mean of the edges' models by examples, which no party holds.

    Attributes:
        groups: number of edges, or the positions of each edge's members.
        every: ``kappa_2``.
        lockstep: whether rows are rounds of the clients.
        together: whether the cohort of a round is drawn among all clients, as in that thesis's tables, instead of ``ceil(C N_r)`` in every region; needs
            ``lockstep`` and ``Uniform`` selection.
    """

    lockstep: bool = False
    together: bool = False

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs; with ``together``, also a rule without memory."""
        drawn = Need(SAMPLE, "draws a cohort among all clients", "together=False")
        return (*super().needs, *((drawn,) if self.together else ()))

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's capabilities; if the cloud averages after each round, also edge rounds for a pacing."""
        return super().offers | {EDGE_ROUNDS} if self.every == 1 and not self.lockstep else super().offers

    def check(self, context: Context) -> None:
        """Refuse impossible cohorts."""
        super().check(context)
        if self.together and not self.lockstep:
            refuse(
                self,
                "a cohort drawn among all clients needs rounds in lockstep",
                "topology.together",
                "use lockstep=True, or together=False",
            )

    def course(self, context: Context) -> Course:
        """Return rounds of the cloud."""
        if context.pacing.layered:
            return context.pacing.course(context)
        return Lockstep(self, context) if self.lockstep else _Cloud(self, context)


@dataclass(frozen=True, kw_only=True)
class ClusteredGossip(_Edges):
    """Centralised inside groups, decentralised between them: an edge runs ``every`` rounds with its members, then edges mix with their neighbours.

    No party coordinates the edges. Each has its own model, and the global model is their mean. ``consensus`` in the history is the distance
    of the farthest edge from it. On a complete graph with clusters of equal size and data, it is flat training.

    Attributes:
        groups: number of edges, or the positions of each edge's members.
        every: rounds at the edges before they mix.
        graph: the graph of the edges.
        mixing: number of mixing steps.
    """

    graph: Graph = field(default_factory=Complete)
    mixing: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mixing < 1:
            raise ConfigError(f"mixing={self.mixing}", where="ClusteredGossip", remedy="use at least 1 step")

    def course(self, context: Context) -> Course:
        """Return rounds of the edges, and mixing."""
        return _Peers(self, context)


class EdgeRounds(Course):
    """Edges that run rounds with their members."""

    def __init__(self, topology: _Edges, context: Context) -> None:
        self.every, self.context = topology.every, context
        self.groups = topology.groups_of(len(context.clients))
        self.weights = [context.clients.weight(members) for members in self.groups]
        self.contexts = [replace(context, clients=context.clients.part(members)) for members in self.groups]

    def initial(self, fed: Federation) -> Tree:
        """Start with a server's state for every edge."""
        sizes = [None if self.context.clients.sizes is None else w for w in self.weights]
        first = initial(fed, self.context)
        rules = [self.context.selection.init(fed.parties[m]) for m in self.groups]
        return {
            "edges": [
                {**first, "rounds": 0, "weight": w, "selection": rule} for w, rule in zip(sizes, rules, strict=True)
            ]
        }

    async def visit(self, fed: Federation, e: int, state: Tree, down: Tree = None) -> tuple[Tree, dict[str, Any]]:
        """Let an edge run its rounds; it receives ``down`` first, and answers in the same form."""
        rows: list[dict[str, Any]] = []
        kept = state

        async def program(edge: Federation, message: Tree) -> Tree:
            nonlocal kept
            kept = kept if message is None else {**kept, **message}
            for _ in range(self.every):
                number = kept["rounds"] + 1
                kept = {**kept, "rounds": number}
                kept, row = await server_round(edge, self.contexts[e], kept, number)
                rows.append(row)
            return None if message is None else {name: kept[name] for name in message}

        await fed.nest(f"edge-{e}", program, fed.parties[self.groups[e]], down)
        return kept, sum_rows(rows)

    async def visits(self, fed: Federation, state: Tree, down: Tree = None) -> tuple[list[Tree], dict[str, Any]]:
        """Let all edges run their rounds concurrently."""
        made = await asyncio.gather(*(self.visit(fed, e, edge, down) for e, edge in enumerate(state["edges"])))
        return [edge for edge, _ in made], sum_rows([row for _, row in made])

    def average_edges(self, edges: list[Tree]) -> Tree:
        """Return the global model: the mean of the edges' models."""
        models = [global_model(edge) for edge in edges]
        return mean_states(models, [1.0] * len(models))


class _Cloud(EdgeRounds):
    """Edges under a cloud."""

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Send the mean, let the edges work, average."""
        del number
        known = state["edges"][0]
        down = {"server": known["server"], "buffers": known["buffers"]}
        edges, row = await self.visits(fed, state, down)
        mean = mean_states([{name: edge[name] for name in down} for edge in edges], self.weights)
        traffic = {"cloud_bytes_down": len(edges) * M.nbytes(down)}
        traffic["cloud_bytes_up"] = sum(M.nbytes({name: edge[name] for name in down}) for edge in edges)
        return {"edges": [{**edge, **mean} for edge in edges]}, {**row, **traffic}

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Return the cloud's model."""
        del watch, number
        return global_model(state["edges"][0]), {}


class _Peers(EdgeRounds):
    """Edges that mix among themselves."""

    def __init__(self, topology: ClusteredGossip, context: Context) -> None:
        super().__init__(topology, context)
        self.graph, self.mixing = topology.graph, topology.mixing

    def initial(self, fed: Federation) -> Tree:
        """Start with a state for every edge, if the edges' graph is connected."""
        names = [f"edge-{e}" for e in range(len(self.groups))]
        require_connected(self.graph, len(names), self.graph_key(fed, 1), names)
        return super().initial(fed)

    def graph_key(self, fed: Federation, number: int) -> int:
        """Return the key from which the graph of a round is drawn."""
        return seed_of(fed.rng, "graph", number if self.graph.changes else 0)

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Let the edges work, and mix."""
        edges, row = await self.visits(fed, state)
        matrix = mixing_matrix(self.graph, np.arange(len(edges)), self.graph_key(fed, number))
        for _ in range(self.mixing):
            edges = await self._mix_edges(fed, edges, matrix)
        return {"edges": edges}, row

    async def _mix_edges(self, fed: Federation, edges: list[Tree], matrix: Any) -> list[Tree]:
        """Run one mixing step: every edge sends its state to each neighbour over their own link."""
        sent = [pick_shared(edge, "state") for edge in edges]
        place = [fed.world.roster.position(f"edge-{e}") for e in range(len(edges))]
        clock, transfer = fed.clock, fed.world.cost.transfer
        slowest = clock.now()
        made = []
        for i, edge in enumerate(edges):
            near = [int(j) for j in np.flatnonzero(matrix[i]) if j != i]
            for j in near:
                size = M.nbytes(sent[j])
                fed.meter.down(f"edge-{j}", np.array([place[i]], dtype=np.int64), size)
                slowest = max(slowest, clock.now() + transfer(f"edge-{j}", f"edge-{i}", size))
            values = pull_leaves(sent[i], {str(j): sent[j] for j in near}, {str(j): float(matrix[i, j]) for j in near})
            made.append({**edge, **with_shared({n: edge[n] for n in ("server", "buffers")}, values, "state")})
        await clock.sleep_until(slowest)
        return made

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Return the mean model, and the distance of the farthest edge from it."""
        del watch, number
        mean = self.average_edges(state["edges"])
        away = [
            float(np.sqrt(sum(np.sum((leaf - mean[name]) ** 2) for name, leaf in edge["server"]["params"].items())))
            for edge in state["edges"]
        ]
        return mean, {"consensus": max(away)}


def sum_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return several rows as one: counts add up, measures are means over the replies."""
    made: dict[str, Any] = {}
    weights = [max(float(row.get("replied", 0)), 0.0) for row in rows]
    for name in dict.fromkeys(key for row in rows for key in row if not key.startswith("bytes_")):
        values = [row.get(name) for row in rows]
        if name in _COUNTS:
            made[name] = sum(v or 0 for v in values)
        elif isinstance(next(v for v in values if v is not None), dict):
            made[name] = {k: v for value in values for k, v in (value or {}).items()}
        elif isinstance(next(v for v in values if v is not None), list):
            made[name] = [item for value in values for item in value or []]
        elif isinstance(next(v for v in values if v is not None), str):
            made[name] = "; ".join(dict.fromkeys(str(v) for v in values if v is not None))
        else:
            pairs = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None and w > 0]
            if pairs:
                made[name] = float(np.average([v for v, _ in pairs], weights=[w for _, w in pairs]))
    return made


# ---------------------------------------------------------------- edges in lockstep


@dataclass(frozen=True)
class _Drawn(Selection):
    """Selection of clients drawn before.

    Attributes:
        positions: positions of these clients in the roster.
    """

    positions: tuple[int, ...]

    def cohort_size(self, population: int) -> int:
        """Return the number of drawn clients."""
        del population
        return len(self.positions)

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Return those that are available."""
        del count, state
        return np.flatnonzero(np.isin(candidates.parties.positions, self.positions))


class Lockstep(EdgeRounds):
    """Rounds of the clients under edges that wait for each other.

    Args:
        topology: the topology, with ``every`` and ``together``.
        context: the training's context.
    """

    def __init__(self, topology: Hierarchical, context: Context) -> None:
        super().__init__(topology, context)
        self.together = topology.together

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Run one round at every edge; the cloud sends its model before the first of ``every`` rounds and computes it after the last."""
        edges, row = state["edges"], dict[str, Any]()
        sent = {name: edges[0][name] for name in ("server", "buffers")}
        if (number - 1) % self.every == 0:
            row["cloud_bytes_down"] = await self._carry(fed, [sent] * len(edges), "down")
        contexts = self._contexts(fed, edges[0])
        made = await asyncio.gather(*(self._cycle(fed, e, edge, contexts[e]) for e, edge in enumerate(edges)))
        edges = [edge for edge, _ in made]
        row.update(sum_rows([found for _, found in made]))
        if number % self.every == 0:
            told = [{name: edge[name] for name in sent} for edge in edges]
            row["cloud_bytes_up"] = await self._carry(fed, told, "up")
            mean = mean_states(told, self.weights)
            edges = [{**edge, **mean} for edge in edges]
        return {"edges": edges}, row

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Return the mean of the edges' models by examples, which is the cloud's model if it was just computed."""
        del watch, number
        models = [global_model(edge) for edge in state["edges"]]
        return mean_states(models, self.weights), {}

    def _contexts(self, fed: Federation, edge: Tree) -> list[Context | None]:
        """Return each edge's context; ``None`` if no client of its region was drawn."""
        if not self.together:
            return list(self.contexts)
        inviter = Inviter(fed, self.context, {**edge, "contacts": edge["contacts"] + 1})
        drawn = inviter.invite().positions
        chosen = [tuple(int(p) for p in drawn[np.isin(drawn, members)]) for members in self._positions(fed)]
        pairs = zip(self.contexts, chosen, strict=True)
        return [replace(known, selection=_Drawn(who)) if who else None for known, who in pairs]

    def _positions(self, fed: Federation) -> list[NDArray[np.int64]]:
        return [fed.parties.positions[members] for members in self.groups]

    async def _cycle(
        self, fed: Federation, e: int, state: Tree, context: Context | None
    ) -> tuple[Tree, dict[str, Any]]:
        """Run a round of one edge, which is a hub with its own scope for the whole training."""
        number = state["rounds"] + 1
        state = {**state, "rounds": number}
        if context is None and self.context.algorithm.plan(state["server"]):
            return {**state, "contacts": state["contacts"] + 1}, {"selected": 0, "replied": 0}
        scope = fed.scope(f"edge-{e}")
        scope.settle_at(fed.parties[self.groups[e]], f"edge-{e}", scope.slot)
        return await server_round(scope, context or self.contexts[e], state, number)

    async def _carry(self, fed: Federation, messages: list[Tree], way: str) -> int:
        """Send each edge a message, or receive one from it, concurrently; return all bytes."""
        clock, transfer, roster = fed.clock, fed.world.cost.transfer, fed.world.roster
        sizes, slowest = [M.nbytes(message) for message in messages], 0.0
        for e, size in enumerate(sizes):
            name = f"edge-{e}"
            place = np.array([roster.position(name)], dtype=np.int64)
            if way == "down":
                fed.meter.down(fed.hub, place, size)
            else:
                fed.meter.up(fed.hub, place, np.array([size], dtype=np.int64))
            ends = (fed.hub, name) if way == "down" else (name, fed.hub)
            slowest = max(slowest, transfer(*ends, size))
        await clock.sleep_until(clock.now() + slowest)
        return sum(sizes)
