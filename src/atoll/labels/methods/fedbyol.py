"""BYOL at clients: predict what a slowly moving copy of the network makes of another view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..heads import parts_of
from ..losses import mean_of
from ..objectives.contrastive import byol
from ..streams import Stream, Trailing
from ..views.base import View
from .selfsupervised import SelfSupervised, prepare_embeddings, two_views

__all__ = ["BYOLLoss", "FedBYOL"]


@dataclass(frozen=True)
class BYOLLoss(OwnLoss):
    """``|p_1 - t_2|^2 + |p_2 - t_1|^2`` of unit vectors, with the target network's projections ``t``; see `atoll.labels.objectives.byol`.

    With ``normalise``, targets are standardised over the mini-batch. It reads the target network as ``broadcast["target"]``.
    """

    view: View | None
    normalise: bool
    both_views: ClassVar[bool] = True

    def __call__(self, *, model: Any, x: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the mean over the mini-batch's rows."""
        params = broadcast["params"]
        made = two_views(model, self.view, x, keys, real, "FedBYOL", params)
        first, second = parts_of(made, params, "FedBYOL", ["predictor"]).halves()
        aims = two_views(model, self.view, x, keys, real, "FedBYOL", params, broadcast["target"])
        halves = parts_of(aims, params, "FedBYOL").halves()
        one, other = (prepare_embeddings(half.projection, real, self.normalise) for half in halves)
        return mean_of(byol(first.prediction, other) + byol(second.prediction, one), real)


@dataclass(frozen=True, kw_only=True)
class FedBYOL(SelfSupervised):
    """BYOL in every local step, averaged by the algorithm inside.

    The target network is ``t <- keep t + (1 - keep) w`` after every step. With ``keep=0`` it is the network itself: SimSiam at four times the rate, bit
    for bit, since BYOL adds squared distances where SimSiam takes half of two cosines.

    Attributes:
        keep: share of the target network that a step keeps, in [0, 1].
        memory: ``"round"``: the target begins every round as the global model, and clients keep nothing; ``"client"``: each client keeps its own.
    """

    keep: float = 0.99
    memory: str = "round"
    citation: ClassVar[str] = "Grill et al. Bootstrap Your Own Latent. NeurIPS 2020."
    card: ClassVar[Card] = Card(family="wrapper", note="Collapses without normalisation; the gauge then stops it.")

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The target network: a copy that follows."""
        return (Trailing(name="target", keep=self.keep, memory=self.memory),)

    @property
    def objective(self) -> OwnLoss:
        """BYOL's loss."""
        return BYOLLoss(self.view, self.normalise)
