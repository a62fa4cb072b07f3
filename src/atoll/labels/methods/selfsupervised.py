"""The base of self-supervised methods: two views of each row, and a gauge that stops a run whose embeddings collapse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, RoundInfo
from atoll.learn.algorithms.accelerated import Accelerated
from atoll.learn.algorithms.fedavg import FedAvg
from atoll.learn.local.own_loss import OwnLoss
from atoll.learn.transforms import Momentum

from ..heads import parts_of, seen_by
from ..losses import seen
from ..objectives.contrastive import feature_spread, standardised
from ..views.base import View
from ..views.defaults import strong
from .base import Method

__all__ = ["SelfSupervised", "Spread", "prepare_embeddings", "sgd", "two_views"]

_ROWS = 16
"""Rows of a mini-batch that the gauge looks at: a tenth of a forward pass over one view of 128."""


@dataclass(frozen=True)
class Spread(OwnLoss):
    """Reads how far embeddings of rows as they are spread; see `atoll.labels.objectives.feature_spread`."""

    def __call__(self, *, model: Any, x: Any, real: Any, broadcast: Any) -> Any:
        """Return the spread of the mini-batch's first rows, a scalar."""
        params, there = broadcast["params"], real[:_ROWS]
        made = parts_of(seen_by(model, x[:_ROWS], there, "gauge", params), params, "gauge")
        return feature_spread(made.projection, there)


@dataclass(frozen=True, kw_only=True)
class SelfSupervised(Method):
    """Base class of methods for rows without any label; the model is a `atoll.labels.Siamese` network.

    Attributes:
        view: what makes both views of a row, with different keys.
        normalise: whether embeddings are standardised over the mini-batch before they are compared: batch normalisation at the end of the projector, as
            the methods' papers have it, which leaves padding out. Without it, learning starts late, and methods without negatives soon output a constant.
        gauge: the run stops when the mean spread of embeddings in a round falls below this share of that in the first round: a collapsed
            network has a perfect loss and knows nothing. 0 for no gauge: clients then send no number for it.
    """

    base: Algorithm = field(default_factory=lambda: sgd())
    view: View | None = field(default_factory=lambda: strong("images"))
    normalise: bool = True
    gauge: float = 0.02
    smallest_batch: ClassVar[int] = 1
    """Rows that a mini-batch needs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.gauge < 1.0:
            raise ConfigError(
                f"gauge={self.gauge}", where=type(self).__name__, remedy="use a share below 1, or 0 for no gauge"
            )
        temperature = getattr(self, "temperature", 1.0)
        if not 0.0 < temperature < float("inf"):
            raise ConfigError(
                f"temperature={temperature}", where=type(self).__name__, remedy="use a number above 0, such as 0.2"
            )
        if self.batch_size is not None and self.batch_size < self.smallest_batch:
            raise ConfigError(
                f"batch_size={self.batch_size}",
                where=type(self).__name__,
                remedy=f"it contrasts a row with others: use at least {self.smallest_batch} rows, better 64 or more",
            )

    @property
    def objective(self) -> OwnLoss:
        """The loss that local steps descend."""
        raise NotImplementedError

    @property
    def losses(self) -> tuple[Any, ...]:
        """The method's loss, and what the gauge reads."""
        return (self.objective, Spread()) if self.gauge else (self.objective,)

    def init(self, params: Tree) -> Tree:
        """Start with the base's state, and no spread seen."""
        return {**super().init(params), **({"spread": 0.0} if self.gauge else {})}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the base's local state, and no spread seen."""
        return {**super().start(broadcast, client), **({"spread": broadcast["lr"] * 0.0} if self.gauge else {})}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the base's step, and look at the spread."""
        if not self.gauge:
            return super().step(local, grad, broadcast)
        inner = {name: value for name, value in local.items() if name != "spread"}
        oracle: Any = grad
        spread = local["spread"] + oracle.read(Spread(), local["params"])
        return {**super().step(inner, grad, broadcast), "spread": spread}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the base's reply, with the mean spread over the steps."""
        if not self.gauge:
            return super().finish(local, broadcast, client, work)
        inner = {name: value for name, value in local.items() if name != "spread"}
        reply, kept = super().finish(inner, broadcast, client, work)
        mean = local["spread"] / work.steps
        shown = Mean(mean, examples=work.examples, role="metric")
        return {**reply, "spread": shown, "gauge": Mean(mean, examples=work.examples, role="side")}, kept

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Fold as the base does.

        Raises:
            ConfigError: embeddings have collapsed.
        """
        made = super().fold(state, sums, info, phase)
        if not self.gauge or "gauge" not in sums:
            return made
        spread, first = float(sums["gauge"]), float(state["spread"])
        if spread < self.gauge * first:
            raise ConfigError(
                f"embeddings have collapsed: their spread fell from {first:.2g} to {spread:.2g} by round {info.round}",
                where=f"{type(self).__name__}.gauge",
                remedy="use normalise=True, a predictor, a smaller learning rate or more varied views",
            )
        return {**made, "spread": first if first > 0.0 else spread}


def prepare_embeddings(embeddings: Any, real: Any, normalise: bool) -> Any:
    """Return embeddings as losses compare them: standardised over the mini-batch, or as they are."""
    return standardised(embeddings, real) if normalise else embeddings


def sgd(lr: float = 0.1, memory: str = "round") -> Algorithm:
    """Return SGD with momentum, on larger mini-batches than labelled rows need.

    Args:
        lr: learning rate.
        memory: where the momentum stays between rounds, see `Accelerated`.
    """
    return Accelerated(FedAvg(lr=lr, steps=20, batch_size=64), transforms=(Momentum(0.9),), memory=memory)


def two_views(
    model: Any, view: View | None, x: Any, keys: Any, real: Any, where: str, known: Tree, params: Tree = None
) -> Any:
    """Return what the model makes of two views of each row, the second views after the first ones, in one pass.

    Args:
        model: the loss's input.
        view: what makes the views.
        x: rows.
        keys: their keys.
        real: 1 for a row, 0 for padding.
        where: what asks, for errors.
        known: the network's parameters.
        params: others than the client's current ones.
    """
    both = torch.cat([seen(view, x, keys, number, real) for number in range(2)])
    return seen_by(model, both, torch.cat([real, real]), where, known, params)


def __getattr__(name: str) -> Any:
    """Find a method that lay in this module when it was a folder.

    Raises:
        AttributeError: there is no such method.
    """
    from atoll.labels import methods

    if name in dir(methods):
        return getattr(methods, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
