"""Sufficient statistics: models that are estimated from sums, exactly and in one round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core import tree as T
from atoll.core.aggregate import Aggregate, Sum
from atoll.core.errors import CompositionError
from atoll.core.tree import Tree
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, RoundInfo
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
        family="statistics", unbiased=True, note="Exact in one round with everyone; for models without gradients."
    )

    def fits(self, learner: Any) -> None:
        """Refuse a model that is trained by gradients.

        Raises:
            CompositionError: it has no sufficient statistics.
        """
        from atoll.learn.opaque import OpaqueLearner

        if not isinstance(learner, OpaqueLearner):
            raise _by_gradients()

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
