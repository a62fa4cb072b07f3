"""All leaves of one architecture as one training: every client trains its own leaf, and a round is one vectorised block.

Rounds of many small trainings cost what they cost each, whatever the number of clients. As one block, they cost one training's. The leaves are those that
each training gives alone, with the same selection, mini-batches and weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.facets import facet
from atoll.core.federation.reducer import Plain
from atoll.core.requests.task import Batch, task
from atoll.learn.aggregation.base import Renormalised
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, Phased
from atoll.learn.algorithms.ifca import IFCA
from atoll.learn.card import Card
from atoll.learn.pacing.synchronous import Synchronous
from atoll.learn.round.evaluation import Evaluation
from atoll.learn.selection.base import Candidates, Selection
from atoll.learn.topology.base import Star
from atoll.learn.training import Training
from atoll.rounds.loop import Course, WrappedCourse

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.requests.cohort import Cohort
    from atoll.core.requests.island import Island
    from atoll.learn.context import Context

__all__ = ["block_of", "enrol", "find_obstacle", "split_models"]

_LEAF = "leaf-"


def find_obstacle(leaf: Training) -> str:
    """Return why leaves with this training cannot be one block, ``""`` if they can; they are then trained beside each other, each as a training of its own."""
    base = leaf.algorithm
    plain = {
        "topology": type(leaf.topology) is Star,
        "pacing": leaf.pacing == Synchronous(),
        "aggregation": type(leaf.aggregation) is Renormalised,
        "reducer": type(leaf.reducer) is Plain,
        "uplink": not leaf.uplink,
        "downlink": leaf.downlink is None,
        "privacy": leaf.privacy is None,
        "budget": leaf.budget is None,
        "stop": not leaf.stop,
        "keep_best": leaf.keep_best is None,
        "callbacks": not leaf.callbacks,
        "selection": not leaf.selection.listens and not leaf.selection.picks and leaf.selection.drawn(1) is None,
        "evaluation": not leaf.evaluation.measures_sites,
        "buffers": leaf.buffers == "averaged",
        "algorithm": base.phases == ("train",) and not base.card.everyone and base.card.family != "admm",
    }
    return next((name for name, known in plain.items() if not known), "")


def _enrol_many(cohort: Cohort, message: Tree) -> Iterator[Batch]:
    """Tell a block of clients their leaves."""
    count, places = len(cohort), np.array([int(message["leaf"][str(name)]) for name in cohort.parties.names])
    choice = np.zeros((count, int(message["leaves"])), np.float32)
    choice[np.arange(count), places] = 1.0
    reply: dict[str, Aggregate] = {"enrolled": Sum(np.ones(count, np.int64))}
    if cohort.stateless:
        yield Batch(np.arange(count), reply, {"choice": choice})
    else:
        known = (cohort.state(place) for place in range(count))
        kept = {place: {"choice": choice[place]} if state is None else state for place, state in enumerate(known)}
        yield Batch(np.arange(count), reply, singles=kept)


@task(many=_enrol_many)
def enrol(island: Island, message: Tree) -> dict[str, Aggregate]:
    """Tell a client its leaf; a client that knows it keeps what it has."""
    if island.state is None:
        choice = np.zeros(int(message["leaves"]), np.float32)
        choice[int(message["leaf"][island.party.name])] = 1.0
        island.state = {"choice": choice}
    return {"enrolled": Sum(np.int64(1))}


@dataclass(frozen=True, kw_only=True)
class OwnLeaf(IFCA):
    """IFCA whose clients have been told their model (`enrol`), so that none chooses.

    All models start alike, each as it would alone, or where they have been before.

    Attributes:
        clusters: number of models.
        begin: parameters that each of them starts from; empty for those of the training.
    """

    clusters: int = 1
    begin: tuple[Tree, ...] = field(default=(), repr=False, compare=False)
    card: ClassVar[Card] = Card(family="wrapper", note="It trains the leaves of an ensemble.")

    def __post_init__(self) -> None:
        object.__setattr__(self, "clusters", max(2, self.clusters))
        super().__post_init__()

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the base's passes; nobody chooses."""
        return tuple(replace(self, base=part) for part in facet(self.base, Phased).passes(phase))

    def init(self, params: Tree) -> Tree:
        """Start every leaf as the base does."""
        given = [{name: one[name] for name in params} for one in self.begin]
        return self._state([self.base.init(own) for own in [*given, *[params] * (self.clusters - len(given))]])

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the base's local state on the client's leaf; keep what the server has sent of it."""
        sent = self.chosen(broadcast, client["choice"])
        return {**self.base.start(sent, client.get("client")), "sent": sent}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return the base's direction."""
        own, sent = _part(local)
        toward, after = self.base.direction(own, grad, sent)
        return toward, {**after, "sent": sent}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the base's step."""
        own, sent = _part(local)
        return {**self.base.step(own, grad, sent), "sent": sent}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the base's reply in the leaf's place, and zeros in the others'."""
        own, _ = _part(local)
        return super().finish(own, broadcast, client, work)

    def _keep_state(self, choice: Any, client: Tree, model: Tree) -> Tree:
        return {"choice": choice, **({} if client is None else {"client": client})}

    def personal(self, params: Tree, client: Tree) -> Tree:
        """Return the given model: leaves are at the server."""
        return params


