"""Further trainings of leaves that are trained: users move to the leaf that serves them best, and leaves that lag train on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from atoll.core.event import NonPrivate
from atoll.core.job import members_of, prepared
from atoll.core.requests.task import Task
from atoll.privacy import RandomisedResponse

from .accounting import EnsembleRelease
from .block import block_of, enrol, split_models
from .clusters import Clusters
from .search import Search, find_weak, log_losses, settle_moves, user_losses

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island
    from atoll.learn.training import Training

__all__ = ["FurtherTrainings", "Regrouped", "answer_noisily"]

Groups = tuple[tuple[EnsembleRelease, ...], ...]
"""Trainings after the first, each with a release a leaf, and the users' answers between them."""
_AFFORD = 0.9
"""By what factor the epsilon of a further training shrinks until it fits: users have moved, and a leaf of other users may cost a little more than was planned."""


def answer_noisily(place: int, count: int, epsilon: float, secret: Any) -> int:
    """Return one of ``count`` places by randomised response: the true one with probability ``e^epsilon / (e^epsilon + count - 1)``, else any other.

    Args:
        place: the true one.
        count: how many there are.
        epsilon: of the answer.
        secret: entropy that only the party knows.
    """
    first, second = secret.uniform(2)
    if first < 1 / (1 + (count - 1) * np.exp(-epsilon)):
        return place
    return (place + 1 + int(second * (count - 1))) % count


@dataclass(frozen=True)
class Regrouped:
    """Leaves after all trainings.

    Attributes:
        params: of each leaf.
        clusters: which user has which leaf now.
        groups: what was released after the first training.
        moved: how many users changed their leaf, each time.
        retrained: see `SearchRecord`.
        rounds: of further trainings.
    """

    params: Sequence[Any]
    clusters: Clusters
    groups: Groups = ()
    moved: tuple[int, ...] = ()
    retrained: tuple[Mapping[str, Any], ...] = ()
    rounds: int = 0


