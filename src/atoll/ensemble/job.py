"""`Federated`: federated ensemble learning, as one job."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn

from atoll.core.algebra.rng import Rng, hash64
from atoll.core.errors import CompositionError, ConfigError, DataError, nearest
from atoll.core.event import Event
from atoll.core.exposure import Explanation
from atoll.core.job import InnerJob, Job, Prepared, members_of, prepared
from atoll.core.validation import Checked, require_parts
from atoll.data.model_columns import ModelColumns
from atoll.learn.prepared import PreparedTraining, Trained
from atoll.learn.round.evaluation import Evaluation
from atoll.learn.training import Training
from atoll.torch import TorchLearner, seeded

from .accounting import EnsembleRelease, account_ensemble, share_epsilon
from .block import block_of, enrol, find_obstacle, split_models
from .clusters import ClusterRule, form_clusters
from .joining import AGGREGATES, OverArch, log_probabilities, over_arch_inputs
from .model import (
    FederatedEnsemble,
    join_leaves,
    join_results,
    known_leaves,
    opt_in_rows,
    require_fitted,
    score_arms,
    score_interval,
    score_population,
    score_probabilities,
)
from .private_leaf import DEVICE_AGGREGATES, DeviceEnsemble, OnColumns, PrivateLeaf, over_arch_of, split_columns

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = ["Federated"]

_PRIVATE = "private-leaf"
_MORE_TRAIN = "let fewer users opt in, with a smaller opt_in="
_FEWER_LEAVES = "use fewer clusters, another column, or in Python a smaller smallest="


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
            twice = next((name for name in self.opt_in if list(self.opt_in).count(name) > 1), None)
            if twice is not None:
                raise ConfigError(f"opt_in names {twice!r} twice", remedy="name every user once: rows count once")
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
                gave = sum(self.clusters.names[self.clusters.users[one]] == name for one in self.opt_in)
                raise DataError(
                    f"leaf {name!r} has {len(own)} users to train it besides {gave} who opted in, and the smallest may have {job.smallest}",
                    where="Federated.clusters",
                    remedy=_MORE_TRAIN if len(own) + gave >= job.smallest else _FEWER_LEAVES,
                )
        self.public: list[int] = []
        self.own_columns: list[int] = []
        leaf = job.leaf
        if job.private_leaf is not None:
            features = tuple(getattr(getattr(data, "about", None), "features", ()) or ())
            self.public, self.own_columns = split_columns(job.private_leaf, features)
            leaf = leaf.replace(model=OnColumns.of(leaf.model, self.public))
        self.over_arch = job.aggregate == "over_arch" and not self.opt_in
        if self.over_arch and hasattr(data, "outline"):
            raise CompositionError(
                "an over-arch that federated learning trains needs the public columns at the server, and here the rows are at other organisations",
                where="Federated.aggregate",
                remedy="use aggregate='mean', or train between simulated users",
            )
        self.obstacle = "" if self._alone else find_obstacle(leaf)
        self._prepare_trainings(leaf)
        mechanism = leaf.privacy
        several = self.over_arch or self.private is not None
        if mechanism is not None and mechanism.epsilon is not None and several:
            each = self._share_epsilon(mechanism)
            self._prepare_trainings(leaf.replace(privacy=replace(mechanism, epsilon=each)))
        self.tasks = [*self.block.tasks, enrol] if self.block else ()

    def _prepare_trainings(self, leaf: Training) -> None:
        """Prepare the leaves as one block or each by itself, and the private leaf."""
        quiet = leaf.keep_best is None and not leaf.stop
        self.leaf = leaf.replace(evaluation=replace(leaf.evaluation, server=False)) if quiet else leaf
        self.block: PreparedTraining | None = None
        self.each: list[Prepared] = []
        self.private: Training | None = None
        self.jobs = {}
        if self._alone:
            self.block = leaf.prepare(self.data)
        elif not self.obstacle:
            self.block = block_of(leaf, self.members).prepare(self.data)
        else:
            self.each = [prepared(self.leaf, members_of(self.data, own)) for own in self.members]
            inner = zip(self.each, self.members, strict=True)
            self.jobs = {f"leaf-{k}": InnerJob(self.leaf, one, own) for k, (one, own) in enumerate(inner)}
        if self.job.private_leaf is not None:
            self.private = leaf.replace(
                model=OnColumns.of(self.job.private_leaf.model, self.own_columns),
                evaluation=Evaluation(every=leaf.rounds, server=False),
                keep_best=None,
                stop=(),
            )
            ready = prepared(self.private, members_of(self.data, self.clients))
            self.jobs[_PRIVATE] = InnerJob(self.private, ready, self.clients)

    def _claims(self) -> list[Any]:
        """What each leaf's training promises; ``None`` for one that promises nothing."""
        whole = None if self.block is None else self.block.claim
        return [whole] * len(self.members) if self.block else [getattr(one, "claim", None) for one in self.each]

    def _releases(self, more: Any = None) -> tuple[list[EnsembleRelease], EnsembleRelease | None]:
        """Return what the leaves release and what the private leaf does, counted with another mechanism if there is one."""

        def released(name: str, users: Sequence[str], claim: Any) -> EnsembleRelease:
            if more is not None and claim is not None:
                claim = more.solved(claim.attendance)[1]
            return EnsembleRelease.of(name, users, claim)

        named = zip(self.clusters.names, self.members, self._claims(), strict=True)
        leaves = [released(f"leaf {name}", own, claim) for name, own, claim in named]
        inner = self.jobs.get(_PRIVATE)
        own = None if inner is None else released("private leaf", self.clients, getattr(inner.prepared, "claim", None))
        return leaves, own

    def _share_epsilon(self, mechanism: Any) -> float:
        """Return the epsilon of each training with which leaves, private leaf and over-arch together keep that of the ensemble."""
        claim = self._over_arch_claim() if self.over_arch else None

        def total(epsilon: float) -> float:
            tried = replace(mechanism, epsilon=epsilon)
            leaves, own = self._releases(tried)
            head = None
            if claim is not None:
                head = EnsembleRelease.of("over-arch", self.clients, tried.solved(claim.attendance)[1])
            return account_ensemble(leaves, head, private=own).total

        return share_epsilon(mechanism.epsilon, 1 + self.over_arch + (self.private is not None), total)

    def _over_arch_claim(self) -> Any:
        """What the training of the over-arch will promise: that of one over leaves that are not trained yet."""
        ready: Any = [self.block] if self.block else self.each
        fresh = [one.learner.export(one.learner.init(Rng.of(0))) for one in ready]
        if self.block and not self._alone:
            fresh = fresh * len(self.members)
        own = self.jobs.get(_PRIVATE)
        mine: Any = None if own is None else own.prepared
        private = None if mine is None else mine.learner.export(mine.learner.init(Rng.of(0)))
        job = self._over_arch_job(fresh, private, 0)
        return getattr(prepared(job, members_of(self.data, self.clients)), "claim", None)

    def _over_arch_job(self, members: Sequence[nn.Module], private: nn.Module | None, seed: int) -> Training:
        """Return the training of the over-arch on all users, with the leaves frozen."""
        settings = self.job.overarch
        frozen = [one.eval().requires_grad_(False) for one in members]
        own = None if private is None else private.eval().requires_grad_(False)
        shown = np.concatenate([np.asarray(self.data.shard(name)["x"]) for name in self.clients])
        if self.own_columns:  # these are not at the server
            shown = shown.copy()
            shown[:, self.own_columns] = 0
        with torch.no_grad():
            network: Any = seeded(lambda: over_arch_of(frozen, own, torch.tensor(shown), settings), seed)
        return self.leaf.replace(
            model=_OverLeaves([*frozen, *([] if own is None else [own])], network, settings.inputs),
            evaluation=Evaluation(every=self.leaf.rounds, server=False),
            keep_best=None,
            stop=(),
        )

    @property
    def _alone(self) -> bool:
        """Whether there is one leaf of all users: its training is the one that it would be without an ensemble."""
        return len(self.clusters.names) == 1 and not self.opt_in

    @functools.cached_property
    def columns(self) -> ModelColumns | None:
        """The columns of rows."""
        made = ModelColumns.of(self.data, private=any(one is not None for one in self._claims()))
        if made is None or not self.own_columns:
            return made
        kept = tuple(made.features[place] for place in self.public)
        extents = {name: one for name, one in made.extents.items() if name in kept}
        return replace(made, features=kept, shape=(), extents=extents)

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
        ready: Any = self.block or self.each[0]
        learner = ready.learner
        if not isinstance(learner, TorchLearner):
            raise CompositionError(
                f"leaves of {type(learner).__name__} cannot be joined",
                where="Federated.leaf",
                remedy="use a PyTorch model, such as atoll.models.mlp(8, 2)",
            )
        params, trained = await self._train_leaves(fed)
        members = [learner.export(own) for own in params]
        private = await self._train_private(fed)
        rows = opt_in_rows(self.data, self.opt_in, self.clusters)
        seed = fed.rng.child("over-arch").key % 2**31
        head, released = None, None
        if self.over_arch:
            job = self._over_arch_job(members, private, seed)
            over = await fed.run(job, self.clients, scope="over-arch")
            head = over.model.network.eval().requires_grad_(False)
            claim = getattr(prepared(job, members_of(self.data, self.clients)), "claim", None)
            released = EnsembleRelease.of("over-arch", self.clients, claim)
        leaves: list[nn.Module] = [_inside(one) for one in members]
        joined = join_leaves(leaves, rows, self.job.overarch, seed, None if private is not None else head)
        device = None
        if private is not None:
            classes = int(log_probabilities(leaves[0](torch.zeros(1, len(self.public)))).shape[1])
            device = DeviceEnsemble(
                _inside(private), self.job.aggregate, len(leaves), classes, head, self.job.overarch.inputs
            ).eval()
        aggregate = self.job.aggregate if device is None else "mean"
        require_fitted(aggregate, joined)
        releases, own = self._releases()
        loss = account_ensemble(releases, released, private=own)
        scores = self._score(joined, device)
        history, reason = (None, "all leaves are trained") if trained is None else (trained.history, trained.reason)
        self._record(fed, scores, "device" if device is not None else aggregate)
        return FederatedEnsemble(
            aggregate,
            self.clusters,
            joined,
            self.columns,
            scores,
            loss,
            self.opt_in,
            history,
            reason,
            self.obstacle,
            device,
        )

    def _record(self, fed: Federation, scores: Mapping[str, Mapping[str, float]], chosen: str) -> None:
        """Record what the ensemble scores, under the names that a training's scores have, and every other way to join; the way itself may need users that test rows do not name."""
        if scores:
            told = {f"{arm}/{name}": value for arm, found in scores.items() for name, value in found.items()}
            mine = {f"test/{name}": value for name, value in scores.get(chosen, {}).items()}
            fed.record({"round": self.leaf.rounds, **mine, **told})

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

    async def _train_private(self, fed: Federation) -> nn.Module | None:
        """Train the leaf of private columns on all clients."""
        if self.private is None:
            return None
        trained = await fed.run(self.private, self.clients, scope=_PRIVATE)
        model: nn.Module = trained.model
        return model

    def _score(self, joined: Mapping[str, Any], device: DeviceEnsemble | None) -> dict[str, dict[str, float]]:
        if device is None:
            return score_population(joined, self.data, self.clusters)
        test = getattr(self.data, "test", None)
        if test is None or not len(test):
            return {}
        x, y, leaves = np.asarray(test.x), np.asarray(test.y), list(next(iter(joined.values())).members)
        found = score_arms(joined, x[:, self.public], y, known_leaves(self.clusters, test))
        chances = device.predict_proba(device.ask(leaves, x[:, self.public]), x[:, self.own_columns])
        return {**found, "device": score_probabilities(chances, y)}

    def reason(self, value: FederatedEnsemble, fed: Any) -> str:
        """Return why training ended."""
        del fed
        return value.reason

    def files(self, outcome: FederatedEnsemble) -> Mapping[str, bytes]:
        """Return the ensemble's files, which `FederatedEnsemble.load` reads in the run's folder."""
        return outcome.packed()

    def facts(self, outcome: FederatedEnsemble) -> Mapping[str, Any]:
        """Return scores, epsilons and sizes."""
        sizes = {name: len(own) for name, own in zip(self.clusters.names, self.members, strict=True)}
        loss = None if outcome.loss is None else outcome.loss.plain()
        told = {"epsilon": loss, "leaves": sizes, "parameters": outcome.parameters, "opt_in": len(self.opt_in)}
        return {"result": {**outcome.scores, **told}}

    def sections(self, outcome: FederatedEnsemble) -> Sequence[Mapping[str, Any]]:
        """Return the measures of each way to join the leaves, and how many users each leaf has."""
        sizes = [[name, f"{len(own):,}"] for name, own in zip(self.clusters.names, self.members, strict=True)]
        leaves = {"title": "Leaves", "tables": [{"head": ["leaf", "users"], "rows": sizes}]}
        ways = outcome.scores
        if not ways:
            text = "The server has no test rows, so nothing here says how well the ensemble predicts."
            return [{"title": "How well it predicts", "text": text, "tables": []}, leaves]
        measures = list(dict.fromkeys(name for own in ways.values() for name in own))
        first, chosen = measures[0], ways.get(outcome.aggregate, {})
        tiles = [[f"test {first}", f"{chosen[first]:.4f}", outcome.aggregate]] if first in chosen else []
        y = np.asarray(self.data.test.y)
        classes = max(2, int(getattr(self.data, "classes", None) or 2))
        ends, rows = dict[str, tuple[float, float]](), list[list[str]]()
        for way, own in ways.items():
            found = score_interval(first, own[first], y, classes) if first in own else None
            if found is not None:
                ends[way] = found
            shown = "-" if found is None else f"{found[0]:.4f} to {found[1]:.4f}"
            rows.append([way, *(f"{own[name]:.4f}" if name in own else "-" for name in measures), shown])
        table = {"head": ["joined by", *measures, f"{first}, 95 % interval"], "rows": rows}
        picture = _draw_ways(first, ways, ends, chosen.get(first))
        return [{"title": "How well it predicts", "tables": [table], "figures": [picture], "tiles": tiles}, leaves]