def _part(local: Tree) -> tuple[Tree, Tree]:
    return {name: value for name, value in local.items() if name != "sent"}, local["sent"]


@dataclass(frozen=True)
class _EachLeaf(Selection):
    """The clients that the rule of each leaf invites among its members, as it would alone."""

    rule: Selection = field(kw_only=True)
    members: tuple[tuple[str, ...], ...] = field(kw_only=True, repr=False)

    @property
    def offers(self) -> frozenset[Any]:
        return self.rule.offers - {"never"}

    @property
    def needs(self) -> tuple[Any, ...]:
        return self.rule.needs

    def init(self, parties: Any) -> Tree:
        there = dict(zip(map(str, parties.names), parties.positions.tolist(), strict=True))
        found = [np.array([there[name] for name in own if name in there], np.int64) for own in self.members]
        rules = [self.rule.init(self._of(parties, own)[0]) if len(own) else None for own in found]
        return {"places": found, "rules": rules}

    def cohort_size(self, population: int) -> int:
        return sum(self.rule.cohort_size(len(own)) for own in self.members if own)

    def distinct(self, population: int) -> int | None:
        each = [self.rule.distinct(len(own)) for own in self.members if own]
        return None if None in each else sum(one for one in each if one is not None)

    @staticmethod
    def _of(parties: Any, own: NDArray[np.int64]) -> tuple[Any, NDArray[np.int64]]:
        places = np.flatnonzero(np.isin(parties.positions, own))
        return parties[places], places

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        chosen = []
        for own, memory in zip(state["places"], state["rules"], strict=True):
            parties, places = self._of(candidates.parties, own)
            if len(places):
                mine = replace(candidates, parties=parties)
                asked = self.rule.invite(mine, self.rule.cohort_size(len(own)), memory)
                chosen.append(places[np.asarray(asked, np.int64)])
        return np.concatenate(chosen) if chosen else np.zeros(0, np.int64)


@dataclass(frozen=True)
class _Leaves(Star):
    """One server with several models."""

    def course(self, context: Context) -> Course:
        return _LeafRounds(super().course(context))


class _LeafRounds(WrappedCourse):
    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        models = state["server"]["models"]
        shared = state["buffers"] or {}
        return {f"{_LEAF}{place}": {**own["params"], **shared} for place, own in enumerate(models)}, {}


def block_of(leaf: Training, members: Sequence[Sequence[str]], begin: Sequence[Tree] = ()) -> Training:
    """Return the training of all leaves at once.

    Args:
        leaf: the training of one, without an obstacle (`find_obstacle`).
        members: names of each leaf's clients; a leaf without clients stays as it is.
        begin: parameters that each leaf starts from; empty for those of the training.
    """
    if why := find_obstacle(leaf):
        raise ConfigError(f"{why}={getattr(leaf, why)!r}", where="block_of", remedy="train each leaf with fed.run")
    rule = _EachLeaf(rule=leaf.selection, members=tuple(tuple(map(str, own)) for own in members))
    return leaf.replace(
        algorithm=OwnLeaf(base=leaf.algorithm, clusters=len(members), begin=tuple(begin)),
        selection=rule,
        topology=_Leaves(),
        evaluation=Evaluation(every=leaf.rounds, server=False),
    )


def split_models(params: Mapping[str, Tree], leaves: int) -> list[Tree]:
    """Return the parameters of each leaf, from what the block's training gives."""
    return [params[f"{_LEAF}{place}"] for place in range(leaves)]
