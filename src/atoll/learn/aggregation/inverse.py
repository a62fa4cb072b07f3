"""Inverse-probability weights: unbiased for any preference of the selection rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Mean
from atoll.core.algebra.tree import Tree
from atoll.core.capability import Need
from atoll.core.errors import CompositionError
from atoll.core.requests.results import Combined
from atoll.learn.algorithm import Algorithm, RoundInfo
from atoll.learn.wrapped import dry_reply

from .base import ONE_BY_ONE, Aggregation, population_weight, require_examples
from .keep_local import SingleReplies

__all__ = ["InverseProbability"]


@dataclass(frozen=True)
class InverseProbability(Aggregation):
    """``w(t) = w(t-1) + sum_{k in S} (n_k/n) / (K q_k) (w_k - w(t-1))`` for K draws with replacement, each of client k with probability ``q_k``.

    Unbiased for ``sum_k (n_k/n) w_k`` (Hansen and Hurwitz 1943) for any probabilities, if every drawn client replies. So a rule such as
    ``FedProf(replace=True)`` can prefer some clients without favouring their data. The price is variance: it grows with ``(n_k/n) / q_k``, and a rarely
    drawn client makes a large step when it is drawn. ``FedProf(explore=...)`` bounds it. Clients without rows have no weight and need no probability.
    """

    weighs_population: ClassVar[bool] = True
    weighs_odds: ClassVar[bool] = True

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, and single replies."""
        return (*super().needs, *ONE_BY_ONE)

    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return the base with its update as a single reply."""
        return SingleReplies(base=base)

    def check(self, base: Algorithm, params: Tree) -> None:
        """Refuse an algorithm without a mean update of the model, weighted by examples."""
        if not isinstance(dry_reply(base, params).get("update"), Mean):
            raise CompositionError(
                f"{type(base).__name__} does not reply with the mean update of a model",
                where="aggregation=InverseProbability",
                remedy="use an algorithm such as FedAvg",
            )
        require_examples(self, base, params)

    def combine(self, combined: Combined, params: Tree, memory: Tree, info: RoundInfo) -> tuple[dict[str, Any], Tree]:
        """Return the update, with each reply weighted by its share divided by its expected number of draws."""
        if combined.kinds.get("update") != "parts":
            return combined.value, memory
        total, odds = population_weight(info), info.odds or {}
        update = T.zeros_like(params)
        for part in combined.value["update"]:
            factor = part.weight / (total * info.replied * odds[int(part.sender)])
            update = T.add(update, T.scale(part.value, factor))
        return {**combined.value, "update": update}, memory
