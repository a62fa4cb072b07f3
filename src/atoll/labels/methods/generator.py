"""A generator of rows: a variational autoencoder that clients train under differential privacy, and whose decoder everybody may then have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, DataError

from ..objectives.generative import beta_vae, sampled_code
from ..views.draws import normals

__all__ = ["Generator", "GeneratorLoss", "RowDecoder"]


class _Autoencoder(nn.Module):
    """Rows, and behind them the noise of the code, to reconstruction, mean and log-variance, side by side; without noise, the mean is the code."""

    def __init__(self, size: int, hidden: int, latent: int) -> None:
        super().__init__()
        self.size, self.latent = size, latent
        self.encode = nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latent))
        self.decode = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``(B, size + 2 latent)``."""
        flat = x.flatten(1)
        rows, noise = flat[:, : self.size], flat[:, self.size :]
        mean, log_variance = self.encode(rows).split(self.latent, 1)
        code = sampled_code(mean, log_variance, noise) if noise.shape[1] else mean
        return torch.cat([self.decode(code), mean, log_variance], 1)


@dataclass(frozen=True)
class GeneratorLoss:
    """The negative evidence bound of each row; see `atoll.labels.objectives.beta_vae`. No row depends on another, as DP-SGD needs."""

    generator: Generator

    def __call__(self, model: Any, *, x: Any, keys: Any) -> Any:
        """Return a loss for each row."""
        made = self.generator
        flat = x.flatten(1)
        out = model(torch.cat([flat, normals(keys, 0, made.latent).to(x.dtype)], 1))
        rows, mean, log_variance = out.split([made.size, made.latent, made.latent], 1)
        return beta_vae(rows, flat, mean, log_variance, made.beta, made.kind) / made.size


@dataclass(frozen=True, kw_only=True)
class Generator:
    """A variational autoencoder for rows of one shape, as the model and loss of a training of its own.

    Train it with ``Training(model=g.model, loss=g.loss, algorithm=..., privacy=ExampleDP(...))``; then ``g.decoder(trained.params)`` makes rows for `FedSSL`. What DP-SGD
    promises holds for the decoder and all it makes, since nothing else of the clients' rows is in it.

    Attributes:
        shape: of a row.
        latent: numbers in a code.
        hidden: width of the hidden layers.
        beta: weight of the code's divergence from the standard normal distribution.
        kind: ``"images"`` with numbers in [0, 1], ``"series"`` or ``"table"``; see `atoll.labels.objectives.reconstruction_error`.
    """

    shape: tuple[int, ...]
    latent: int = 8
    hidden: int = 64
    beta: float = 1.0
    kind: str = "images"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        if (
            self.latent < 1
            or self.hidden < 1
            or self.size < 1
            or self.beta < 0
            or self.kind not in ("images", "series", "table")
        ):
            raise ConfigError(
                f"shape={self.shape}, latent={self.latent}, hidden={self.hidden}, beta={self.beta}, kind={self.kind!r}",
                where="Generator",
                remedy="use positive sizes, a beta of 0 or more, and 'images', 'series' or 'table'",
            )

    @property
    def size(self) -> int:
        """Numbers in a row."""
        return int(np.prod(self.shape, dtype=int))

    def model(self) -> nn.Module:
        """Return a fresh autoencoder."""
        return _Autoencoder(self.size, self.hidden, self.latent)

    @property
    def loss(self) -> GeneratorLoss:
        """The loss of its training."""
        return GeneratorLoss(self)

    def decoder(self, params: Tree) -> RowDecoder:
        """Return the decoder of a trained model.

        Raises:
            DataError: the parameters are not those of this generator.
        """
        found = {name: np.asarray(leaf, np.float32) for name, leaf in params.items() if name.startswith("decode.")}
        shapes = {
            "decode.0.weight": (self.hidden, self.latent),
            "decode.0.bias": (self.hidden,),
            "decode.2.weight": (self.size, self.hidden),
            "decode.2.bias": (self.size,),
        }
        if {name: leaf.shape for name, leaf in found.items()} != shapes:
            raise DataError(
                f"the parameters {', '.join(params)} are not those of {self}",
                where="Generator.decoder",
                remedy="give the params of the training whose model is `generator.model`",
            )
        return RowDecoder(self, found)


@dataclass(frozen=True)
class RowDecoder:
    """Codes to rows.

    Attributes:
        generator: what was trained.
        params: the decoder's parameters.
    """

    generator: Generator
    params: Mapping[str, Any] = field(hash=False, compare=False)

    def rows(self, codes: torch.Tensor, params: Tree = None) -> torch.Tensor:
        """Return a row for each code, ``(B, latent)`` to ``(B, *shape)``."""
        at = {name: torch.as_tensor(leaf) for name, leaf in self.params.items()} if params is None else params
        hidden = F.relu(F.linear(codes, at["decode.0.weight"], at["decode.0.bias"]))
        made = F.linear(hidden, at["decode.2.weight"], at["decode.2.bias"])
        made = torch.sigmoid(made) if self.generator.kind == "images" else made
        return made.reshape(len(codes), *self.generator.shape)
