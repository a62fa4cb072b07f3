"""An ensemble prepared for one population: its leaves' trainings and what comes after them, and the ensembles that a search compares."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, DataError
from atoll.core.event import Event
from atoll.core.job import InnerJob, Prepared, members_of, prepared
from atoll.data.model_columns import ModelColumns
from atoll.learn.prepared import PreparedTraining, Trained
from atoll.learn.round.evaluation import Evaluation
from atoll.learn.training import Training
from atoll.torch import TorchLearner, seeded

from .accounting import EnsembleLoss, EnsembleRelease, account_ensemble, add_losses, share_epsilon
from .block import block_of, enrol, find_obstacle, split_models
from .clusters import Clusters, form_clusters
from .joining import log_probabilities, over_arch_inputs
from .model import (
    FederatedEnsemble,
    count_numbers,
    join_leaves,
    known_leaves,
    opt_in_rows,
    require_fitted,
    score_arms,
    score_interval,
    score_population,
    score_probabilities,
)
from .private_leaf import DeviceEnsemble, OnColumns, over_arch_of, split_columns
from .regrouping import FurtherTrainings, Regrouped
from .search import SearchRecord, choose_count, user_losses

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = ["PreparedEnsemble", "PreparedSearch", "prepare_search"]

_PRIVATE = "private-leaf"
_MORE_TRAIN = "let fewer users opt in, with a smaller opt_in="
_FEWER_LEAVES = "use fewer clusters, another column, or in Python a smaller smallest="


class EnsembleReport(Prepared):
    """What every ensemble says of its result."""

    def __init__(self, job: Any, data: Any) -> None:
        self.job, self.data = job, data
        names = [str(name) for name in data.names]
        self.opt_in = job.draw_opt_in(names)
        away = set(self.opt_in)
        self.clients = tuple(name for name in names if name not in away)

    def _sizes(self, outcome: FederatedEnsemble) -> dict[str, int]:
        """Return how many users train each leaf."""
        members = outcome.clusters.members(self.clients)
        return {name: len(own) for name, own in zip(outcome.clusters.names, members, strict=True)}

    def reason(self, value: FederatedEnsemble, fed: Any) -> str:
        """Return why training ended."""
        del fed
        return value.reason

    def files(self, outcome: FederatedEnsemble) -> Mapping[str, bytes]:
        """Return the ensemble's files, which `FederatedEnsemble.load` reads in the run's folder."""
        return outcome.packed()

    def facts(self, outcome: FederatedEnsemble) -> Mapping[str, Any]:
        """Return scores, epsilons and sizes."""
        loss = None if outcome.loss is None else outcome.loss.plain()
        told = {
            "epsilon": loss,
            "leaves": self._sizes(outcome),
            "parameters": outcome.parameters,
            "opt_in": len(self.opt_in),
        }
        search = {} if outcome.search is None else {"search": outcome.search.plain()}
        return {"result": {**outcome.scores, **told, **search}}

    def sections(self, outcome: FederatedEnsemble) -> Sequence[Mapping[str, Any]]:
        """Return the measures of each way to join the leaves, and how many users each leaf has."""
        sizes = [[name, f"{count:,}"] for name, count in self._sizes(outcome).items()]
        leaves = [{"title": "Leaves", "tables": [{"head": ["leaf", "users"], "rows": sizes}]}]
        if outcome.search is not None:
            leaves.append(outcome.search.section())
        ways = outcome.scores
        if not ways:
            text = "The server has no test rows, so nothing here says how well the ensemble predicts."
            return [{"title": "How well it predicts", "text": text, "tables": []}, *leaves]
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
        return [{"title": "How well it predicts", "tables": [table], "figures": [picture], "tiles": tiles}, *leaves]


def form_members(job: Any, data: Any, opt_in: Sequence[str]) -> tuple[Clusters, list[tuple[str, ...]]]:
    """Return the clusters, and the users that train each leaf.

    Raises:
        DataError: a leaf has too few.
    """
    clusters = form_clusters(job.clusters, data)
    members = clusters.members([str(name) for name in data.names if str(name) not in set(opt_in)])
    for name, own in zip(clusters.names, members, strict=True):
        if len(own) < job.smallest:
            gave = sum(clusters.names[clusters.users[one]] == name for one in opt_in)
            raise DataError(
                f"leaf {name!r} has {len(own)} users to train it besides {gave} who opted in, and the smallest may have {job.smallest}",
                where="Federated.clusters",
                remedy=_MORE_TRAIN if len(own) + gave >= job.smallest else _FEWER_LEAVES,
            )
    return clusters, members


def record_scores(fed: Federation, scores: Mapping[str, Mapping[str, float]], chosen: str, rounds: int) -> None:
    """Record what an ensemble scores, under the names that a training's scores have, and every other way to join; the way itself may need users that test rows do not name."""
    if scores:
        told = {f"{arm}/{name}": value for arm, found in scores.items() for name, value in found.items()}
        mine = {f"test/{name}": value for name, value in scores.get(chosen, {}).items()}
        fed.record({"round": rounds, **mine, **told})


