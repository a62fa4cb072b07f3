"""Sufficient statistics: models that are estimated from sums, exactly and in one round."""

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
    """Clients send the statistics of their own rows, the server adds them up: ``s = sum_k s_k``.

    With every client in one round (``selection=Everyone(), rounds=1``) the model is the one of the pooled rows. For naive Bayes; a model
    without sufficient statistics is refused.
    """

    partial: ClassVar[bool] = False
    card: ClassVar[Card] = Card(
        family="statistics", unbiased=True, note="For models without gradients. With all clients, one round is exact."
    )

    @property
    def needs(self) -> tuple[Need, ...]:
        """A model that follows from sums, which other algorithms do not need."""
        return (Need(STATISTICS, "sends sums of statistics", "FedAvg"),)

    @property
    def offers(self) -> frozenset[Capability]:
        """Not that a round goes on from the last one."""
        return super().offers - {STEPS}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """No statistics yet."""
        del client
        return {"params": T.zeros_like(broadcast["params"])}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Refused: statistics are not found by gradients.

        Raises:
            CompositionError: the model is trained by gradients.
        """
        raise _by_gradients()

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """The client's statistics, to be added."""
        del broadcast, work
        return {"statistics": Sum(local["params"])}, client

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """The statistics of this round's clients."""
        del info, phase
        return {**state, "params": sums["statistics"]}


def _by_gradients() -> CompositionError:
    return CompositionError(
        "a model that is trained by gradients has no sufficient statistics",
        where="SufficientStatistics",
        remedy="use FedAvg, or a naive Bayes model",
    )