@dataclass(frozen=True)
class FurtherTrainings:
    """What a search does with leaves that are trained.

    Attributes:
        search: what is chosen.
        leaf: the training of a leaf, with its mechanism.
        data: the population.
        learner: of the leaves.
        together: whether leaves train as one block.
        clients: users that train.
        opt_in: users whose rows the server has.
        smallest: fewest users of a leaf.
        keeps: whether the ensemble keeps its epsilon with these further releases.
    """

    search: Search
    leaf: Training
    data: Any
    learner: Any
    together: bool
    clients: tuple[str, ...]
    opt_in: tuple[str, ...]
    smallest: int
    keeps: Callable[[Groups], bool]

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The clients' task besides those of trainings."""
        return (self.choose,) if self.search.recluster else ()

    @property
    def choose(self) -> Task:
        """Answer which leaf serves the client's rows best."""
        return Task("atoll.ensemble.regrouping:choose", self._choose)

    def _choose(self, island: Island, message: Mapping[str, Any]) -> dict[str, Any]:
        models = [self.learner.export(one) for one in message["models"]]
        own, epsilon = int(message["own"]), float(message["epsilon"])
        losses = log_losses(models, np.asarray(island.data["x"]), np.asarray(island.data["y"]))
        best = int(losses.argmin()) if losses.min() < losses[own] else own
        if not epsilon:
            island.spend(NonPrivate(what="which leaf serves a client best"))
            return {"leaf": best}
        island.spend(RandomisedResponse(epsilon=epsilon, buckets=len(models)))
        return {"leaf": answer_noisily(best, len(models), epsilon, island.secret)}

    def choice_release(self, leaves: int, claim: Any) -> EnsembleRelease:
        """Return what users' answers release once, under the terms of a training's promise."""
        name, epsilon = "which leaf serves a user best", self.search.epsilon
        if epsilon is None or claim is None:
            return EnsembleRelease.of(name, self.clients, None)
        event = RandomisedResponse(epsilon=epsilon, buckets=leaves)
        return EnsembleRelease(
            name, self.clients, ((event, 1),), claim.delta, claim.accountant, claim.adversary, claim.neighbours
        )

    async def run(self, fed: Federation, params: Sequence[Any], clusters: Clusters, claim: Any) -> Regrouped:
        """Return the leaves after users have moved and weak leaves have trained on.

        Args:
            fed: the federation.
            params: of the trained leaves.
            clusters: which user has which leaf.
            claim: what a leaf's first training promises; ``None`` if nothing.
        """
        found = Regrouped(tuple(params), clusters)
        for turn in range(1, self.search.recluster + 1):
            users = await self._ask_users(fed, found, turn)
            moved = sum(users[name] != found.clusters.users[name] for name in self.clients)
            found = replace(
                found,
                clusters=replace(found.clusters, users={**found.clusters.users, **users}),
                groups=(*found.groups, (self.choice_release(len(params), claim),)),
                moved=(*found.moved, moved),
            )
            if not moved:
                break
            members = found.clusters.members(self.clients)
            found = await self._train(fed, found, members, self.leaf.rounds, f"again-{turn}") or found
        return await self._train_weak(fed, found) if self.search.retrain else found

    async def _ask_users(self, fed: Federation, found: Regrouped, turn: int) -> dict[str, int]:
        """Return the leaf of every user after the moves; who does not answer stays, and opt-in users follow their rows at the server."""
        users, count = found.clusters.users, len(found.params)
        scope = fed.scope(f"choice-{turn}", fed.parties.named(*self.clients))
        state = await scope.restore({"asked": None})
        if state["asked"] is None:
            asked: dict[str, int] = {}
            for place, own in enumerate(found.clusters.members(self.clients)):
                if own:  # a message for each leaf: a client need not know where others are
                    message = {"models": list(found.params), "own": place, "epsilon": self.search.epsilon or 0.0}
                    replies = await scope.ask_all(scope.parties.named(*own), self.choose, message, quorum=0, at=place)
                    asked |= {str(name): _leaf_in(reply, place, count) for name, reply in replies.by_name().items()}
            state = {"asked": asked}
            await scope.checkpoint(state)
        told = {name: int(place) for name, place in state["asked"].items()}
        moves = settle_moves({name: users[name] for name in self.clients}, told, self.smallest)
        if not self.opt_in:
            return moves
        losses = user_losses(self._models(found.params), self.data, self.opt_in)
        own_loss = losses[np.arange(len(losses)), [users[name] for name in self.opt_in]]
        best = zip(self.opt_in, losses.argmin(1).tolist(), losses.min(1) < own_loss, strict=True)
        return moves | {name: place if better else users[name] for name, place, better in best}

    def _models(self, params: Sequence[Any]) -> list[nn.Module]:
        return [self.learner.export(one) for one in params]

    async def _train(
        self, fed: Federation, found: Regrouped, members: Sequence[tuple[str, ...]], rounds: int, name: str
    ) -> Regrouped | None:
        """Return the leaves after a further training of those with members; ``None`` if the epsilon does not allow it."""
        plan = self._plan(found, members, rounds, name)
        if plan is None:
            return None
        jobs, group = plan
        params = list(found.params)
        if self.together:
            block = block_of(self.leaf.replace(rounds=rounds), members, begin=params)
            scope = fed.scope(name, fed.parties.named(*(user for own in members for user in own)))
            for place, own in enumerate(members):
                if own:
                    told = {"leaves": max(2, len(params)), "leaf": dict.fromkeys(own, place)}
                    await scope.sum(scope.parties.named(*own), enrol, told, at=("enrol", place))
            trained = await block.program(self.data, self.learner)(scope)
            made = split_models(trained.params, len(params))
            params = [new if own else old for new, old, own in zip(made, params, members, strict=True)]
        else:
            runs = {place: fed.run(job, members[place], scope=f"{name}-leaf-{place}") for place, job in jobs.items()}
            for place, one in zip(runs, await asyncio.gather(*runs.values()), strict=True):
                params[place] = one.params
        return replace(found, params=tuple(params), groups=(*found.groups, group), rounds=found.rounds + rounds)

    def _plan(
        self, found: Regrouped, members: Sequence[tuple[str, ...]], rounds: int, name: str
    ) -> tuple[dict[int, Training], tuple[EnsembleRelease, ...]] | None:
        """Return the training of each leaf with members, from where the leaf is, and what they release."""
        leaf, mechanism = self.leaf.replace(rounds=rounds), self.leaf.privacy
        models = self._models(found.params)
        for _ in range(60):
            jobs = {place: leaf.replace(model=models[place]) for place, own in enumerate(members) if own}
            group = []
            for place, job in jobs.items():
                claim = None if self.together else prepared(job, members_of(self.data, members[place])).claim  # type: ignore[attr-defined]
                title = f"leaf {found.clusters.names[place]}, {name}"
                group.append(EnsembleRelease.of(title, members[place], claim))
            if mechanism is None or mechanism.epsilon is None or self.keeps((*found.groups, tuple(group))):
                return jobs, tuple(group)
            mechanism = replace(mechanism, epsilon=_AFFORD * mechanism.epsilon)
            leaf = leaf.replace(privacy=mechanism)
        return None

    async def _train_weak(self, fed: Federation, found: Regrouped) -> Regrouped:
        """Return the leaves after those that lag had further rounds; each keeps its model unless the new one is better for its opt-in users."""
        leaf = np.array([found.clusters.users[name] for name in self.opt_in])
        weak = find_weak(user_losses(self._models(found.params), self.data, self.opt_in), leaf, self.search.margin)
        if not weak:
            return found
        begins = list(found.params)
        if self.search.warm == "neighbour":
            for place, row in weak.items():
                begins[place] = found.params[int(row.argmin()) if row.min() < row[place] else place]
        members = [own if place in weak else () for place, own in enumerate(found.clusters.members(self.clients))]
        after = await self._train(fed, replace(found, params=tuple(begins)), members, self.search.retrain, "retrain")
        if after is None:
            return found
        losses = user_losses(self._models(after.params), self.data, self.opt_in)
        params, told = list(found.params), []
        for place, row in weak.items():
            new = float(losses[leaf == place, place].mean())
            if new < row[place]:
                params[place] = after.params[place]
            told.append({"leaf": found.clusters.names[place], "before": float(row[place]), "after": new, "kept": bool(new < row[place])})  # fmt: skip
        return replace(after, params=tuple(params), retrained=tuple(told))


def _leaf_in(reply: Any, own: int, count: int) -> int:
    """Return the leaf that a reply names; the client's own if it names none."""
    place = reply.get("leaf") if isinstance(reply, Mapping) else None
    return int(place) if isinstance(place, int | np.integer) and 0 <= place < count else own
