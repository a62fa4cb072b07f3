"""Classifiers that begin with an encoder which learned without labels."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from atoll.core.errors import ConfigError
from atoll.core.validation import Checked

__all__ = ["Pretrained"]


@dataclass(frozen=True)
class Pretrained(Checked):
    """A factory of ``Sequential(encoder, head)``, with a copy of a trained encoder and a fresh head, whose weights follow the run's seed.

    ``Training(model=Pretrained(result.model, lambda: nn.Linear(32, 10)), algorithm=SemiFL())`` goes on from what a self-supervised training, whose
    result that is, learned of all rows. Names of the encoder's parameters begin with ``"0."``: a method with the stream ``Frozen("0.")`` trains the head alone.

    Attributes:
        trained: a network with an ``encoder``, such as a trained `Siamese` or `MaskedAutoencoder`.
        head: makes the layers from the encoder's features to class scores.

    Raises:
        ConfigError: the network has no encoder.
    """

    trained: nn.Module = field(repr=False)
    head: Callable[[], nn.Module] = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(getattr(self.trained, "encoder", None), nn.Module):
            raise ConfigError(
                f"trained={type(self.trained).__name__} has no encoder",
                where="Pretrained",
                remedy="give the model of a self-supervised training: Pretrained(result.model, head)",
            )
        if isinstance(self.head, nn.Module) or not callable(self.head):
            raise ConfigError(
                f"head={type(self.head).__name__} makes no network",
                where="Pretrained",
                remedy="give a function: head=lambda: nn.Linear(features, classes)",
            )

    def __call__(self) -> nn.Module:
        """Return a fresh classifier."""
        encoder: Any = copy.deepcopy(self.trained.encoder)
        for leaf in encoder.parameters():
            leaf.requires_grad_(True)
        return nn.Sequential(encoder, self.head())
