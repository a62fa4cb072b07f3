"""FedAP (Lu et al. 2022): every node mixes most with those whose data look like its own, by statistics of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.capability import RELEASED_ONLY, Capability, Need
from atoll.core.errors import ConfigError
from atoll.core.requests.task import Task

from ..capabilities import EVERYONE, REPORTS
from ..checks import require_share
from ..round.evaluation import held_model, held_sums, scores
from .base import Decentralised
from .graphs import Complete
from .mixing import Mixer
from .nodes import Nodes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

    from ..context import Context

__all__ = ["FedAP", "likeness_weights", "statistics_distance"]

_LIKENESS = "likeness"
_NEAREST = 1e-6
"""Share of the median distance below which two nodes are equally near."""


@dataclass(frozen=True, kw_only=True)
class FedAP(Decentralised):
    """Nodes mix by how alike their data are, ``x_i <- own x_i + (1 - own) sum_j w_ij x_j``, with ``w_ij`` in proportion to ``1 / d_ij``, and keep models of their own.

    ``d_ij = sum_l ||(mu_il, sigma_il) - (mu_jl, sigma_jl)||``: the Wasserstein distance of Gaussians with the mean and the deviation of each element of some layers, over
    each node's rows. In the first ``warmup`` rounds all nodes mix equally, so that they have one model; they send each other its statistics, once, and mix by likeness from
    then on. The paper has a server that mixes; here neighbours send each other models, as in `Gossip`, and no party sees all of them. Running statistics of the layers
    stay with each node if ``Training(buffers="local")`` says so, as the paper has it.

    The global model in the history is the mean of the nodes' models, ``own/…`` measures each node's own, on the rows that it holds out if it does.

    Attributes:
        layers: whose statistics, as in ``named_modules()``: those that normalisation layers read, or ``"auto"``, the first fully connected one.
        own: weight of a node's own model, from 0 to less than 1; .5 in the paper.
        warmup: rounds of equal mixing; 0 compares statistics of the initial model.
    """

    citation: ClassVar[str] = (
        "Lu, Wang, Chen, Qin, Xu, Dimitriadis, Qin. Personalized Federated Learning with Adaptive Batchnorm for Healthcare. IEEE Transactions on Big Data 2022."
    )

    layers: Sequence[str] = ("auto",)
    own: float = 0.5
    warmup: int = 1

    def __post_init__(self) -> None:
        require_share("FedAP", own=self.own)
        if self.warmup < 0:
            raise ConfigError(f"warmup={self.warmup}", where="FedAP", remedy="use 0 or more rounds")
        if isinstance(self.layers, str) or not self.layers:
            raise ConfigError(f"layers={self.layers!r}", where="FedAP", remedy='use names of layers, such as ("auto",)')

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, all clients, since statistics are comparable if one model made them, and a model that has such."""
        return (
            *super().needs,
            Need(EVERYONE, "compares statistics of one model that all nodes have"),
            Need(REPORTS, "compares statistics of layers", "Gossip()"),
        )

    @property
    def lacks(self) -> Mapping[Capability, str]:
        """Reasons for capabilities that the topology does not offer."""
        return {**super().lacks, RELEASED_ONLY: "lets nodes send statistics of their rows to others without noise"}

    def check(self, context: Context) -> None:
        """Refuse a model without such layers."""
        learner: Any = context.learner
        for layer in self.layers:
            learner.check_reports(_profile_of(layer))

    def course(self, context: Context) -> _Alike:
        """Return rounds of local steps and mixing by likeness."""
        return _Alike(self, context)


def _profile_of(layer: str) -> dict[str, Any]:
    return {"profile": {"layer": layer}}


