"""The beta-VAE: a row's code is a normal distribution close to the standard one, from which the row is reconstructed."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atoll.core.errors import ConfigError, nearest

__all__ = ["beta_vae", "code_divergence", "reconstruction_error", "sampled_code"]

Tensor = torch.Tensor
_KINDS = ("images", "series", "text", "table")


def sampled_code(mean: Tensor, log_variance: Tensor, noise: Tensor) -> Tensor:
    """Return a code drawn from ``N(mean, exp(log_variance))``: ``mean + exp(log_variance / 2) noise``, through which gradients flow.

    Args:
        mean: ``(rows, width)``.
        log_variance: of the same shape.
        noise: standard normal numbers of the same shape.
    """
    return mean + (log_variance / 2).exp() * noise


def code_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return ``KL( N(mean, exp(log_variance)) | N(0, 1) )`` of each row, in nats: ``sum (mean^2 + exp(v) - v - 1) / 2``; 0 for the prior."""
    return (mean.square() + log_variance.exp() - log_variance - 1).flatten(1).sum(1) / 2


def reconstruction_error(reconstruction: Tensor, rows: Tensor, kind: str = "images") -> Tensor:
    """Return ``-log p(row | code)`` of each row, in nats and up to a constant.

    * ``"images"``: Bernoulli. ``reconstruction`` has logits, rows lie in ``[0, 1]``.
    * ``"series"`` and ``"table"``: normal with variance 1, half of the squared error.
    * ``"text"``: categorical. ``reconstruction`` has logits ``(rows, length, words)`` and rows have words ``(rows, length)``.

    Args:
        reconstruction: what the decoder made.
        rows: the rows.
        kind: of data.

    Raises:
        ConfigError: another kind.
    """
    if kind not in _KINDS:
        raise ConfigError(
            f"kind={kind!r} is not known.{nearest(kind, _KINDS)}",
            where="reconstruction_error",
            remedy=f"use one of {', '.join(_KINDS)}",
        )
    if kind == "text":
        said = F.log_softmax(reconstruction, -1).gather(-1, rows.unsqueeze(-1)).squeeze(-1)
        return -said.sum(1)
    made = reconstruction.reshape(rows.shape)
    if kind == "images":
        return F.binary_cross_entropy_with_logits(made, rows, reduction="none").flatten(1).sum(1)
    return (made - rows).square().flatten(1).sum(1) / 2


def beta_vae(
    reconstruction: Tensor, rows: Tensor, mean: Tensor, log_variance: Tensor, beta: float = 4.0, kind: str = "images"
) -> Tensor:
    """Return the loss of each row, ``-log p(row | code) + beta KL``, the negative evidence bound if ``beta = 1``.

    Args:
        reconstruction: what the decoder made from a `sampled_code`.
        rows: the rows.
        mean: of the code, ``(rows, width)``.
        log_variance: of the code.
        beta: weight of the divergence, 0 or more.
        kind: of data; see `reconstruction_error`.

    Raises:
        ConfigError: a negative ``beta``, or an unknown kind.

    Source: Higgins et al. beta-VAE. ICLR 2017, eq. 4; Kingma, Welling. Auto-Encoding Variational Bayes. ICLR 2014.
    """
    if not beta >= 0:
        raise ConfigError(f"beta={beta}", where="beta_vae", remedy="use 0 or more")
    return reconstruction_error(reconstruction, rows, kind) + beta * code_divergence(mean, log_variance)
