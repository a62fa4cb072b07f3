"""`Federated`: federated ensemble learning, as one job."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from atoll.core.algebra.rng import hash64
from atoll.core.errors import CompositionError, ConfigError, DataError, nearest
from atoll.core.exposure import Explanation
from atoll.core.job import Job, Prepared
from atoll.core.validation import Checked, require_parts
from atoll.data.model_columns import ModelColumns
from atoll.learn.training import Training

from .clusters import ClusterRule
from .joining import AGGREGATES, OverArch
from .model import FederatedEnsemble, join_results, require_fitted, score_population
from .prepared import PreparedEnsemble, prepare_search
from .private_leaf import DEVICE_AGGREGATES, PrivateLeaf
from .search import Search

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
        private_leaf: one more leaf, of columns that stay on the devices; see `PrivateLeaf`. The result's ``device`` then joins its answer with the leaves', as ``aggregate`` says.
        smallest: fewest users that train a leaf.
        seed: of the draw of opt-in users.
        search: what the ensemble chooses itself: its number of leaves, who is in which, and which train on; see `Search`.
    """

    kind: ClassVar[str] = "ensemble"
    one_form: ClassVar[bool] = True
    method: ClassVar[str] = "aggregate"

    clusters: ClusterRule
    leaf: Training
    aggregate: str = "gate"
    overarch: OverArch = field(default_factory=OverArch)
    opt_in: float | Sequence[str] = 0.0
    private_leaf: PrivateLeaf | None = None
    smallest: int = 2
    seed: int = 0
    search: Search | None = None

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
        if self.private_leaf is not None:
            self._check_private()
        if self.smallest < 1:
            raise ConfigError(f"smallest={self.smallest}", remedy="use at least 1 user")
        if self.search is not None:
            self._check_search(self.search)

    @staticmethod
    def of(
        results: Mapping[str, Any],
        islands: Any,
        *,
        clusters: ClusterRule | None = None,
        opt_in: Sequence[str] = (),
        aggregate: str = "gate",
        overarch: OverArch | None = None,
        seed: int = 0,
    ) -> FederatedEnsemble:
        """Join the models of trainings that have ended, which may be of different kinds of networks.

        Example::

            runs = {name: simulate(training, islands.subset(places[name])) for name in ("north", "south")}
            joined = Federated.of(runs, islands, aggregate="mean")

        Args:
            results: leaf -> the result of a training.
            islands: the population, with the rows of opt-in users and test rows.
            clusters: the rule that the trainings' users follow; ``None`` for the lists of these users.
            opt_in: users who gave their rows to the server and are in no training.
            aggregate: see `Federated`.
            overarch: settings of the over-arch.
            seed: of the over-arch's weights.

        Raises:
            CompositionError: leaves overlap, an opt-in user has trained one, a user is of another leaf, or a model is none of PyTorch.
            ConfigError: results are not named as the leaves are, or what joins them needs opt-in users.
        """
        joined, found, loss, _ = join_results(results, islands, clusters, opt_in, overarch or OverArch(), seed)
        require_fitted(aggregate, joined)
        columns = ModelColumns.of(islands, private=math.isfinite(loss.total))
        reasons = {str(one.reason) for one in results.values()}
        return FederatedEnsemble(
            aggregate,
            found,
            joined,
            columns,
            score_population(joined, islands, found),
            loss,
            tuple(opt_in),
            None,
            reasons.pop() if len(reasons) == 1 else "all trainings have ended",
        )

    def _check_private(self) -> None:
        require_parts(
            self, {"private_leaf": (PrivateLeaf, "atoll.ensemble.PrivateLeaf(columns=['income'], model=...)")}
        )
        if self.aggregate not in DEVICE_AGGREGATES:
            raise ConfigError(
                f"aggregate={self.aggregate!r} with a private leaf",
                remedy=f"use one of {', '.join(DEVICE_AGGREGATES)}: a device can join these",
            )
        if self.opt_in:
            raise CompositionError(
                "opt-in users give their rows to the server, and private columns stay on the devices",
                where="Federated.private_leaf",
                remedy="leave opt_in=0.0; with aggregate='over_arch', federated learning trains the over-arch",
            )

    def _check_search(self, search: Search) -> None:
        require_parts(self, {"search": (Search, "atoll.ensemble.Search(clusters=(1, 2, 4, 8))")})
        rule = type(self.clusters).__name__
        if search.clusters and "count" not in {one.name for one in fields(self.clusters)}:
            raise CompositionError(
                f"{rule} has as many leaves as its column has values, or as somebody lists",
                where="Federated.search",
                remedy="use CentroidClusters(1, columns) or RandomClusters(1), or leave clusters=() in Search",
            )
        judged = len(search.clusters) > 1 or search.retrain > 0
        if judged and not self.opt_in:
            raise CompositionError(
                "numbers of leaves and leaves that lag are judged by labels of opt-in users, and there are none",
                where="Federated.search",
                remedy="give opt_in=0.1, or let users move alone: Search(recluster=1)",
            )
        mechanism = self.leaf.privacy
        if mechanism is not None and search.recluster and search.epsilon is None:
            raise CompositionError(
                f"users would say plainly which leaf serves them best, and {type(mechanism).__name__} protects their labels",
                where="Federated.search",
                remedy="give their answers an epsilon, such as Search(recluster=1, epsilon=1.0), or leave out recluster",
            )

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
        """The rounds of a leaf, in all its trainings."""
        search = self.search
        more = 0 if search is None else search.recluster * self.leaf.rounds + search.retrain
        return self.leaf.rounds + more

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
        if self.search is not None and self.search.recluster:
            how = (
                "plainly"
                if self.search.epsilon is None
                else f"by randomised response with epsilon {self.search.epsilon:g}"
            )
            more.append(
                f"{self.search.recluster} times, each user tells the server {how} which leaf serves its rows best, which follows its labels"
            )
        return replace(told, title=self.title, notes=(*told.notes, *more))

    def prepare(self, data: Any) -> Prepared:
        """Form and audit clusters, and prepare the leaves' trainings.

        Raises:
            ConfigError: an opt-in user is not there.
            CompositionError: a column is derived from labels, the way to join needs opt-in users, or a search has nothing to choose among.
            DataError: a user has two leaves, a leaf has too few users, or labels are no classes.
        """
        if getattr(data, "task", "classification") not in ("classification", "binary"):
            raise DataError(
                f"labels of the task {data.task!r} are no classes",
                where="Federated",
                remedy="train one model with Training",
            )
        if self.search is not None and self.search.clusters:
            return prepare_search(self, data)
        return PreparedEnsemble(self, data)

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
            twice = next((name for name in self.opt_in if list(self.opt_in).count(name) > 1), None)
            if twice is not None:
                raise ConfigError(f"opt_in names {twice!r} twice", remedy="name every user once: rows count once")
            return tuple(self.opt_in)
        count = round(self.opt_in * len(names))
        count = max(1, count) if self.opt_in else 0
        return tuple(sorted(names, key=lambda name: hash64("opt-in", self.seed, name))[:count])
