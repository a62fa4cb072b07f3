"""Clustered federated learning (Sattler, Müller, Samek 2020): the server splits clients that pull in different directions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.capability import RELEASED_ONLY, SINGLE_REPLIES, Capability, Need
from atoll.core.errors import ConfigError
from atoll.learn.aggregation.base import Aggregation
from atoll.rounds.loop import Course

from ..aggregation.keep_local import SingleReplies
from ..capabilities import BY_EXAMPLES, EVERYONE, MEAN_UPDATE, PLAIN_MEAN
from ..round.evaluation import scores
from ..round.rounds import server_round
from ..round.state import global_model, initial
from .base import Topology
from .hierarchical import sum_rows
from .mixing import components, mean_states

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.requests.results import Combined

    from ..algorithm import Algorithm, RoundInfo
    from ..context import Context

__all__ = ["CFL", "bipartition"]


@dataclass(frozen=True, kw_only=True)
class CFL(Topology):
    """One server with a model for every cluster of clients. It starts with one cluster and splits a cluster that has settled but whose members still pull.

    A cluster splits when ``||mean update|| < settled`` and ``max_k ||update_k|| > pulling``: its members agree on the mean but pull in
    different directions. The two parts are those with the smallest largest cosine similarity between their updates. Each continues from the
    cluster's state. The server sees single updates, so a secure reducer is refused. The global model is the mean of the clusters' models by
    members; ``own/loss`` and so on (with ``Evaluation(clients=-1)``) measure every client on its cluster's model.

    Sattler, Müller, Samek 2020, "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under Privacy Constraints".

    Attributes:
        settled: ``eps_1``, in norms of updates.
        pulling: ``eps_2``, larger than ``settled``.
        smallest: the smallest number of members of a part.
    """

    settled: float = 0.1
    pulling: float = 0.5
    smallest: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.settled < self.pulling:
            raise ConfigError(
                f"settled={self.settled} and pulling={self.pulling}", where="CFL", remedy="use 0 < settled < pulling"
            )
        if self.smallest < 1:
            raise ConfigError(f"smallest={self.smallest}", where="CFL", remedy="use at least 1")

    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return the base with its update as a single reply."""
        return SingleReplies(base=base)

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, and single updates of all members of a cluster, as means by examples."""
        return (
            *super().needs,
            Need(SINGLE_REPLIES, "compares single updates", "IFCA()"),
            Need(PLAIN_MEAN, "averages the members of a cluster by examples", "Star()"),
            Need(EVERYONE, "compares all members of a cluster", "Star()"),
            Need(MEAN_UPDATE, "splits its clients by their updates", "Star()"),
            Need(BY_EXAMPLES, "averages the members of a cluster by examples", "Star()"),
        )

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's capabilities, and only released replies: the server splits clients by these."""
        return super().offers | {RELEASED_ONLY}

    def course(self, context: Context) -> Course:
        """Return rounds in every cluster, and splits."""
        return _Clusters(self, context)


@dataclass(frozen=True)
class _Watching(Aggregation):
    """The mean by examples; its memory is how the members should split, if at all."""

    settled: float = 0.1
    pulling: float = 0.5
    smallest: int = 1

    def combine(self, combined: Combined, params: Tree, memory: Tree, info: RoundInfo) -> tuple[dict[str, Any], Tree]:
        """Return the mean update, and the split."""
        del params, info
        if combined.kinds.get("update") != "parts":
            return combined.value, memory
        parts = combined.value["update"]
        mean = mean_states([part.value for part in parts], [part.weight for part in parts])
        sums = {**combined.value, "update": mean}
        norms = [float(T.norm(part.value)) for part in parts]
        if float(T.norm(mean)) >= self.settled or max(norms) <= self.pulling:
            return sums, None
        vectors = np.array([np.concatenate([np.ravel(leaf) for leaf in T.leaves(part.value)]) for part in parts])
        found = [np.array([parts[i].sender for i in side]) for side in bipartition(vectors)]
        return sums, found if min(map(len, found)) >= self.smallest else None


def bipartition(updates: NDArray[Any]) -> tuple[list[int], list[int]]:
    """Return the two parts of vectors of shape ``(n, d)`` with the smallest possible largest cosine similarity between them.

    Single linkage finds them: join the most similar pair until two parts are left. The first part has index 0.
    """
    norms = np.linalg.norm(updates, axis=1, keepdims=True)
    unit = updates / np.where(norms > 0, norms, 1.0)
    n = len(unit)
    a, b = np.triu_indices(n, 1)
    order = np.argsort(-(unit @ unit.T)[a, b], kind="stable")
    links = np.stack([a[order], b[order]], axis=1).astype(np.int64)
    low, high = 0, len(links)
    while low < high:  # the fewest links that leave at most two parts
        middle = (low + high) // 2
        low, high = (low, middle) if len(components(n, links[:middle])) <= 2 else (middle + 1, high)
    first, *rest = components(n, links[:low])
    return first, rest[0] if rest else []


class _Clusters(Course):
    """A server with several models."""

    def __init__(self, topology: CFL, context: Context) -> None:
        watching = _Watching(topology.settled, topology.pulling, topology.smallest)
        self.context = replace(context, aggregation=watching)

    def initial(self, fed: Federation) -> Tree:
        """Start with one cluster of all clients."""
        first = {**initial(fed, self.context), "aggregation": None}
        return {"clusters": [{"name": "0", "members": np.arange(len(fed.parties)), "state": first}]}

    def _scope(self, fed: Federation, cluster: Tree) -> Federation:
        """Return a cluster's scope; clients keep their private state when it splits."""
        scope = fed.scope(f"cluster-{cluster['name']}", fed.parties[np.asarray(cluster["members"])])
        scope.settle_at(scope.parties, fed.hub, fed.home)
        return scope

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Run a round in every cluster concurrently; then split."""

        async def one(cluster: Tree) -> tuple[list[Tree], dict[str, Any]]:
            known = replace(self.context, clients=self.context.clients.part(np.asarray(cluster["members"])))
            scope = self._scope(fed, cluster)
            after, row = await server_round(scope, known, cluster["state"], number)
            split = after["aggregation"]
            after = {**after, "aggregation": None}
            if split is None:
                return [{**cluster, "state": after}], row
            names = [f"{cluster['name']}.{i}" for i in range(2)]
            made = [{"name": n, "members": np.sort(part), "state": after} for n, part in zip(names, split, strict=True)]
            return made, row

        done = await asyncio.gather(*(one(cluster) for cluster in state["clusters"]))
        clusters = [cluster for made, _ in done for cluster in made]
        return {"clusters": clusters}, {**sum_rows([row for _, row in done]), "clusters": len(clusters)}

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Return the mean of the clusters' models, and measures of every client on its cluster's model."""
        clusters = state["clusters"]
        models = [global_model(c["state"]) for c in clusters]
        mean = mean_states(models, [float(len(c["members"])) for c in clusters])
        if self.context.evaluation.clients == 0:
            return mean, {}
        sums: dict[str, float] = {}
        for cluster, model in zip(clusters, models, strict=True):
            members = watch.parties[np.asarray(cluster["members"])]
            at = ("own", cluster["name"], number)
            found = await watch.sum(members, self.context.learner.measure, {"params": model}, at=at, quorum=0)
            for part in found.value.get("measure", []):
                sums = {key: sums.get(key, 0.0) + float(value) for key, value in part.value.items()}
        return mean, {f"own/{name}": value for name, value in (scores(sums) if sums else {}).items()}