class PreparedEnsemble(EnsembleReport):
    """The job, with clusters and the leaves' trainings.

    Args:
        job: the job.
        data: the population.
        each: the epsilon of each training, where a search has shared it out already.
        candidate: whether it is one of several, or what is left of them.
        left: the candidates besides it, with why they are left out; ``None`` where there were none.
    """

    def __init__(
        self, job: Any, data: Any, each: float | None = None, *, candidate: bool = False, left: Any = None
    ) -> None:
        super().__init__(job, data)
        self._left = left
        self.clusters, self.members = form_members(job, data, self.opt_in)
        self._candidate = candidate
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
        self._require_moves()
        self._prepare_trainings(leaf)
        if self._searches and self.block is not None and self.block.learner.buffers():
            self.obstacle = "buffers"  # those of a block are all leaves'
            self._prepare_trainings(leaf)
        self._keep_epsilon(leaf, each)
        self.further = self._further()
        choice = () if self.further is None else self.further.tasks
        self.tasks = [*self.block.tasks, enrol, *choice] if self.block else choice

    @property
    def most_leaves(self) -> int:
        """How many leaves there are."""
        return len(self.members)

    @property
    def _searches(self) -> bool:
        """Whether leaves may train again."""
        return self.job.search is not None and self.job.search.again > 0 and len(self.members) > 1

    def _require_moves(self) -> None:
        """Refuse a search with nothing to choose among, and trainings that sites cannot know of."""
        search = self.job.search
        if search is not None and len(self.members) < 2 and not self._candidate:
            raise CompositionError(
                "there is one leaf: nobody can move, and no leaf lags behind others",
                where="Federated.search",
                remedy="use clusters with several leaves, candidates such as Search(clusters=(1, 2, 4, 8)), or leave out search=",
            )
        if self._searches and self.obstacle and hasattr(self.data, "outline"):
            raise CompositionError(
                f"{self.obstacle} keeps leaves from being one block, and sites cannot know beforehand who will train which of them again",
                where="Federated.search",
                remedy=f"leave out {self.obstacle} of the leaf, leave out search=, or train between simulated users",
            )

    def _further(self) -> FurtherTrainings | None:
        """Return what a search does with leaves that are trained."""
        if not self._searches:
            return None
        ready: Any = self.block or self.each[0]
        return FurtherTrainings(
            self.job.search,
            self.leaf,
            self.data,
            ready.learner,
            self.block is not None,
            self.clients,
            self.opt_in,
            self.job.smallest,
            lambda groups: self.planned(groups=groups).total <= self.limit,
        )

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

    def _releases(
        self, more: Any = None, claims: Sequence[Any] | None = None
    ) -> tuple[list[EnsembleRelease], EnsembleRelease | None]:
        """Return what the leaves release and what the private leaf does, counted with another mechanism if there is one.

        Args:
            more: the other mechanism.
            claims: what the leaves' trainings promise, if not that of the first.
        """

        def released(name: str, users: Sequence[str], claim: Any) -> EnsembleRelease:
            if more is not None and claim is not None:
                claim = more.solved(claim.attendance)[1]
            return EnsembleRelease.of(name, users, claim)

        named = zip(self.clusters.names, self.members, claims or self._claims(), strict=True)
        leaves = [released(f"leaf {name}", own, claim) for name, own, claim in named]
        inner = self.jobs.get(_PRIVATE)
        own = None if inner is None else released("private leaf", self.clients, getattr(inner.prepared, "claim", None))
        return leaves, own

    def _keep_epsilon(self, leaf: Training, each: float | None) -> None:
        """Give each training the epsilon with which all that a user is in keep the ensemble's.

        Args:
            leaf: the training of a leaf.
            each: the epsilon of each, where a search has shared it out already.
        """
        mechanism, self.limit = leaf.privacy, math.inf
        if mechanism is None or mechanism.epsilon is None:
            return
        self.limit = mechanism.epsilon
        if each is None and self.trainings > 1:
            each = share_epsilon(
                mechanism.epsilon,
                self.trainings,
                lambda epsilon: self.planned(replace(mechanism, epsilon=epsilon)).total,
                self.answers,
            )
        if each not in (None, mechanism.epsilon):
            self._prepare_trainings(leaf.replace(privacy=replace(mechanism, epsilon=each)))
            if self._candidate:
                self.limit = self.planned().total * (1 + 1e-6)

    @property
    def trainings(self) -> int:
        """How many trainings a user is in at most."""
        return 1 + self.over_arch + (self.private is not None) + (self.job.search.again if self._searches else 0)

    @property
    def answers(self) -> float:
        """Epsilon of the answers of a user about where to move, together."""
        search = self.job.search
        return search.recluster * search.epsilon if self._searches and search.epsilon else 0.0

    def planned(self, mechanism: Any = None, groups: Any = None) -> EnsembleLoss:
        """Return what the ensemble will have cost after all trainings, with users in the leaves that they have now.

        Args:
            mechanism: another one than that of the leaves.
            groups: what further trainings release; ``None`` for all that there may be.
        """
        leaves, own = self._releases(mechanism)
        return account_ensemble(
            leaves,
            self._head_release(mechanism),
            private=own,
            again=self._groups(mechanism) if groups is None else groups,
        )

    def _head_release(self, mechanism: Any) -> EnsembleRelease | None:
        """Return what the training of an over-arch will release; ``None`` without one."""
        claim = self._over_arch_claim if self.over_arch else None
        if claim is None:
            return None
        given: Any = mechanism or self.leaf.privacy
        return EnsembleRelease.of("over-arch", self.clients, given.solved(claim.attendance)[1])

    def _groups(self, mechanism: Any) -> list[list[EnsembleRelease]]:
        """Return what further trainings release at most, with users in the leaves that they have now."""
        if not self._searches:
            return []
        search, claims = self.job.search, self._claims()
        answers = [self._further().choice_release(len(self.members), claims[0])]  # type: ignore[union-attr]
        again = self._releases(mechanism)[0]
        groups = [group for _ in range(search.recluster) for group in (answers, again)]
        if search.retrain:
            groups.append(self._releases(mechanism, self._retrain_claims)[0])
        return groups

    @functools.cached_property
    def _retrain_claims(self) -> list[Any]:
        """What the further training of each leaf that lags will promise."""
        if self.block:
            return [None] * len(self.members)
        job = self.leaf.replace(rounds=self.job.search.retrain)
        return [getattr(prepared(job, members_of(self.data, own)), "claim", None) for own in self.members]

    @functools.cached_property
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
        if self._searches and any(one is not None for one in self._claims()):
            return None  # who trains which leaf again is not known
        told = [one.most(rows) for one in ([self.block] if self.block else self.each)]
        return told[0] if all(one == told[0] for one in told) else None

    def entrusted(self, rows: int) -> Sequence[Event]:
        """Return what a leaf's server promises to add."""
        told = [one.entrusted(rows) for one in ([self.block] if self.block else self.each)]
        return [
            event for _ in range(1 + (self.job.search.again if self._searches else 0)) for event in max(told, key=len)
        ]

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
        found = Regrouped(params, self.clusters)
        if self.further is not None:
            found = await self.further.run(fed, params, self.clusters, self._claims()[0])
        clusters = found.clusters
        members = [learner.export(own) for own in found.params]
        private = await self._train_private(fed)
        rows = opt_in_rows(self.data, self.opt_in, clusters)
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
        loss = account_ensemble(releases, released, private=own, again=found.groups)
        scores = self._score(joined, device, clusters)
        history, reason = (None, "all leaves are trained") if trained is None else (trained.history, trained.reason)
        rounds = self.leaf.rounds + found.rounds
        record_scores(fed, scores, "device" if device is not None else aggregate, rounds)
        return FederatedEnsemble(
            aggregate,
            clusters,
            joined,
            self.columns,
            scores,
            loss,
            self.opt_in,
            history,
            reason,
            self.obstacle,
            device,
            self._tell_search(found),
        )

    def _tell_search(self, found: Regrouped) -> SearchRecord | None:
        """Return what was chosen, in words too; ``None`` without a search."""
        if self.job.search is None and self._left is None:
            return None
        count, kept = len(found.params), sum(bool(one["kept"]) for one in found.retrained)
        told = [] if self._left is None else [f"{count} leaves: no other number can be trained"]
        told += [f"{moved} users moved to the leaf that serves them best" for moved in found.moved]
        if found.retrained:
            told.append(f"{len(found.retrained)} leaves lagged and trained on, of which {kept} are better")
        rows = () if self._left is None else sorted([{"clusters": count}, *self._left], key=lambda one: one["clusters"])
        return SearchRecord(count, tuple(rows), found.moved, found.retrained, "; ".join(told) or "no leaf lags")

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

    def _score(
        self, joined: Mapping[str, Any], device: DeviceEnsemble | None, clusters: Clusters
    ) -> dict[str, dict[str, float]]:
        if device is None:
            return score_population(joined, self.data, clusters)
        test = getattr(self.data, "test", None)
        if test is None or not len(test):
            return {}
        x, y, leaves = np.asarray(test.x), np.asarray(test.y), list(next(iter(joined.values())).members)
        found = score_arms(joined, x[:, self.public], y, known_leaves(clusters, test))
        chances = device.predict_proba(device.ask(leaves, x[:, self.public]), x[:, self.own_columns])
        return {**found, "device": score_probabilities(chances, y)}


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


