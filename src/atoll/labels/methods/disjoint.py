"""Disjoint learning: a model that is the sum of two, one for rows with labels and one for rows without; FedMatch's losses and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError
from atoll.learn.local.own_loss import OwnLoss

from ..losses import cross_entropy_of_rows, mean_of, seen
from ..objectives.consistency import check_threshold, mean_teacher
from ..views.base import View

__all__ = ["AgreementLoss", "DisjointGradient", "NearestHelpers", "Unlabelled", "joined", "split", "together"]

_SIGMA, _PSI = "sigma/", "psi/"


def together(sigma: Tree, psi: Tree) -> Tree:
    """Return both parts in one tree, as the algorithm inside sees its parameters."""
    return {
        **{_SIGMA + name: leaf for name, leaf in sigma.items()},
        **{_PSI + name: leaf for name, leaf in psi.items()},
    }


def split(both: Tree) -> tuple[Tree, Tree]:
    """Return sigma and psi; the inverse of `together`."""
    parts = ({name.removeprefix(p): leaf for name, leaf in both.items() if name.startswith(p)} for p in (_SIGMA, _PSI))
    return next(parts), next(parts)


def joined(both: Tree) -> Tree:
    """Return the model ``sigma + psi``."""
    return T.add(*split(both))


class DisjointGradient:
    """The gradient of labelled rows by sigma and of unlabelled rows by psi: neither learns from the other's rows.

    ``d/dsigma = weight grad CE`` and ``d/dpsi = grad l_u + 1{there are unlabelled rows} (l1 sign(psi) + 2 l2 (psi - sigma))``, both at ``sigma + psi``.

    Args:
        grad: the gradient of a model.
        losses: of labelled rows, of unlabelled rows, and the count of unlabelled rows.
        weights: ``weight``, ``l1``, ``l2``.
        near: models of helpers, ``{"psi": leaves (H, ...), "there": (H,)}``; ``None`` for none.
    """

    def __init__(self, grad: Any, losses: tuple[Any, ...], weights: Mapping[str, float], near: Tree = None) -> None:
        self._grad, self._losses, self._weights, self._near = grad, losses, weights, near

    def __call__(self, both: Tree) -> Tree:
        """Return the gradient by both parts."""
        sigma, psi = split(both)
        at, (labelled, unlabelled, count), by = T.add(sigma, psi), self._losses, self._weights
        slope = T.scale(self._grad.on(labelled)(at), by["weight"])
        given = {} if self._near is None else {"near": {**self._near, "sigma": sigma}}
        there = self._grad.read(count, at)
        pull = T.add(T.scale(T.sign(psi), by["l1"]), T.scale(T.sub(psi, sigma), 2.0 * by["l2"]))
        other = T.add(self._grad.on(unlabelled, **given)(at), T.scale(pull, there))
        return together(slope, other)

    def loss(self, both: Tree) -> Any:
        """Return the loss of labelled rows."""
        return self._grad.on(self._losses[0]).loss(joined(both))

    def hvp(self, both: Tree, vector: Tree) -> Tree:
        """Refuse: the two parts descend different losses."""
        raise CompositionError(
            "FedMatch descends two losses, which have no common curvature",
            where="FedMatch.base",
            remedy="use an algorithm of gradient steps, such as FedAvg(), FedProx() or Scaffold()",
        )


@dataclass(frozen=True)
class Unlabelled(OwnLoss):
    """1.0 if a mini-batch has a row without a label, else 0.0."""

    def __call__(self, *, x: Any, labelled: Any, real: Any) -> Any:
        """Return it."""
        return ((~labelled * real).sum() > 0).to(real.dtype)


@dataclass(frozen=True)
class AgreementLoss(OwnLoss):
    """What unlabelled rows say: agree with helpers, and with the vote of all on a strong view.

    ``icc mean_U (1/H) sum_h KL(p_h || p) + agree mean_U [max p > tau] CE(y, f(strong x))``, with ``y`` the class with most votes of the model and its helpers on
    the weak view.
    """

    weak: View | None
    strong: View | None
    tau: float
    icc: float
    agree: float
    task: ClassVar[str] = "classes"

    def __call__(self, *, model: Any, x: Any, labelled: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the loss of a mini-batch."""
        shown = seen(self.weak, x, keys, 0, real)
        near = model(shown)
        check_threshold(self.tau, near.shape[1], "FedMatch")
        hidden = ~labelled * real
        belief = torch.softmax(near.detach(), 1)
        votes, apart = _votes(belief), torch.zeros_like(real)
        for there, theirs in _helpers(model, shown, broadcast):
            votes = votes + there * _votes(theirs)
            apart = apart + there * mean_teacher(near, theirs, "kl")
        count = max(1, len(broadcast["near"]["there"])) if "near" in broadcast else 1
        loss = self.icc / count * mean_of(apart, hidden)
        far = model(seen(self.strong, x, keys, 1, real))
        agreed = cross_entropy_of_rows(far, votes.argmax(1))
        return loss + self.agree * mean_of(torch.where(belief.amax(1) > self.tau, agreed, 0.0), hidden)


