"""Shares of classes: what the model guesses at a party and how surely, what the labels say, and guesses moved from the one to the other."""

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

__all__ = ["ClassShares", "GuessSums", "aligned", "confidence_of"]


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


def confidence_of(sure: Any, counts: Any, portion: Any) -> Any:
    """Return the confidence of the row that ends the surest ``portion`` of some rows: ``floor(portion n)`` of ``n`` rows, at least one, are as sure.

    Args:
        sure: confidences, ``(B,)``.
        counts: 1 for a row that counts, ``(B,)``.
        portion: a number from 0 to 1.
    """
    ordered = torch.where(counts > 0, sure, torch.zeros_like(sure)).sort(descending=True)[0]
    last = (portion * counts.sum()).floor().to(torch.int64).clamp(min=1) - 1
    return ordered.gather(0, last.reshape(1)).sum()


@dataclass(frozen=True)
class GuessSums(OwnLoss):
    """What a party reads of a batch of its rows: mean guess, labels by class, and how sure the surest portion of the guesses is. It is only read.

    Attributes:
        weak: view of the rows.
    """

    weak: View | None = None
    task: ClassVar[str] = "classes"

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return ``{"guessed": (C,), "labels": (C,), "taught": (), "sure": ()}``: shares of the global model's guesses at rows without a label, and of labels."""
        outputs = model(seen(self.weak, x, keys, 0, real), training=False)
        hidden, wanted = (~labelled * real).to(outputs.dtype), broadcast["wanted"]
        p = outputs.softmax(1)
        guessed = _shares((p * hidden.unsqueeze(1)).sum(0), wanted)
        sure = aligned(p, guessed, wanted).amax(1)
        classes = torch.arange(outputs.shape[1], device=outputs.device)
        labels = ((target.unsqueeze(1) == classes) * (labelled * real).unsqueeze(1)).sum(0).to(p.dtype)
        return {
            "guessed": guessed,
            "labels": _shares(labels, wanted),
            "taught": (labels.sum() > 0) * 1.0,
            "sure": confidence_of(sure, hidden, broadcast["portion"].sum()),
        }


@dataclass(frozen=True, kw_only=True)
class ClassShares(OneLook):
    """A pass that trains nothing: it leaves what `GuessSums` reads for the next pass of the same contact.

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
        return (GuessSums(self.weak),)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with equal shares and no label."""
        del client
        shares, none = broadcast["wanted"], broadcast["wanted"].sum() * 0.0
        return {
            "params": broadcast["params"],
            "read": {"guessed": shares, "labels": shares, "taught": none, "sure": none},
        }

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Leave what was read beside the private state."""
        del broadcast, work
        return {}, {"inner": client, **local["read"]}


def _shares(counts: Any, otherwise: Any) -> Any:
    """Return ``counts / sum``, or the other shares if there is nothing to count."""
    total = counts.sum()
    none = (total <= 0) * 1.0
    return counts / (total + none) + none * otherwise
