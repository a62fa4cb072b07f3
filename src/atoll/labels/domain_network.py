"""A network in named parts, as adaptation needs it: features, a classifier, and what looks at the features while it trains."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError, DataError

from .heads import require_module
from .objectives.domains import conditioned, reverse_gradient

__all__ = ["DomainNetwork", "DomainOutputs", "classes_of", "outputs_of", "width_of"]

Tensor = torch.Tensor


@checked_call
class DomainNetwork(nn.Module):
    """A classifier whose features are aligned between domains.

    The names of its parameters begin with ``features.``, ``classifier.``, ``second.`` and ``discriminator.``, so that a method can average, hold or keep each
    part. Methods that look at logits alone, such as `Supervised` and `SelfTraining`, want `alone`. In evaluation it returns the classifier's logits, ``(B, C)``; in training, all that objectives need, side by side; see `outputs_of`.

    Args:
        features: maps rows to features ``(B, D)``.
        classifier: maps features to logits ``(B, C)``; its last parameter has one row for each class, as that of ``nn.Linear`` has.
        second: another classifier of the same features, for the discrepancy of two.
        discriminator: maps what it looks at to one logit, ``(B, 1)``: above 0 for the source.
        conditional: the discriminator looks at class probabilities times features, ``(B, C D)``, and not at the features alone (CDAN).

    Raises:
        ConfigError: ``conditional`` without a discriminator.
    """

    def __init__(
        self,
        features: nn.Module,
        classifier: nn.Module,
        *,
        second: nn.Module | None = None,
        discriminator: nn.Module | None = None,
        conditional: bool = False,
    ) -> None:
        super().__init__()
        parts = {"features": features, "classifier": classifier, "second": second, "discriminator": discriminator}
        for name, part in parts.items():
            if name in ("features", "classifier") or part is not None:
                require_module(part, name, "DomainNetwork")
        if conditional and discriminator is None:
            raise ConfigError(
                "conditional=True without a discriminator",
                where="DomainNetwork",
                remedy="give discriminator=, which takes classes times features",
            )
        self.features, self.classifier = features, classifier
        self.second, self.discriminator = second, discriminator
        self.conditional = conditional

    def alone(self) -> nn.Sequential:
        """Return features and classifier, with the same names and weights, as a network that gives logits in training too."""
        return nn.Sequential(OrderedDict(features=self.features, classifier=self.classifier))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits; in training ``[logits, features, second logits, score, score of held features]``, without the parts that are missing."""
        z = self.features(x)
        logits: Tensor = self.classifier(z)
        if not self.training:
            return logits
        made = [logits, z]
        if self.second is not None:
            made.append(self.second(z))
        if self.discriminator is not None:
            seen = conditioned(z, logits) if self.conditional else z
            made += [self.discriminator(reverse_gradient(seen)), self.discriminator(seen.detach())]
        return torch.cat(made, 1)


@dataclass(frozen=True)
class DomainOutputs:
    """What a `DomainNetwork` returns in training.

    Attributes:
        logits: of the classifier, ``(B, C)``.
        features: ``(B, D)``.
        second: logits of the second classifier, ``(B, C)``; ``None`` if there is none.
        score: of the discriminator, ``(B,)``; its gradient reaches the features reversed.
        held: the same numbers, whose gradient does not reach the features.
    """

    logits: Tensor
    features: Tensor
    second: Tensor | None
    score: Tensor | None
    held: Tensor | None


def outputs_of(made: Tensor, params: Mapping[str, Any], where: str) -> DomainOutputs:
    """Return the parts of a network's outputs in training.

    Args:
        made: ``(B, width)``.
        params: the network's parameters by name, from which the number of classes and the parts are read.
        where: the method, for errors.

    Raises:
        DataError: the network is no `DomainNetwork`.
    """
    classes = _rows_of(params, "classifier.")
    second = _rows_of(params, "second.")
    judged = _rows_of(params, "discriminator.") > 0
    width = made.shape[1] - classes - second - 2 * judged
    if not classes or second not in (0, classes) or width < 1:
        raise DataError(
            f"outputs of {made.shape[1]} numbers, {classes} classes",
            where=where,
            remedy="train an atoll.labels.DomainNetwork(features, classifier, ...)",
        )
    logits, z, rest = made[:, :classes], made[:, classes : classes + width], made[:, classes + width :]
    score, held = (rest[:, -2], rest[:, -1]) if judged else (None, None)
    return DomainOutputs(logits, z, rest[:, :second] if second else None, score, held)


def classes_of(params: Mapping[str, Any]) -> int:
    """Return the number of classes: the rows of the classifier's last parameter, or of the last parameter of a network without such a part."""
    return _rows_of(params, "classifier.") or int(list(params.values())[-1].shape[0])


def width_of(params: Mapping[str, Any], where: str) -> int:
    """Return the number of features ``D``: what the classifier's first layer takes.

    Raises:
        DataError: the network is no `DomainNetwork`.
    """
    layers = [leaf for name, leaf in params.items() if name.startswith("classifier.") and len(leaf.shape) == 2]
    if not layers:
        raise DataError(
            "a network without a layer classifier.…",
            where=where,
            remedy="train an atoll.labels.DomainNetwork(features, classifier, ...)",
        )
    return int(layers[0].shape[1])


def _rows_of(params: Mapping[str, Any], part: str) -> int:
    names = [name for name in params if name.startswith(part)]
    return int(params[names[-1]].shape[0]) if names else 0
