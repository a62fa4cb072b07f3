"""FedSR (Nguyen et al. 2022): simple representations, which hold for domains that no party has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError, DataError
from atoll.learn.card import Card
from atoll.learn.local.own_loss import OwnLoss

from ..losses import cross_entropy_of_rows, mean_of, seen
from ..views.base import View
from ..views.defaults import strong
from ..views.draws import child_keys_of_rows, normals
from .base import Method

__all__ = ["FedSR", "GaussianNetwork", "SimpleLoss"]

Tensor = torch.Tensor
_FLATTEST = 5.0


@checked_call
class GaussianNetwork(nn.Module):
    """A classifier of features that are drawn: ``z ~ N(mean(x), exp(log_variance(x)))``, with a Gaussian of its own for each class, ``r(z|y)``.

    In evaluation it returns the logits of the mean features, ``(B, C)``. In training it takes rows with noise behind them, ``[x, e]`` flattened, and returns
    ``[logits of z, KL(p(z|x) || r(z|c)) for each class c, |z|^2]`` with ``z = mean + e exp(log_variance / 2)``: ``(B, 2 C + 1)``.

    Args:
        encoder: maps rows to numbers ``(B, width)``.
        width: their number.
        classes: number of classes.
        shape: of a row, such as ``(1, 28, 28)``.
        latent: features ``z``.
    """

    def __init__(self, encoder: nn.Module, width: int, classes: int, shape: Sequence[int], latent: int = 32) -> None:
        super().__init__()
        if min(width, classes, latent) < 1:
            raise ConfigError(
                f"width={width}, classes={classes}, latent={latent}",
                where="GaussianNetwork",
                remedy="use 1 or more of each",
            )
        self.shape, self.latent = tuple(int(n) for n in shape), latent
        self.size = int(torch.Size(self.shape).numel())
        self.encoder = encoder
        self.mean, self.log_variance = nn.Linear(width, latent), nn.Linear(width, latent)
        self.classifier = nn.Linear(latent, classes)
        self.class_mean = nn.Parameter(torch.zeros(classes, latent))
        self.class_log_variance = nn.Parameter(torch.zeros(classes, latent))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits; in training what the loss needs, side by side."""
        if not self.training:
            made: Tensor = self.classifier(self.mean(self.encoder(x)))
            return made
        flat = x.flatten(1)
        rows, noise = flat[:, : self.size], flat[:, self.size :]
        hidden = self.encoder(rows.reshape(-1, *self.shape))
        mean, spread = self.mean(hidden), self.log_variance(hidden).clamp(-_FLATTEST, _FLATTEST)
        z = mean + noise * torch.exp(0.5 * spread) if noise.shape[1] else mean
        own, wide = mean.unsqueeze(1), spread.unsqueeze(1)
        theirs, width = self.class_mean, self.class_log_variance.clamp(-_FLATTEST, _FLATTEST)
        apart = 0.5 * (width - wide + (torch.exp(wide) + (own - theirs) ** 2) * torch.exp(-width) - 1.0).sum(2)
        return torch.cat([self.classifier(z), apart, (z**2).sum(1, keepdim=True)], 1)


@dataclass(frozen=True)
class SimpleLoss(OwnLoss):
    """``mean CE(y, c(z)) + norm mean |z|^2 + conditional mean KL(p(z|x) || r(z|y))`` over labelled rows; equations 3, 5 and 9 of the paper."""

    view: View | None
    norm: float
    conditional: float
    task: ClassVar[str] = "classes"

    def __call__(self, *, model: Any, x: Any, target: Any, labelled: Any, keys: Any, real: Any, broadcast: Any) -> Any:
        """Return the loss of a mini-batch."""
        means = broadcast["params"].get("class_mean")
        if means is None:
            raise DataError(
                "a network without Gaussians of classes",
                where="FedSR",
                remedy="train an atoll.labels.GaussianNetwork(encoder, width, classes, shape)",
            )
        classes, latent = means.shape
        noise = normals(child_keys_of_rows(keys, 1), 0, latent).to(x.dtype)
        made = model(torch.cat([seen(self.view, x, keys, 0, real).flatten(1), noise], 1))
        logits, apart, length = made[:, :classes], made[:, classes : 2 * classes], made[:, 2 * classes]
        whose = target.unsqueeze(1) == torch.arange(classes, device=made.device)
        nearest = torch.where(whose, apart, 0.0).sum(1)
        each = cross_entropy_of_rows(logits, target) + self.norm * length + self.conditional * nearest
        return mean_of(each, labelled * real)


@dataclass(frozen=True, kw_only=True)
class FedSR(Method):
    """Training for domains that nobody has: features that say of a row little but its class.

    Short features carry little of a row, and features that are alike within a class carry little of its domain: a party cannot see other domains, but both
    can be asked of its own. With both weights 0 it is `Supervised` on drawn features. The model is a `GaussianNetwork`. Rows without a label are not used.

    Attributes:
        norm: weight of the features' squared length, 0 or more.
        conditional: weight of the divergence from the class's Gaussian, 0 or more; a bound of what features tell of the row beyond its class.
        view: of all rows; ``None`` for the rows as they are.
    """

    norm: float = 0.01
    conditional: float = 0.001
    view: View | None = field(default_factory=lambda: strong("images"))
    citation: ClassVar[str] = (
        "Nguyen, Torr, Lim. FedSR: A Simple and Effective Domain Generalization Method for Federated Learning. NeurIPS 2022."
    )
    card: ClassVar[Card] = Card(family="wrapper", note="Labels at sources; no row of the target, which is unseen.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.norm >= 0.0 and self.conditional >= 0.0):
            raise ConfigError(
                f"norm={self.norm}, conditional={self.conditional}", where="FedSR", remedy="use weights of 0 or more"
            )

    @property
    def losses(self) -> tuple[Any, ...]:
        """The loss on labelled rows."""
        return (SimpleLoss(self.view, self.norm, self.conditional),)
