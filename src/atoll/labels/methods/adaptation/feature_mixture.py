"""A mixture of Gaussians of the targets' features, one component for each class, from sums alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.learn.algorithm import LocalWork
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ...domain_network import outputs_of
from ...look import OneLook
from ...losses import seen
from ...views.base import View

__all__ = ["FeatureMixture", "MixtureSums", "log_density", "mixture_of"]

_FLOOR = 1e-4
"""Smallest variance of a component, in squared units of the features."""


def log_density(z: Any, mixture: Mapping[str, Any]) -> Any:
    """Return ``log sum_k share_k N(z | mean_k, variance_k)`` of each row, ``(B,)``; components of share 0 do not count."""
    away = (z.unsqueeze(1) - mixture["means"]) ** 2 / mixture["variances"] + torch.log(mixture["variances"])
    each = -0.5 * (away.sum(2) + z.shape[1] * math.log(2.0 * math.pi))
    return torch.logsumexp(each + torch.log(mixture["shares"].clamp(min=1e-30)), 1)


@dataclass(frozen=True)
class MixtureSums(OwnLoss):
    """What a target adds up for the mixture of features: for each class, its probability, features times it, and their squares times it. It is only read."""

    view: View | None = None

    def __call__(self, *, model: Any, x: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return ``{"count": (C,), "first": (C, D), "second": (C, D)}``."""
        out = outputs_of(model(seen(self.view, x, keys, 0, real)), broadcast["params"], "DualAdapt")
        share = out.logits.softmax(1) * real.unsqueeze(1)
        return {"count": share.sum(0), "first": share.T @ out.features, "second": share.T @ out.features**2}


@dataclass(frozen=True, kw_only=True)
class FeatureMixture(OneLook):
    """A pass that trains nothing: it replies with the sums of `MixtureSums` over all rows."""

    view: View | None = None
    card: ClassVar[Card] = Card(part=True, note="A part of DualAdapt: it does not train.")

    @property
    def losses(self) -> tuple[Any, ...]:
        """What is read."""
        return (MixtureSums(self.view),)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with sums of 0."""
        del client
        zero = broadcast["mixture"]["means"] * 0.0
        return {"params": broadcast["params"], "read": {"count": zero[:, 0], "first": zero, "second": zero}}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the sums."""
        del broadcast, work
        return {"mixture": Sum(local["read"], role="side")}, client


def mixture_of(sums: Mapping[str, Any]) -> Tree:
    """Return shares, means and variances from the sums of all targets."""
    kind = sums["first"].dtype
    count, first, second = (np.asarray(sums[name], dtype=np.float64) for name in ("count", "first", "second"))
    safe = np.maximum(count, 1e-12)[:, None]
    means = first / safe
    variances = np.maximum(second / safe - means**2, 0.0) + _FLOOR
    made = {"known": np.ones(1), "shares": count / max(count.sum(), 1e-12), "means": means, "variances": variances}
    return {name: value.astype(kind) for name, value in made.items()}
