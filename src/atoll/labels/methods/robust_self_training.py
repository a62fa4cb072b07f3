"""Robust self-training (Carmon et al. 2019; Uesato et al. 2019): adversarial training on labels and on the global model's guesses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from atoll.core.errors import ConfigError
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..losses import cross_entropy_of_rows, mean_of, seen
from ..objectives.consistency import attacked_rows, pseudo_labels
from ..views.base import View
from ..views.draws import child_keys_of_rows, units
from .base import Method
from .fixmatch import require_threshold

__all__ = ["RobustLoss", "RobustSelfTraining"]


@dataclass(frozen=True)
class RobustLoss(OwnLoss):
    """``mean_L CE(y, f(x')) + weight mean_U [max q > tau] CE(argmax q, f(x'))`` with rows ``x'`` changed against the model.

    ``q`` is what the received model says of the row as it is; see `atoll.labels.objectives.attacked_rows`.
    """

    view: View | None
    radius: float
    tau: float
    weight: float
    task: ClassVar[str] = "classes"

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the loss of a mini-batch."""
        rows = seen(self.view, x, keys, 0, real)
        guess, sure = pseudo_labels(model(rows, broadcast["params"], training=False).detach(), self.tau)
        goal = torch.where(labelled, target, guess)
        if self.radius > 0.0:
            start = units(child_keys_of_rows(keys, 1), 0, rows[0].numel()).reshape(rows.shape).to(rows.dtype)
            rows = attacked_rows(model, rows, goal, (2.0 * start - 1.0) * self.radius, self.radius, 1.25 * self.radius)
        each = cross_entropy_of_rows(model(rows), goal)
        loss = mean_of(each, labelled * real)
        return loss + self.weight * mean_of(each, sure * ~labelled * real) if self.weight > 0.0 else loss


@dataclass(frozen=True, kw_only=True)
class RobustSelfTraining(Method):
    """Train against the worst small change of each row, on labelled rows and on rows of which the global model is sure.

    With ``weight=0`` it is adversarial training on labels alone; with ``radius=0``, self-training without attacks. Rows are images, or others with numbers in [0, 1]. The
    papers take guesses from a model that was trained without attacks beforehand; here the global model of the round makes them.

    Attributes:
        radius: largest change of a number of a row.
        tau: how sure the global model must be, a probability above ``1/C``.
        weight: of the guesses, 0 or more.
        view: of all rows; ``None`` for the rows as they are.
    """

    radius: float = 0.1
    tau: float = 0.7
    weight: float = 1.0
    view: View | None = None
    citation: ClassVar[str] = (
        "Carmon, Raghunathan, Schmidt, Liang, Duchi. Unlabeled Data Improves Adversarial Robustness. NeurIPS 2019; "
        "Uesato, Alayrac, Huang, Stanforth, Fawzi, Kohli. Are Labels Required for Improving Adversarial Robustness? NeurIPS 2019."
    )
    card: ClassVar[Card] = Card(
        family="wrapper", note="Adversarial training; the global model's guesses teach rows without labels."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_threshold(self.tau, self.weight, "RobustSelfTraining")
        if not 0.0 <= self.radius < 1.0:
            raise ConfigError(
                f"radius={self.radius}", where="RobustSelfTraining", remedy="use 0 or more, below the range of a number"
            )

    @property
    def losses(self) -> tuple[Any, ...]:
        """The loss on changed rows."""
        return (RobustLoss(self.view, self.radius, self.tau, self.weight),)
