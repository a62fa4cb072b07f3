"""Shares of classes: what the model guesses at a party, what the labels say, and guesses moved from the one to the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.learn.algorithm import LocalWork
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ...look import OneLook
from ...losses import seen
from ...views.base import View

__all__ = ["ClassShares", "ShareSums", "aligned"]


def aligned(p: Any, guessed: Any, wanted: Any) -> Any:
    """Return probabilities whose mean over the rows is moved from ``guessed`` to ``wanted``: ``p wanted / guessed``, normalised.

    Berthelot et al. 2020, "ReMixMatch", section 3.1. A class that the model guesses too often counts less, so that guesses do not feed on each other.

    Args:
        p: probabilities, ``(B, C)``.
        guessed: their mean over the party's rows, ``(C,)``.
        wanted: the shares of the classes among labels, ``(C,)``.
    """
    moved = p * wanted / guessed.clamp(min=1e-6)
    return moved / moved.sum(1, keepdim=True)


@dataclass(frozen=True)
class ShareSums(OwnLoss):
    """What a party adds up over a batch: the global model's probabilities of rows without a label, and labels by class. It is only read."""

    weak: View | None = None
    task: ClassVar[str] = "classes"

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, keys: Any, real: Any) -> Any:
        """Return ``{"guessed": (C,), "labels": (C,)}``."""
        outputs = model(seen(self.weak, x, keys, 0, real), training=False)
        p = outputs.softmax(1) * (~labelled * real).unsqueeze(1)
        classes = torch.arange(outputs.shape[1], device=outputs.device)
        labels = (target.unsqueeze(1) == classes) * (labelled * real).unsqueeze(1)
        return {"guessed": p.sum(0), "labels": labels.sum(0).to(p.dtype)}


@dataclass(frozen=True, kw_only=True)
class ClassShares(OneLook):
    """A pass that trains nothing: it leaves the shares of the global model's guesses, and of the labels, for the next pass of the same contact.

    Attributes:
        batch_size: rows that it looks at.
        weak: their view.
        method: the algorithm whose private state it leaves alone.
    """

    batch_size: int | None = 512
    weak: View | None = None
    card: ClassVar[Card] = Card(part=True, note="A part of SelfTraining: it does not train.")

    @property
    def losses(self) -> tuple[Any, ...]:
        """What is read."""
        return (ShareSums(self.weak),)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with sums of 0."""
        del client
        zero = broadcast["wanted"] * 0.0
        return {"params": broadcast["params"], "read": {"guessed": zero, "labels": zero}}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Leave the shares beside the private state."""
        del work
        read = local["read"]
        shares = {name: _shares(value, broadcast["wanted"]) for name, value in read.items()}
        return {}, {"inner": client, **shares, "taught": (read["labels"].sum() > 0) * 1.0}


def _shares(counts: Any, otherwise: Any) -> Any:
    """Return ``counts / sum``, or the other shares if there is nothing to count."""
    total = counts.sum()
    none = (total <= 0) * 1.0
    return counts / (total + none) + none * otherwise