def _votes(outputs: Any) -> Any:
    """Return one vote for the class with the largest output, the first of equals."""
    classes = torch.arange(outputs.shape[1], device=outputs.device)
    return (outputs.argmax(1, keepdim=True) == classes).to(outputs.dtype)


def _helpers(model: Any, rows: Any, broadcast: Any) -> Any:
    """Yield each helper's weight, 1 or 0, and its outputs."""
    if "near" not in broadcast:
        return
    near = broadcast["near"]
    for h in range(len(near["there"])):
        at = {name: near["sigma"][name] + leaf[h] for name, leaf in near["psi"].items()}
        yield near["there"][h], model(rows, at, training=False).detach()


@dataclass(frozen=True)
class NearestHelpers(OwnLoss):
    """Which of a pool of models say the most similar things of noise: a matrix ``(count, pool)`` with a 1 for the chosen one, and who is too far off, ``(pool,)``.

    The distance is the mean over ``rows`` fixed rows of noise of the squared distance of the two distributions, between 0 and 2. Models beyond ``farthest``, or with outputs that are
    not finite, are not used. A client's own model, at distance 0, is no helper.
    """

    count: int
    farthest: float
    rows: int = 16

    def __call__(self, *, model: Any, x: Any, broadcast: Any) -> Any:
        """Return the choice."""
        pool, own = broadcast["pool"], broadcast["own"]
        noise = np.random.default_rng(0).normal(0.5, 0.25, size=(self.rows, *x.shape[1:]))
        shown = torch.as_tensor(noise, dtype=x.dtype, device=x.device)
        sigma, mine = own["sigma"], torch.softmax(model(shown, T.add(own["sigma"], own["psi"]), training=False), 1)
        away = torch.stack([
            F.mse_loss(torch.softmax(model(shown, T.add(sigma, _row(pool["psi"], j)), training=False), 1), mine) * mine.shape[1]
            for j in range(len(pool["there"]))
        ])  # fmt: skip
        there = pool["there"] > 0
        usable = there & (away <= self.farthest) & (away > 1e-12)
        ranked = torch.where(usable, away, torch.inf)
        order = torch.arange(len(ranked), device=x.device)
        ahead = (ranked.unsqueeze(0) < ranked.unsqueeze(1)) | (
            (ranked.unsqueeze(0) == ranked.unsqueeze(1)) & (order.unsqueeze(0) < order.unsqueeze(1))
        )
        place = ahead.sum(1)
        slots = torch.arange(self.count, device=x.device).unsqueeze(1)
        chosen = ((place.unsqueeze(0) == slots) & usable.unsqueeze(0)).to(mine.dtype)
        denied = (there & ~(away <= self.farthest)).to(mine.dtype)
        return {"chosen": chosen, "denied": denied}


def _row(stacked: Tree, j: int) -> Tree:
    return {name: leaf[j] for name, leaf in stacked.items()}
