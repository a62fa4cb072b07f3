"""SimSiam at clients: predict one view's embedding from the other's, without negatives and without a second network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..heads import parts_of
from ..losses import mean_of
from ..objectives.contrastive import simsiam
from ..views.base import View
from .selfsupervised import SelfSupervised, prepare_embeddings, two_views

__all__ = ["FedSimSiam", "SimSiamLoss"]


@dataclass(frozen=True)
class SimSiamLoss(OwnLoss):
    """``-cos(p_1, z_2) / 2 - cos(p_2, z_1) / 2``, with no gradient through ``z``, standardised over the mini-batch if ``normalise``; see `atoll.labels.objectives.simsiam`."""

    view: View | None
    normalise: bool
    both_views: ClassVar[bool] = True

    def __call__(self, *, model: Any, x: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the mean over the mini-batch's rows."""
        params = broadcast["params"]
        made = two_views(model, self.view, x, keys, real, "FedSimSiam", params)
        first, second = parts_of(made, params, "FedSimSiam", ["predictor"]).halves()
        one, other = (prepare_embeddings(half.projection, real, self.normalise) for half in (first, second))
        return mean_of((simsiam(first.prediction, other) + simsiam(second.prediction, one)) / 2, real)


@dataclass(frozen=True, kw_only=True)
class FedSimSiam(SelfSupervised):
    """SimSiam in every local step, averaged by the algorithm inside. No client keeps anything."""

    citation: ClassVar[str] = "Chen, He. Exploring Simple Siamese Representation Learning. CVPR 2021."
    card: ClassVar[Card] = Card(family="wrapper", note="Collapses without normalisation; the gauge then stops it.")

    @property
    def objective(self) -> OwnLoss:
        """SimSiam's loss."""
        return SimSiamLoss(self.view, self.normalise)