# ---------------------------------------------------------------- a search among numbers of leaves


def prepare_search(job: Any, data: Any) -> Prepared:
    """Return the ensembles that a search compares, prepared; or the only one that is left.

    Raises:
        DataError: no candidate can be trained.
    """
    opt_in = job.draw_opt_in([str(name) for name in data.names])
    search, left = job.search, list[dict[str, Any]]()
    own = 4 * count_numbers(job.leaf.model) if search.most_bytes is not None else 0
    counts, refused = list[int](), None
    for count in search.clusters:
        why = ""
        if search.most_bytes is not None and count * own > search.most_bytes:
            why = f"its leaves have {count * own} bytes, and {search.most_bytes} are allowed"
        else:
            try:
                form_members(replace(job, clusters=replace(job.clusters, count=count)), data, opt_in)
            except DataError as error:
                why, refused = error.what, error
        if why:
            left.append({"clusters": count, "left_out": why})
        else:
            counts.append(count)
    if not counts:
        raise refused or DataError(
            f"no number of leaves can be trained: {left[0]['left_out']}",
            where="Search.most_bytes",
            remedy="allow more bytes, or use a narrower leaf, see shrinking_widths",
        )
    if len(counts) > 1:
        return PreparedSearch(job, data, counts, left)
    only = replace(job, clusters=replace(job.clusters, count=counts[0]), search=_rest_of(search))
    return PreparedEnsemble(only, data, candidate=True, left=tuple(left))


