"""`Federated`: federated ensemble learning, as one job."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn

from atoll.core.algebra.rng import hash64
from atoll.core.errors import CompositionError, ConfigError, DataError, nearest
from atoll.core.event import Event
from atoll.core.exposure import Explanation
from atoll.core.job import Job, Prepared, prepared
from atoll.core.validation import Checked, require_parts
from atoll.data.model_columns import ModelColumns
from atoll.learn.prepared import PreparedTraining, Trained
from atoll.learn.round.evaluation import Evaluation
from atoll.learn.training import Training
from atoll.torch import TorchLearner, seeded

from .accounting import EnsembleRelease, account_ensemble
from .block import block_of, enrol, find_obstacle, split_models
from .clusters import ClusterRule, form_clusters
from .joining import AGGREGATES, OverArch, log_probabilities, over_arch_inputs, over_arch_network
from .model import FederatedEnsemble, join_leaves, opt_in_rows, require_fitted, score_arms

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = ["Federated"]


@dataclass(frozen=True, kw_only=True)
class Federated(Checked, Job):
    """Federated ensemble learning: a small model for each cluster of users, trained as any training is, and all of them joined into one that answers.

    Meta's FEL (digest: 35 million users, features public, labels private). Each user's device trains one small leaf; the server holds all. Clusters follow
    public columns. Leaves are trained as one block where that gives the same (`atoll.ensemble.block`), else beside each other. Opt-in users give their
    labels to the server, which learns on these how to join the leaves; their labels never take part in federated learning.

    Example::

        job = Federated(clusters=AttributeClusters("segment"), leaf=Training(model=mlp(8, 2, (4,))), opt_in=0.1)
        result = simulate(job, islands)
        result.predict({"x0": ..., "segment": ...})

    Attributes:
        clusters: which users train which leaf.
        leaf: the training of one leaf; its algorithm, selection, uplink, mechanism and rounds are each leaf's.
        aggregate: how leaves are joined in what the result predicts, see `JoinedLeaves`; the result has the others too.
        overarch: the over-arch.
        opt_in: a share of the users, drawn by name and ``seed``, or their names.
        smallest: fewest users that train a leaf.
        seed: of the draw of opt-in users.
    """

    kind: ClassVar[str] = "ensemble"
    one_form: ClassVar[bool] = True
    method: ClassVar[str] = "aggregate"

    clusters: ClusterRule
    leaf: Training
    aggregate: str = "gate"
    overarch: OverArch = field(default_factory=OverArch)
    opt_in: float | Sequence[str] = 0.0
    smallest: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        require_parts(
            self,
            {
                "clusters": (ClusterRule, "atoll.ensemble.AttributeClusters('segment')"),
                "leaf": (Training, "atoll.Training(model=...)"),
                "overarch": (OverArch, "atoll.ensemble.OverArch()"),
            },
        )
        if self.aggregate not in AGGREGATES:
            raise ConfigError(f"aggregate={self.aggregate!r}", remedy=f"use one of {', '.join(AGGREGATES)}")
        if isinstance(self.opt_in, str) or (isinstance(self.opt_in, float | int) and not 0 <= self.opt_in < 1):
            raise ConfigError(f"opt_in={self.opt_in!r}", remedy="use a share from 0 to less than 1, or a list of names")
        if self.smallest < 1:
            raise ConfigError(f"smallest={self.smallest}", remedy="use at least 1 user")

    @property
    def title(self) -> str:
        """The job, and how it joins leaves."""
        return f"Federated ensemble ({self.aggregate})"

    def names(self) -> tuple[str, ...]:
        """The kind, and the names of a leaf's training."""
        return (*super().names(), *self.leaf.names())

    @classmethod
    def known_names(cls) -> tuple[str, ...]:
        """The kind, and what a training may be named."""
        return (*super().known_names(), *Training.known_names())

    @property
    def most_rounds(self) -> int | None:
        """The rounds of a leaf."""
        return self.leaf.rounds

    def others(self, n: int) -> Mapping[str, str]:
        """The parties that a leaf's training needs."""
        return self.leaf.others(n)

    def helpers(self) -> Mapping[str, str]:
        """The helpers of a leaf's training."""
        return self.leaf.helpers()

    def explain(self, data: Any = None, clients: int = 0) -> Explanation:
        """Return who sees what of a leaf's training, and what opt-in users give."""
        told = self.leaf.explain(data, clients)
        more = [
            "each user trains the leaf of its cluster alone, and the server knows the cluster, which public columns tell",
            "opt-in users give features and labels to the server, and train no leaf",
        ]
        return replace(told, title=self.title, notes=(*told.notes, *more))

    def prepare(self, data: Any) -> Prepared:
        """Form and audit clusters, and prepare the leaves' trainings.

        Raises:
            ConfigError: an opt-in user is not there.
            CompositionError: a column is derived from labels, or the way to join needs opt-in users.
            DataError: a user has two leaves, a leaf has too few users, or labels are no classes.
        """
        if getattr(data, "task", "classification") not in ("classification", "binary"):
            raise DataError(
                f"labels of the task {data.task!r} are no classes",
                where="Federated",
                remedy="train one model with Training",
            )
        return _PreparedEnsemble(self, data)

    def draw_opt_in(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the opt-in users.

        Raises:
            ConfigError: a name is not there.
        """
        if not isinstance(self.opt_in, float | int):
            lost = [name for name in self.opt_in if name not in names]
            if lost:
                raise ConfigError(
                    f"opt_in names {lost[0]!r}, who is not there.{nearest(lost[0], names)}",
                    remedy="name users of the population",
                )
            return tuple(self.opt_in)
        count = round(self.opt_in * len(names))
        count = max(1, count) if self.opt_in else 0
        return tuple(sorted(names, key=lambda name: hash64("opt-in", self.seed, name))[:count])


class _PreparedEnsemble(Prepared):
    """The job, with clusters and the leaves' trainings."""

    def __init__(self, job: Federated, data: Any) -> None:
        self.job, self.data = job, data
        names = [str(name) for name in data.names]
        self.opt_in = job.draw_opt_in(names)
        away = set(self.opt_in)
        self.clients = tuple(name for name in names if name not in away)
        self.clusters = form_clusters(job.clusters, data)
        self.members = self.clusters.members(self.clients)
        for name, own in zip(self.clusters.names, self.members, strict=True):
            if len(own) < job.smallest:
                raise DataError(
                    f"leaf {name!r} has {len(own)} users to train it, and the smallest may have {job.smallest}",
                    where="Federated.clusters",
                    remedy="use fewer clusters, another column, or a smaller smallest=",
                )
        self.obstacle = "" if self._alone else find_obstacle(job.leaf)
        self.block: PreparedTraining | None = None
        self.leaf = job.leaf
        if self._alone:
            self.block = job.leaf.prepare(data)
        elif not self.obstacle:
            places = {name: place for place, name in enumerate(names)}
            self.block = block_of(job.leaf, [[places[one] for one in own] for own in self.members]).prepare(data)
        else:
            self.leaf = (
                job.leaf.replace(evaluation=replace(job.leaf.evaluation, server=False))
                if job.leaf.keep_best is None and not job.leaf.stop
                else job.leaf
            )
        self.each = [] if self.block else [self.leaf.prepare(self._part(own)) for own in self.members]
        self.tasks = [*self.block.tasks, enrol] if self.block else ()

    @property
    def _alone(self) -> bool:
        """Whether there is one leaf of all users: its training is the one that it would be without an ensemble."""
        return len(self.clusters.names) == 1 and not self.opt_in

    def _part(self, users: Sequence[str]) -> Any:
        places = {str(name): place for place, name in enumerate(self.data.names)}
        return self.data.subset([places[name] for name in users])

    @functools.cached_property
    def columns(self) -> ModelColumns | None:
        """The columns of rows."""
        private = any(one.claim is not None for one in self.each)
        return ModelColumns.of(self.data, private=private)

    def most(self, rows: int) -> Sequence[Event] | None:
        """Return what one leaf's training releases of a party; ``None`` where that depends on its leaf."""
        told = [one.most(rows) for one in ([self.block] if self.block else self.each)]
        return told[0] if all(one == told[0] for one in told) else None

    def entrusted(self, rows: int) -> Sequence[Event]:
        """Return what a leaf's server promises to add."""
        told = [one.entrusted(rows) for one in ([self.block] if self.block else self.each)]
        return max(told, key=len)

    async def program(self, fed: Federation) -> FederatedEnsemble:
        """Train the leaves, then join them."""
        learner: Any = self.block.learner if self.block else self.each[0].learner
        if not isinstance(learner, TorchLearner):
            raise CompositionError(
                f"leaves of {type(learner).__name__} cannot be joined",
                where="Federated.leaf",
                remedy="use a PyTorch model, such as atoll.models.mlp(8, 2)",
            )
        params, trained = await self._train_leaves(fed)
        members = [learner.export(own) for own in params]
        rows = opt_in_rows(self.data, self.opt_in, self.clusters)
        head, released = None, None
        if rows is None and self.job.aggregate == "over_arch":
            head, released = await self._train_over_arch(fed, members)
        joined = join_leaves(members, rows, self.job.overarch, fed.rng.child("over-arch").key % 2**31, head)
        require_fitted(self.job.aggregate, joined)
        claims = [None] * len(self.members) if self.block else [one.claim for one in self.each]
        releases = [
            EnsembleRelease.of(f"leaf {name}", own, claim)
            for name, own, claim in zip(self.clusters.names, self.members, claims, strict=True)
        ]
        loss = account_ensemble(releases, released)
        history, reason = (None, "all leaves are trained") if trained is None else (trained.history, trained.reason)
        return FederatedEnsemble(
            self.job.aggregate,
            self.clusters,
            joined,
            self.columns,
            self._score(joined),
            loss,
            self.opt_in,
            history,
            reason,
            self.obstacle,
        )

    async def _train_leaves(self, fed: Federation) -> tuple[list[Any], Trained | None]:
        if self.block is not None:
            if self._alone:
                trained = await self.block.program(fed)
                return [trained.params], trained
            table = {name: self.clusters.users[name] for name in self.clients}
            known = {"leaves": max(2, len(self.members)), "leaf": table}
            await fed.sum(fed.parties.named(*self.clients), enrol, known)
            trained = await self.block.program(fed)
            return split_models(trained.params, len(self.members)), trained
        runs = [fed.run(self.leaf, own, scope=f"leaf-{place}") for place, own in enumerate(self.members)]
        done = await asyncio.gather(*runs)
        return [one.params for one in done], None

    async def _train_over_arch(
        self, fed: Federation, members: Sequence[nn.Module]
    ) -> tuple[nn.Sequential, EnsembleRelease]:
        """Train the over-arch as the leaves were, on all users, with the leaves frozen."""
        frozen = [one.eval().requires_grad_(False) for one in members]
        settings = self.job.overarch
        with torch.no_grad():  # features are public
            shown = torch.tensor(np.concatenate([np.asarray(self.data.shard(name)["x"]) for name in self.clients]))
            inputs = over_arch_inputs(frozen, shown, settings.inputs)
            classes = int(log_probabilities(frozen[0](shown[:1])).shape[1])
        network: Any = seeded(
            lambda: over_arch_network(inputs, classes, settings), fed.rng.child("over-arch").key % 2**31
        )
        job = self.job.leaf.replace(
            model=_OverLeaves(frozen, network, settings.inputs),
            evaluation=Evaluation(every=self.job.leaf.rounds, server=False),
            keep_best=None,
        )
        data = self._part(self.clients)
        ready = prepared(job, data)
        trained = await fed.run(job, self.clients, scope="over-arch")
        head = trained.model.network.eval().requires_grad_(False)
        return head, EnsembleRelease.of("over-arch", self.clients, getattr(ready, "claim", None))

    def _score(self, joined: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        test = getattr(self.data, "test", None)
        if test is None or not len(test):
            return {}
        try:
            leaf = self.clusters.leaf_of(test)
        except DataError:  # its users are unknown, and its rows have no public columns
            leaf = None
        return score_arms(joined, test, leaf)

    def reason(self, value: FederatedEnsemble, fed: Any) -> str:
        """Return why training ended."""
        del fed
        return value.reason

    def facts(self, outcome: FederatedEnsemble) -> Mapping[str, Any]:
        """Return scores, epsilons and sizes."""
        sizes = {name: len(own) for name, own in zip(self.clusters.names, self.members, strict=True)}
        loss = None if outcome.loss is None else outcome.loss.plain()
        return {"result": {**outcome.scores, "epsilon": loss, "leaves": sizes, "parameters": outcome.parameters}}


class _OverLeaves(nn.Module):
    """Frozen leaves with a network over them, which alone is trained and sent."""

    def __init__(self, members: Sequence[nn.Module], network: nn.Sequential, inputs: str) -> None:
        super().__init__()
        self.members, self.network, self.inputs = nn.ModuleList(members), network, inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        members: Any = self.members
        made: torch.Tensor = self.network(over_arch_inputs(members, x, self.inputs))
        return made
