"""Losses of a user's own, importable by name, and the methods that they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from atoll.algorithms import FedAvg
from atoll.core.algebra.tree import Tree

Tensor = torch.Tensor


# FixMatch (Sohn et al. 2020) at clients, with the global model as the teacher: pseudo-labels of a weak view above the threshold that the
# server sends are the targets of a strong view. Each of the two terms is a mean over rows of its own.
@dataclass(frozen=True, kw_only=True)
class FixMatchAvg(FedAvg):
    """FedAvg that sends a threshold."""

    tau: float = 0.95

    def broadcast(self, state: Tree, phase: str) -> Tree:
        return {**super().broadcast(state, phase), "tau": self.tau}


def weak(x: Tensor, rng: Any) -> Tensor:
    return x + 0.05 * rng.normal(*x.shape)


def strong(x: Tensor, rng: Any) -> Tensor:
    return torch.where(rng.bernoulli(0.3, *x.shape), 0.0, x + 0.2 * rng.normal(*x.shape))


def mean_of(losses: Tensor, rows: Tensor) -> Tensor:
    return (losses * rows).sum() / rows.sum().clamp(min=1)


def fixmatch(
    model: Any, x: Tensor, target: Tensor, labelled: Tensor, real: Tensor, broadcast: Any, rng: Any, weight: float = 1.0
) -> Tensor:
    seen = weak(x, rng)
    with torch.no_grad():
        sure, guess = model(seen, broadcast["params"], training=False).softmax(1).max(1)
    taught = F.cross_entropy(model(seen), target, reduction="none")
    guessed = F.cross_entropy(model(strong(x, rng)), guess, reduction="none") * (sure > broadcast["tau"])
    return mean_of(taught, real * labelled) + weight * mean_of(guessed, real * ~labelled)


# The end of FixMatch.


def survival(output: Tensor, target: Tensor, *, event: Tensor) -> Tensor:
    """Minus the log-likelihood of an exponential survival time ``target`` with log-rate ``output``; ``event`` 0 is censored."""
    rate = output[:, 0]
    return rate.exp() * target - event * rate


def distilled(output: Tensor, target: Tensor, *, model: Any, x: Tensor, broadcast: Any) -> Tensor:
    teacher = model(x, broadcast["params"], training=False).detach()
    return F.cross_entropy(output, target, reduction="none") + 0.5 * ((output - teacher) ** 2).mean(1)


def reweighted(output: Tensor, target: Tensor, *, broadcast: Any) -> Tensor:
    return F.cross_entropy(output, target, reduction="none") * broadcast["classes"][target]


def numbered(output: Tensor, target: Tensor, *, index: Tensor, round: Tensor) -> Tensor:  # noqa: A002
    """Rows count more by their number and the round."""
    return F.cross_entropy(output, target, reduction="none") * (1.0 + 0.1 * index) * round


def noisy(output: Tensor, target: Tensor, *, rng: Any) -> Tensor:
    u, k = rng.uniform(len(target)), rng.integers(3, len(target))
    return F.cross_entropy(output, target, reduction="none") * (u + k)


def smoothed(output: Tensor, target: Tensor, smoothing: float = 0.1) -> Tensor:
    """One number for all rows: mini-batches cannot be padded."""
    return F.cross_entropy(output, target, label_smoothing=smoothing)


def smoothed_rows(output: Tensor, target: Tensor, smoothing: float = 0.1) -> Tensor:
    """A loss for each row."""
    return F.cross_entropy(output, target, label_smoothing=smoothing, reduction="none")
