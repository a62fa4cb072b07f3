"""Rows from codes and from pieces: variational and masked autoencoders."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from atoll.core.errors import ConfigError, DataError, nearest

__all__ = [
    "beta_vae",
    "code_divergence",
    "hidden_pieces",
    "masked_error",
    "masked_tokens",
    "pieces_of",
    "reconstruction_error",
    "sampled_code",
    "spread_pieces",
]

# Masked autoencoding: hide a part of a row and reconstruct it. Images hide patches, series segments, text tokens, tables cells.


Tensor = torch.Tensor


def pieces_of(shape: tuple[int, ...], piece: int) -> tuple[int, ...]:
    """Return how many pieces a row is cut into, along each axis that is cut.

    A row of shape ``(channels, height, width)`` is cut into squares of ``piece`` pixels, ``(channels, length)`` into
    segments, and ``(length,)`` (cells of a table, tokens of a text) into runs of ``piece`` entries. Channels stay together. The last
    piece of an axis may be smaller.

    Raises:
        ConfigError: a piece below 1.
        DataError: a row with more than three axes.
    """
    if piece < 1:
        raise ConfigError(f"piece={piece}", where="masked autoencoder", remedy="use 1 or more")
    if not 1 <= len(shape) <= 3:
        raise DataError(
            f"rows of shape {shape}",
            where="masked autoencoder",
            remedy="give (channels, height, width), (channels, length) or (length,)",
        )
    cut = shape if len(shape) == 1 else shape[1:]
    return tuple(math.ceil(axis / piece) for axis in cut)


def hidden_pieces(scores: Tensor, share: float) -> Tensor:
    """Return which pieces are hidden: exactly ``round(share pieces)`` of each row, those of the smallest scores.

    Args:
        scores: uniform random numbers, ``(rows, pieces)``.
        share: part of the pieces that is hidden, above 0 and below 1; MAE hides 0.75.

    Raises:
        ConfigError: a share that hides no piece or all of them.
    """
    pieces = scores.shape[1]
    hidden = round(share * pieces)
    if not 0 < hidden < pieces:
        raise ConfigError(
            f"share={share} hides {hidden} of {pieces} pieces",
            where="masked autoencoder",
            remedy="hide at least one piece and leave one: change `share` or use smaller pieces",
        )
    ranks: Tensor = scores.argsort(stable=True, dim=1).argsort(dim=1)
    return ranks < hidden


def spread_pieces(hidden: Tensor, shape: tuple[int, ...], piece: int) -> Tensor:
    """Return which entries of the rows are hidden, booleans ``(rows, *shape)``.

    Args:
        hidden: which pieces are, ``(rows, pieces)``, row by row of the grid.
        shape: of one row.
        piece: its side.
    """
    grid = pieces_of(shape, piece)
    mask = hidden.reshape(-1, *grid)
    for axis, length in enumerate(shape if len(shape) == 1 else shape[1:], 1):
        mask = mask.repeat_interleave(piece, axis, output_size=mask.shape[axis] * piece).narrow(axis, 0, length)
    return mask if len(shape) == 1 else mask.unsqueeze(1).expand(-1, *shape)


def masked_error(reconstruction: Tensor, rows: Tensor, hidden: Tensor) -> Tensor:
    """Return the mean squared error of each row over its hidden entries.

    Args:
        reconstruction: what the decoder made, with as many entries as ``rows``.
        rows: the rows before anything was hidden.
        hidden: which entries were, booleans of the rows' shape.

    Source: He et al. Masked Autoencoders Are Scalable Vision Learners. CVPR 2022, section 3.
    """
    error = (reconstruction.reshape(rows.shape) - rows).square()
    there = hidden.to(error.dtype)
    return (error * there).flatten(1).sum(1) / there.flatten(1).sum(1).clamp(min=1)


def masked_tokens(logits: Tensor, tokens: Tensor, hidden: Tensor) -> Tensor:
    """Return the mean cross-entropy of each row over its hidden tokens.

    Args:
        logits: ``(rows, length, words)``.
        tokens: the true words, ``(rows, length)``.
        hidden: which were hidden, booleans ``(rows, length)``.

    Source: Devlin et al. BERT. NAACL 2019, section 3.1; every hidden token is replaced, none is kept or changed to another word.
    """
    said = F.log_softmax(logits, -1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    there = hidden.to(said.dtype)
    return -(said * there).sum(1) / there.sum(1).clamp(min=1)


# The beta-VAE: a row's code is a normal distribution close to the standard one, from which the row is reconstructed.


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
