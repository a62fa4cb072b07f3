"""Masked autoencoding: hide a part of a row and reconstruct it. Images hide patches, series segments, text tokens, tables cells."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from atoll.core.errors import ConfigError, DataError

__all__ = ["hidden_pieces", "masked_error", "masked_tokens", "pieces_of", "spread_pieces"]

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
