"""Networks for self-supervised learning: an encoder with heads that exist for training alone.

Names of parameters begin with the part that they belong to, as streams expect: ``encoder.``, ``projector.``, ``predictor.``, ``turns.`` and ``decoder.``
In training, a network returns what losses need, side by side in one tensor. In evaluation, it returns the encoder's features: what a
probe sees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from atoll.core.algebra.tree import Tree
from atoll.core.calls import checked_call, shown
from atoll.core.errors import ConfigError

from .objectives.contrastive import standardised

__all__ = ["HeadOutputs", "MaskedAutoencoder", "Siamese", "embedding_of", "parts_of", "require_module", "seen_by"]

Tensor = torch.Tensor
REAL = "real"
"""The network's buffer that says which rows are no padding."""


def require_module(value: object, name: str, where: str) -> None:
    """Refuse a part of a network that is no module.

    Raises:
        ConfigError: names it.
    """
    if not isinstance(value, nn.Module):
        raise ConfigError(
            f"{name}={shown(value)} is no module",
            where=where,
            remedy="give a torch.nn.Module, such as nn.Sequential(...)",
        )


@checked_call
class Siamese(nn.Module):
    """An encoder with a projector, and optionally a predictor and a head for rotations.

    ``h = encoder(x)``, ``z = projector(h)``, ``p = predictor(z)``, ``r = turns(h)``. In training the output is ``[h, z, p, r]``, in evaluation ``h``.

    Heads are ``Linear, batch normalisation, ReLU, Linear``. Features of different rows have most of their length in common, and what is common to a
    mini-batch must go: with layer normalisation, which looks at one row, methods without negatives spread their features along a single direction. The
    normalisation has no scale, no shift and no running statistics, and takes rows of padding out: losses pass the mini-batch's by `seen_by`.

    Args:
        encoder: any module that maps rows to features ``(rows, features)``.
        features: their number.
        width: of embeddings ``z`` and ``p``.
        hidden: width of the heads' hidden layers.
        predictor: whether there is one: BYOL, SimSiam and what builds on them need it.
        turns: whether there is a head that tells quarter turns: Orchestra needs it.

    Source: Chen et al. SimCLR. ICML 2020; Grill et al. BYOL. NeurIPS 2020; both have batch normalisation in the heads.
    """

    real: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        features: int,
        *,
        width: int = 64,
        hidden: int = 128,
        predictor: bool = True,
        turns: bool = False,
    ) -> None:
        super().__init__()
        require_module(encoder, "encoder", "Siamese")
        self.encoder = encoder
        self.projector = _Head(features, hidden, width)
        self.predictor = _Head(width, hidden, width) if predictor else None
        self.turns = nn.Linear(features, 4) if turns else None
        self.register_buffer("real", torch.ones(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return features, in training with the heads' outputs beside them."""
        h: Tensor = self.encoder(x)
        if not self.training:
            return h
        real = self.real.expand(len(h))
        z = self.projector(h, real)
        made = [h, z]
        if self.predictor is not None:
            made.append(self.predictor(z, real))
        if self.turns is not None:
            made.append(self.turns(h))
        return torch.cat(made, 1)


@checked_call
class MaskedAutoencoder(nn.Module):
    """An encoder with a decoder that reconstructs whole rows. In training the output is the reconstruction, in evaluation the features.

    Args:
        encoder: any module that maps rows to features ``(rows, features)``. It sees rows with zeros where something is hidden.
        features: their number.
        shape: of a row, such as ``(1, 28, 28)``; for a text ``(length,)``.
        hidden: width of the decoder's hidden layer.
        words: size of the vocabulary, for a text: the reconstruction then has logits ``(rows, length, words)``.

    Source: He et al. MAE. CVPR 2022. The encoder there leaves hidden patches out; here it sees zeros, as in Xie et al. SimMIM. CVPR 2022, so that any
    encoder will do.
    """

    def __init__(
        self, encoder: nn.Module, features: int, shape: Sequence[int], *, hidden: int = 256, words: int | None = None
    ) -> None:
        super().__init__()
        require_module(encoder, "encoder", "MaskedAutoencoder")
        self.encoder = encoder
        self.shape = (*shape, words) if words else tuple(shape)
        self.decoder = nn.Sequential(
            nn.Linear(features, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, math.prod(self.shape))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return features, or in training the reconstruction."""
        h: Tensor = self.encoder(x)
        return self.decoder(h).reshape(-1, *self.shape) if self.training else h


@dataclass(frozen=True)
class HeadOutputs:
    """What a `Siamese` network returned in training, taken apart; ``None`` for a head that it does not have.

    Attributes:
        features: ``h``, ``(rows, features)``.
        projection: ``z``, ``(rows, width)``.
        prediction: ``p``, ``(rows, width)``.
        turns: logits of quarter turns, ``(rows, 4)``.
    """

    features: Tensor
    projection: Tensor
    prediction: Any
    turns: Any

    def halves(self) -> tuple[HeadOutputs, HeadOutputs]:
        """Return the parts of the first and of the second half of the rows."""
        values = (self.features, self.projection, self.prediction, self.turns)
        made: list[Any] = [(None, None) if value is None else value.chunk(2) for value in values]
        return HeadOutputs(*(one for one, _ in made)), HeadOutputs(*(other for _, other in made))


def embedding_of(params: Tree, where: str) -> Any:
    """Return an array of the form of a `Siamese` network's embeddings ``(width,)``, from its parameters: the bias of the projector.

    Raises:
        ConfigError: the model is no such network.
    """
    last = params.get(_LAST.format("projector", "bias"))
    if last is None:
        raise ConfigError(
            "the model has no projector",
            where=where,
            remedy="wrap the encoder: model=atoll.labels.Siamese(encoder, features)",
        )
    return last


def seen_by(model: Any, rows: Tensor, real: Tensor, where: str, known: Tree, params: Tree = None) -> Tensor:
    """Return what a `Siamese` network makes of a mini-batch in training; padding takes no part in its normalisation.

    Args:
        model: the loss's input of that name.
        rows: of the mini-batch.
        real: 1 for a row, 0 for padding, ``(rows,)``.
        where: what asks, for errors.
        known: the network's parameters, to tell whether it is one.
        params: parameters to use in place of those that train.

    Raises:
        ConfigError: the model is no such network.
    """
    embedding_of(known, where)
    made: Tensor = model(rows, {**(params or {}), REAL: real})
    return made


def parts_of(outputs: Tensor, params: Tree, where: str, needs: Sequence[str] = ()) -> HeadOutputs:
    """Take apart what a `Siamese` network returned in training.

    Args:
        outputs: what it returned.
        params: its parameters, for the widths.
        where: what asks, for errors.
        needs: heads that must be there: ``"predictor"``, ``"turns"``.

    Raises:
        ConfigError: the model is no such network, or lacks a head.
    """
    width = len(embedding_of(params, where))
    there = {"predictor": _LAST.format("predictor", "bias"), "turns": "turns.bias"}
    missing = [head for head in needs if there[head] not in params]
    if missing:
        raise ConfigError(
            f"the model has no head {missing[0]!r}",
            where=where,
            remedy=f"make it with one: atoll.labels.Siamese(encoder, features, {missing[0]}=True)",
        )
    predicts, turns = (name in params for name in there.values())
    sizes = [width] + [width] * predicts + [4] * turns
    made = list(torch.split(outputs, [outputs.shape[1] - sum(sizes), *sizes], 1))
    return HeadOutputs(made[0], made[1], made[2] if predicts else None, made[-1] if turns else None)


_LAST = "{}.3.{}"


class _Head(nn.ModuleList):
    """A head whose last layer's parameters are named by `_LAST`."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__([nn.Linear(inputs, hidden), nn.Identity(), nn.ReLU(), nn.Linear(hidden, outputs)])

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """Return the outputs for rows ``x``, of which ``real`` are no padding."""
        first, _, bent, last = self
        made: Tensor = last(bent(standardised(first(x), real)))
        return made