class PreparedSearch(EnsembleReport):
    """Ensembles of several numbers of leaves, of which one is chosen.

    Args:
        job: the job, with its candidates.
        data: the population.
        counts: the numbers of leaves that can be trained.
        left: the others, with why they are left out.
    """

    def __init__(self, job: Any, data: Any, counts: Sequence[int], left: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(job, data)
        self._left = tuple(left)
        inner = {
            count: replace(job, clusters=replace(job.clusters, count=count), search=_rest_of(job.search))
            for count in counts
        }
        self.among = {
            count: PreparedEnsemble(one, data, _unshared(job), candidate=True) for count, one in inner.items()
        }
        mechanism = job.leaf.privacy
        if mechanism is not None and mechanism.epsilon is not None:
            each = share_epsilon(
                mechanism.epsilon,
                sum(one.trainings for one in self.among.values()),
                lambda epsilon: self._planned(replace(mechanism, epsilon=epsilon)),
                sum(one.answers for one in self.among.values()),
            )
            self.among = {count: PreparedEnsemble(one, data, each, candidate=True) for count, one in inner.items()}
        self.jobs = {_scope_of(count): InnerJob(inner[count], one) for count, one in self.among.items()}

    @property
    def most_leaves(self) -> int:
        """How many leaves the largest candidate has."""
        return max(self.among)

    def _planned(self, mechanism: Any) -> float:
        first, *others = [one.planned(mechanism) for one in self.among.values()]
        return add_losses(first, others).total

    @property
    def columns(self) -> ModelColumns | None:
        """The columns of rows."""
        return next(iter(self.among.values())).columns

    def most(self, rows: int) -> Sequence[Event] | None:
        """Return what all candidates' trainings release of a party; ``None`` where one's depends on its leaf."""
        told = [one.most(rows) for one in self.among.values()]
        return None if None in told else [event for one in told for event in one or ()]

    def entrusted(self, rows: int) -> Sequence[Event]:
        """Return what the server promises to add in the candidates' trainings."""
        return [event for one in self.among.values() for event in one.entrusted(rows)]

    async def program(self, fed: Federation) -> FederatedEnsemble:
        """Train all candidates, each to its end, and choose."""
        found: dict[int, FederatedEnsemble] = {}
        for count in self.among:
            found[count] = await fed.run(self.jobs[_scope_of(count)].job, scope=_scope_of(count))
        count, told = choose_count({name: self._own_losses(one) for name, one in found.items()})
        chosen = found[count]
        others = [one.loss for name, one in found.items() if name != count and one.loss is not None]
        loss = None if chosen.loss is None else add_losses(chosen.loss, others)
        rows = sorted([*told, *self._left], key=lambda one: one["clusters"])
        inner = chosen.search or SearchRecord(count)
        why = _tell_choice(count, told, len(self.opt_in)) + (f"; {inner.why}" if inner.moved or inner.retrained else "")
        record = replace(inner, clusters=count, candidates=tuple(rows), why=why)
        more = [self.job.leaf.rounds for moved in inner.moved if moved]
        rounds = self.job.leaf.rounds + sum(more) + (self.job.search.retrain if inner.retrained else 0)
        record_scores(fed, chosen.scores, "device" if chosen.device is not None else chosen.aggregate, rounds)
        return replace(chosen, loss=loss, search=record)

    def _own_losses(self, one: FederatedEnsemble) -> Any:
        losses = user_losses(one.leaves, self.data, self.opt_in)
        return losses[np.arange(len(losses)), [one.clusters.users[name] for name in self.opt_in]]


def _scope_of(count: int) -> str:
    return f"clusters-{count}"


def _rest_of(search: Any) -> Any:
    """Return what a candidate chooses after its first training; ``None`` for nothing."""
    return replace(search, clusters=(), most_bytes=None) if search.again else None


def _unshared(job: Any) -> float | None:
    """Return the epsilon with which candidates are prepared before it is shared out among them."""
    return None if job.leaf.privacy is None else job.leaf.privacy.epsilon


def _tell_choice(count: int, told: Sequence[Mapping[str, float]], users: int) -> str:
    """Return why this number of leaves was chosen."""
    own = next(one for one in told if one["clusters"] == count)
    if not own["above"]:
        return f"{count} leaves: their log loss on rows of {users} opt-in users, {own['loss']:.4f}, is the least"
    return f"{count} leaves: the fewest whose log loss on rows of {users} opt-in users, {own['loss']:.4f}, is within two standard errors of the least ({own['above']:.4f} above, error {own['error']:.4f})"
