"""FreeMatch at clients: FixMatch with a threshold for each client and class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from atoll.learn.card import Card

from ..losses import cross_entropy_of_rows
from ..objectives.consistency import free_thresholds
from .fixmatch import FixMatch, FixMatchLoss

__all__ = ["FreeMatch", "FreeMatchLoss"]


@dataclass(frozen=True)
class FreeMatchLoss(FixMatchLoss):
    """FixMatch's loss, where a row is kept if the probability of its pseudo-label is above the class's threshold: see `free_thresholds`."""

    method: ClassVar[str] = "FreeMatch"

    def of_rows(self, outputs: Any, near: Any, unlabelled: Any) -> Any:
        """Return the loss of each row against its pseudo-label: 0 below the threshold of its class."""
        believed = torch.softmax(near.detach(), 1)
        thresholds = free_thresholds(believed, unlabelled, self.tau)
        sure, guess = believed.max(1)
        classes = torch.arange(near.shape[1], device=near.device)
        kept = sure > torch.where(guess.unsqueeze(1) == classes, thresholds, 0.0).sum(1)
        return cross_entropy_of_rows(outputs, guess) * kept


@dataclass(frozen=True, kw_only=True)
class FreeMatch(FixMatch):
    """FixMatch with thresholds that follow from the model's own confidence, for each client and class, in place of one for all.

    A threshold of .95 leaves most rows of a young model unused, and those of rare classes longest. Here the threshold is the mean confidence on the client's
    rows, scaled down for classes that the model names less; ``tau`` is only its ceiling. Pseudo-labels are more and worse than FixMatch's: compare both.
    """

    citation: ClassVar[str] = (
        "Wang, Chen, Heng, et al. FreeMatch: Self-adaptive Thresholding for Semi-supervised Learning. ICLR 2023; Lee, Le, Shin, Lee. (FL)^2: Overcoming Few "
        "Labels in Federated Semi-Supervised Learning. NeurIPS 2024."
    )
    card: ClassVar[Card] = Card(family="wrapper", note="Labels at clients; thresholds per client and class.")

    @property
    def losses(self) -> tuple[Any, ...]:
        """FreeMatch's loss."""
        return (FreeMatchLoss(self.weak, self.strong, self.tau, self.weight),)
