"""Labelled rows alone: what every method with unlabelled rows must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..losses import cross_entropy_of_rows, mean_of, seen
from ..views.base import View
from .base import Method

__all__ = ["Supervised", "SupervisedLoss"]


@dataclass(frozen=True)
class SupervisedLoss(OwnLoss):
    """Cross-entropy over the labelled rows of a mini-batch, each seen through a view; 0 if none has a label.

    Attributes:
        view: the view; ``None`` for the rows as they are.
    """

    view: View | None = None
    task: ClassVar[str] = "classes"

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, keys: Any, real: Any) -> Any:
        """Return ``mean_L -log p(y | view(x))``."""
        outputs = model(seen(self.view, x, keys, 0, real))
        return mean_of(cross_entropy_of_rows(outputs, target), labelled * real)


@dataclass(frozen=True, kw_only=True)
class Supervised(Method):
    """The algorithm inside on labelled rows alone, seen through a view: with ``view=None``, the algorithm itself.

    Attributes:
        view: a view of `atoll.labels.views`, such as ``views.strong("images")``.
    """

    view: View | None = None
    card: ClassVar[Card] = Card(family="wrapper", note="Unlabelled rows are left out.")

    @property
    def losses(self) -> tuple[Any, ...]:
        """Cross-entropy of labelled rows."""
        return (SupervisedLoss(self.view),)