def statistics_distance(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> float:
    """Return the distance of the statistics of two nodes, the sum over layers of the Wasserstein distance of Gaussians with a diagonal covariance.

    Args:
        one: for each layer ``mean`` and ``var``, ``(q,)``.
        other: the same of another node.
    """
    total = 0.0
    for mine, theirs in zip(one, other, strict=True):
        means = np.asarray(mine["mean"], np.float64) - np.asarray(theirs["mean"], np.float64)
        deviations = np.sqrt(np.asarray(mine["var"], np.float64)) - np.sqrt(np.asarray(theirs["var"], np.float64))
        total += float(np.sqrt((means**2).sum() + (deviations**2).sum()))
    return total


def likeness_weights(distances: NDArray[np.float64], own: float) -> NDArray[np.float64]:
    """Return the share of each other node in a node's mixture, ``(1 - own) (1 / d_j) / sum_k 1 / d_k``.

    Args:
        distances: to each other node, ``(n - 1,)``; distances of almost 0 count as equal.
        own: what the node keeps of itself.
    """
    d = np.asarray(distances, np.float64)
    typical = float(np.median(d)) if len(d) else 0.0
    near = (
        np.maximum(d, _NEAREST * typical)
        if typical > 0
        else np.where(d > 0, d, np.min(d[d > 0], initial=1.0) * _NEAREST)
    )
    inverse = near.min(initial=np.inf) / near
    return np.asarray((1.0 - own) * inverse / inverse.sum())


@dataclass(frozen=True, eq=False)
class _ByLikeness(Mixer):
    """Mixes with the weights that a node has found, equally before it has."""

    def weights_at(self, island: Island, message: Tree) -> tuple[dict[str, float], float]:
        """Return the node's weights of those that are there, scaled to what they have in all."""
        equal, own = super().weights_at(island, message)
        known = (island.state or {}).get(_LIKENESS)
        if known is None:
            return equal, own
        found = {name: float(known[self.places[name]]) for name in equal}
        share, whole = sum(found.values()), float(np.sum(known))
        if not share > 0:
            return equal, own
        return {name: value * whole / share for name, value in found.items()}, 1.0 - whole


class _Alike(Nodes):
    """Nodes that send each other statistics once, and mix by them."""

    def __init__(self, topology: FedAP, context: Context) -> None:
        super().__init__(context, _ByLikeness(Complete(), context.clients.names, share="params"))
        self.topology = topology

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The nodes' tasks, sending and comparing statistics, and judging a node's own model."""
        return (*super().tasks, self.describe, self.compare, self.judge)

    @property
    def describe(self) -> Task:
        """Send the statistics of the node's rows to all others."""
        return Task("atoll.learn.topology:describe", self._describe)

    @property
    def compare(self) -> Task:
        """Keep the weights that follow from the statistics of all."""
        return Task("atoll.learn.topology:compare", self._compare)

    @property
    def judge(self) -> Task:
        """Measure the node's own model on its rows."""
        return Task("atoll.learn.topology:judge", self._judge)

    def _statistics(self, island: Island, message: Tree) -> list[Tree]:
        node = self.at_node(island, message)
        learner: Any = self.context.learner
        params, _ = held_model(learner, {**node["server"]["params"], **node["buffers"]}, node["client"])
        return [learner.report_of(params, island.data, _profile_of(one))["profile"] for one in self.topology.layers]

    def _describe(self, island: Island, message: Tree) -> Tree:
        mine = self._statistics(island, message)
        for name in message["to"]:
            if name != island.name:
                island.post(name, mine)
        island.state = {**self.at_node(island, message), "statistics": mine}
        return {}

    def _compare(self, island: Island, message: Tree) -> Tree:
        del message
        node = dict(island.state)
        mine = node.pop("statistics")
        told = {name: statistics_distance(mine, theirs) for name, theirs in island.inbox.items()}
        weights = np.zeros(len(self.mixer.names))
        if told:
            places = [self.mixer.places[name] for name in told]
            weights[places] = likeness_weights(np.array(list(told.values())), self.topology.own)
            node[_LIKENESS] = weights
        island.state = node
        return {}

    def _judge(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        node = self.at_node(island, message)
        params = {**node["server"]["params"], **node["buffers"]}
        sums = held_sums(self.context.learner, params, node["client"], island.data)
        return {"own": Sum({name: np.float64(value) for name, value in sums.items()}, role="metric")}

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Compare nodes after the warm-up, then take local steps and mix."""
        if number == self.topology.warmup + 1:
            names = [str(name) for name in fed.parties.names]
            message = {"init": state["init"], "to": names}
            sent = await fed.exchange(fed.parties, self.describe, message, at=(number, "describe"), quorum=0)
            await fed.exchange(sent.senders, self.compare, None, mail=sent.mail, at=(number, "compare"), quorum=0)
        return await super().round(fed, state, number)

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Return the mean of the nodes' models, their distance from it, and what each node's own model scores."""
        mean, row = await super().model(watch, state, number)
        there, message = self.there(watch, number), {"init": state["init"]}
        told = await watch.sum(there, self.judge, message, at=(number, "judge"), quorum=0)
        own = scores(told["own"]) if "own" in told.value else {}
        return mean, {**row, **{f"own/{name}": value for name, value in own.items()}}
