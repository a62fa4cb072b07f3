"""Sufficient statistics: models estimated from sums, exactly and in one round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.capability import STEPS, Capability, Need
from atoll.core.errors import CompositionError
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, RoundInfo
from atoll.learn.capabilities import STATISTICS
from atoll.learn.card import Card

__all__ = ["SufficientStatistics"]


@dataclass(frozen=True, kw_only=True)
class SufficientStatistics(Algorithm):
    """Clients send the statistics of their own rows; the server adds them up: ``s = sum_k s_k``.

    With every client in one round (``selection=Everyone(), rounds=1``) the model equals that of the pooled rows. It is for naive Bayes; a model
    without sufficient statistics is refused.
    """

    partial: ClassVar[bool] = False
    card: ClassVar[Card] = Card(
        family="statistics", unbiased=True, note="For models without gradients. With all clients, one round is exact."
    )

    @property
    def needs(self) -> tuple[Need, ...]:
        """Only a model computed from sums, which other algorithms do not need."""
        return (Need(STATISTICS, "sends sums of statistics", "FedAvg"),)

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's capabilities, except that a round continues from the last one."""
        return super().offers - {STEPS}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with no statistics yet."""
        del client
        return {"params": T.zeros_like(broadcast["params"])}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Raise an error: gradients do not give statistics.

        Raises:
            CompositionError: the model is trained by gradients.
        """
        raise _by_gradients()

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the client's statistics, to add up."""
        del broadcast, work
        return {"statistics": Sum(local["params"])}, client

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Set the statistics of this round's clients."""
        del info, phase
        return {**state, "params": sums["statistics"]}


def _by_gradients() -> CompositionError:
    return CompositionError(
        "a model trained by gradients has no sufficient statistics",
        where="SufficientStatistics",
        remedy="use FedAvg, or a naive Bayes model",
    )
