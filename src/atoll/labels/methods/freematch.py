"""FreeMatch at clients: FixMatch with a threshold for each client and class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from atoll.learn.card import Card

from ..losses import cross_entropy_of_rows, each_through, mean_of, seen
from ..objectives.consistency import check_threshold
from ..objectives.thresholds import free_thresholds
from .fixmatch import FixMatch, FixMatchLoss

__all__ = ["FreeMatch", "FreeMatchLoss"]


@dataclass(frozen=True)
class FreeMatchLoss(FixMatchLoss):
    """FixMatch's loss, where a row is kept if the probability of its pseudo-label is above the class's threshold: see `free_thresholds`."""

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, keys: Any, real: Any) -> Any:
        """Return the loss of a mini-batch."""
        weakly = seen(self.weak, x, keys, 0, real)
        near = model(weakly)
        check_threshold(self.tau, near.shape[1], "FreeMatch")
        if self.weight == 0.0:
            return mean_of(cross_entropy_of_rows(near, target), labelled * real)
        outputs = model(each_through(labelled, weakly, seen(self.strong, x, keys, 1, real)))
        loss = mean_of(cross_entropy_of_rows(outputs, target), labelled * real)
        believed = torch.softmax(near.detach(), 1)
        unlabelled = ~labelled * real
        thresholds = free_thresholds(believed, unlabelled, self.tau)
        sure, guess = believed.max(1)
        classes = torch.arange(near.shape[1], device=near.device)
        kept = sure > torch.where(guess.unsqueeze(1) == classes, thresholds, 0.0).sum(1)
        return loss + self.weight * mean_of(cross_entropy_of_rows(outputs, guess) * kept, unlabelled)


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
