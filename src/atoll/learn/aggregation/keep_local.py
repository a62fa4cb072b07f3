"""Keep-local full aggregation: the last model of an absent client replaces its reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean, Part, Parts
from atoll.core.algebra.tree import Tree
from atoll.core.capability import Need
from atoll.core.errors import CompositionError
from atoll.core.requests.results import Combined
from atoll.learn.algorithm import Algorithm, LocalWork, RoundInfo
from atoll.learn.wrapped import Wrapped, dry_reply

from .base import ONE_BY_ONE, Aggregation, population_weight, require_examples

__all__ = ["KeepLocal", "SingleReplies"]


@dataclass(frozen=True)
class KeepLocal(Aggregation):
    """``w(t) = sum_{k in U} (n_k/n) c_k`` with ``c_k`` the newest local model of client k, ``w(0)`` before its first (Wu 2021, Eq. 2.45).

    The server keeps one model for every client that ever replied, in memory and in checkpoints. It updates the mean by what changed, so
    that a round costs the cohort, not the population. It must see single replies from different rounds. Masks of one round do not
    cancel in the next, so a secure reducer refuses this operator.
    """

    weighs_population: ClassVar[bool] = True

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, and single replies."""
        return (*super().needs, *ONE_BY_ONE)

    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return the base with its update as a single reply."""
        return SingleReplies(base=base)

    def check(self, base: Algorithm, params: Tree) -> None:
        """Refuse an algorithm without a mean update of the model."""
        if not isinstance(dry_reply(base, params).get("update"), Mean):
            raise CompositionError(
                f"{type(base).__name__} does not reply with the mean update of a model, so that there is no local model to keep",
                where="aggregation=KeepLocal",
                remedy="use KeepGlobal, or an algorithm such as FedAvg",
            )
        require_examples(self, base, params)

    def init(self, params: Tree) -> Tree:
        """Start with ``w(0)`` for every client."""
        return {"start": params, "mean": params, "models": {}}

    def combine(self, combined: Combined, params: Tree, memory: Tree, info: RoundInfo) -> tuple[dict[str, Any], Tree]:
        """Put the new models into the cache; the update is the difference from ``w(t-1)`` to the cache's mean."""
        if combined.kinds.get("update") != "parts":
            return combined.value, memory
        total, models, mean = population_weight(info), dict(memory["models"]), memory["mean"]
        parts: list[Part] = combined.value["update"]
        for part in parts:
            name = str(part.sender)
            fresh = T.add(params, part.value)
            mean = T.add(mean, T.scale(T.sub(fresh, models.get(name, memory["start"])), part.weight / total))
            models[name] = fresh
        return {**combined.value, "update": T.sub(mean, params)}, {**memory, "mean": mean, "models": models}


@dataclass(frozen=True, kw_only=True)
class SingleReplies(Wrapped):
    """An algorithm whose update is a single reply, not summed."""

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the base's reply, with its update as a single reply."""
        reply, state = self.base.finish(local, broadcast, client, work)
        update = reply.get("update")
        if isinstance(update, Mean):
            reply = {**reply, "update": Parts(update.value, examples=update.examples)}
        return reply, state