def _draw_ways(
    measure: str,
    ways: Mapping[str, Mapping[str, float]],
    ends: Mapping[str, tuple[float, float]],
    chosen: float | None,
) -> dict[str, Any]:
    """Return the picture of a measure of each way to join: with intervals where all have one, and a line at the way that is used; else as bars."""
    if len(ends) == len(ways):
        values = [ways[way][measure] for way in ends]
        low, high = ([one[place] for one in ends.values()] for place in (0, 1))
        line = values[0] if chosen is None else chosen
        return {"name": f"test rows: {measure}, 95 % intervals", "kind": "intervals", "labels": list(ends), "values": values, "low": low, "high": high, "line": line}  # fmt: skip
    series = [{"name": measure, "values": [own.get(measure, 0.0) for own in ways.values()]}]
    return {"name": f"test rows: {measure}", "kind": "bars", "flat": True, "labels": list(ways), "series": series}


def _inside(model: nn.Module) -> nn.Module:
    """Return a leaf as one of its own columns, frozen."""
    made = model.model if isinstance(model, OnColumns) else model
    return made.eval().requires_grad_(False)


class _OverLeaves(nn.Module):
    """Frozen leaves with a network over them, which alone is trained and sent."""

    def __init__(self, members: Sequence[nn.Module], network: nn.Sequential, inputs: str) -> None:
        super().__init__()
        self.members, self.network, self.inputs = nn.ModuleList(members), network, inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        members: Any = self.members
        made: torch.Tensor = self.network(over_arch_inputs(members, x, self.inputs))
        return made
