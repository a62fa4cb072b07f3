"""Held-out labels: which they are, losses that do not see them, and what two models make of them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from atoll.learn.local.own_loss import OwnLoss
from atoll.torch.tracing.keyed import scrambled

from ...losses import cross_entropy_of_rows, mean_of
from .hiding import HidingLoss, asking

__all__ = ["PLAIN", "HeldOutLabels", "HeldOutLoss", "HeldOutScores", "WithoutHeldOut"]

PLAIN = "plain"
"""Phase and state of the training on labelled rows alone."""


def held_out(index: Any, share: float) -> Any:
    """Return which rows are held out, by their numbers at their party, booleans: the same rows in every round."""
    drawn = scrambled(index, torch.zeros_like(index) + 0x5851F42D, torch.zeros_like(index) + 0x14057B7E, 0)
    return drawn < int(share * (1 << 32))


@dataclass(frozen=True)
class HeldOutLabels:
    """Which labels are held out: a share of the rows, or those that a column of the data marks.

    Attributes:
        share: of the rows, drawn by number.
        column: name of a column, 0 for labels that teach; ``None`` for the share.
    """

    share: float = 0.2
    column: str | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """Inputs of a loss that the choice needs."""
        return ("index",) if self.column is None else (self.column,)

    def of(self, given: Mapping[str, Any]) -> Any:
        """Return which labels of a mini-batch are held out, booleans ``(B,)``."""
        return held_out(given["index"], self.share) if self.column is None else given[self.column] != 0


@dataclass(frozen=True)
class WithoutHeldOut(HidingLoss):
    """Hide the labels that are held out, as long as they judge: while ``broadcast["judging"]`` is above 0."""

    held: HeldOutLabels

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        """The labels' names, and what the choice needs."""
        return ("labelled", "broadcast", *self.held.reads)

    def hidden(self, given: dict[str, Any]) -> Any:
        """Return which labels are held out."""
        return self.held.of(given) & (given["broadcast"]["judging"] > 0)


@dataclass(frozen=True)
class HeldOutLoss(OwnLoss):
    """Cross-entropy over the held-out labels."""

    held: HeldOutLabels
    task: ClassVar[str] = "classes"
    names: ClassVar[tuple[str, ...]] = ("model", "x", "target", "labelled", "real")

    @property
    def __signature__(self) -> inspect.Signature:
        """What the loss asks for, and what the choice of labels needs."""
        return asking(*self.names, *self.held.reads)

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, real: Any, **given: Any) -> Any:
        """Return the mean over held-out labels, 0 if there is none."""
        return mean_of(cross_entropy_of_rows(model(x), target), self.held.of(given) * labelled * real)


@dataclass(frozen=True)
class HeldOutScores(OwnLoss):
    """Sums over held-out labels of what two models make of them: ``d_i = CE(plain) - CE(guarded)``, above 0 where the guarded model is better."""

    held: HeldOutLabels
    task: ClassVar[str] = "classes"
    names: ClassVar[tuple[str, ...]] = (*HeldOutLoss.names, "broadcast")

    @property
    def __signature__(self) -> inspect.Signature:
        """What the comparison asks for, and what the choice of labels needs."""
        return asking(*self.names, *self.held.reads)

    def __call__(
        self, *, model: Any, x: Any, target: Any, labelled: Any, real: Any, broadcast: Any, **given: Any
    ) -> Any:
        """Return number, sum and sum of squares of the ``d_i``."""
        counts = self.held.of(given) * labelled * real
        guarded, plain = (
            cross_entropy_of_rows(model(x, broadcast[name], training=False), target).clamp(max=_WORST)
            for name in ("params", PLAIN)
        )
        gain = (plain - guarded) * counts
        return {"rows": counts.sum().reshape(1), "gain": gain.sum().reshape(1), "square": (gain**2).sum().reshape(1)}


_WORST = 5.0  # nats: a row on which a model is wrong and sure counts at most this, so that one row does not decide
