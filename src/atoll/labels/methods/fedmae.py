"""A masked autoencoder at clients: hide a part of each row and reconstruct it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from atoll.core.errors import ConfigError, nearest
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..losses import mean_of, seen
from ..objectives.generative import hidden_pieces, masked_error, masked_tokens, pieces_of, spread_pieces
from ..views.base import View
from ..views.draws import child_keys_of_rows, units
from .base import Method

__all__ = ["FedMAE", "MaskedLoss"]

_KINDS = ("images", "series", "text", "table")


@dataclass(frozen=True)
class MaskedLoss(OwnLoss):
    """The mean over hidden entries of the squared error, or for a text of the cross-entropy; see `atoll.labels.objectives`."""

    view: View | None
    kind: str
    piece: int
    share: float

    def __call__(self, *, model: Any, x: Any, keys: Any, real: Any) -> Any:
        """Return the mean over the mini-batch's rows."""
        rows, shape = seen(self.view, x, keys, 0, real), tuple(x.shape[1:])
        grid = pieces_of(shape, self.piece)
        scores = units(child_keys_of_rows(keys, 1), 0, int(torch.Size(grid).numel()))
        hidden = spread_pieces(hidden_pieces(scores, self.share), shape, self.piece)
        made = model(torch.where(hidden, torch.zeros_like(rows), rows))
        loss = masked_tokens if self.kind == "text" else masked_error
        return mean_of(loss(made, rows, hidden), real)


@dataclass(frozen=True, kw_only=True)
class FedMAE(Method):
    """A masked autoencoder in every local step, averaged by the algorithm inside; the model is a `atoll.labels.MaskedAutoencoder`.

    It needs no second view and no other row, so that any mini-batch will do, and it takes all four kinds of rows. Federated generative
    self-supervision is not in the survey, which knows contrastive methods only.

    Attributes:
        kind: ``"images"``, ``"series"``, ``"table"``, or ``"text"``: tokens as whole numbers, of which 0 is the mask.
        piece: side of a patch, length of a segment, cells or tokens that are hidden together.
        share: of the pieces that is hidden; 0.75 for images.
        view: an augmentation before, such as ``views.weak("images")``; ``None`` for the rows as they are.
    """

    kind: str = "images"
    piece: int = 4
    share: float = 0.75
    view: View | None = None
    citation: ClassVar[str] = (
        "He, Chen, Xie, Li, Dollar, Girshick. Masked Autoencoders Are Scalable Vision Learners. CVPR 2022."
    )
    card: ClassVar[Card] = Card(family="wrapper", note="For images, series, text and tables; no client keeps anything.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind not in _KINDS:
            raise ConfigError(
                f"kind={self.kind!r}.{nearest(str(self.kind), _KINDS)}",
                where="FedMAE",
                remedy=f"use one of {', '.join(_KINDS)}",
            )
        if not 0.0 < self.share < 1.0 or self.piece < 1:
            raise ConfigError(
                f"share={self.share}, piece={self.piece}",
                where="FedMAE",
                remedy="hide a share between 0 and 1 of pieces of 1 entry or more",
            )

    @property
    def losses(self) -> tuple[Any, ...]:
        """The error of reconstruction."""
        return (MaskedLoss(self.view, self.kind, self.piece, self.share),)
