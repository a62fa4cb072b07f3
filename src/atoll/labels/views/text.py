"""Text as numbers of tokens: tokens dropped, swapped or hidden. Padding stays padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .draws import below, coins
from .geometry import pixels
from .kinds import TextView, require, require_share

__all__ = ["DropTokens", "MaskSpan", "MaskTokens", "SwapTokens"]

Tensor = torch.Tensor


def lengths(rows: Tensor, pad: int) -> Tensor:
    """Return the number of tokens before the padding at the end, ``(B, 1)``."""
    at = torch.arange(1, rows.shape[-1] + 1, device=rows.device)
    return torch.where(rows != pad, at, torch.zeros_like(at)).amax(-1, keepdim=True)


@dataclass(frozen=True)
class DropTokens(TextView):
    """Drop each token with probability ``p``; the others move up and padding follows (Wei and Zou 2019, random deletion). The first token stays.

    Attributes:
        p: the probability.
        pad: the number of the padding.
    """

    p: float = 0.1
    pad: int = 0

    def __post_init__(self) -> None:
        require_share(self, "p")

    def seen(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the texts without the dropped tokens."""
        length = rows.shape[-1]
        at = torch.arange(length, device=rows.device)
        gone = coins(keys, 0, length, self.p) & (at > 0) & (at < lengths(rows, self.pad))
        kept = torch.where(gone, torch.full_like(rows, self.pad), rows)
        # Tokens that stay keep their order: they come first in a sort by (dropped, place).
        return kept.gather(-1, (gone.to(torch.int64) * length + at).argsort(-1))


@dataclass(frozen=True)
class SwapTokens(TextView):
    """Exchange two tokens, several times (Wei and Zou 2019, random swap).

    Attributes:
        share: number of exchanges, as a share of the row's width (with its padding), rounded; each exchanges two tokens of the text.
        pad: the number of the padding.
    """

    share: float = 0.1
    pad: int = 0

    def __post_init__(self) -> None:
        require_share(self, "share")

    def seen(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the texts after the exchanges."""
        at = torch.arange(rows.shape[-1], device=rows.device)
        most = lengths(rows, self.pad)
        order = at.expand(rows.shape)
        for number in range(pixels(float(self.share), rows.shape[-1])):
            pair = below(keys, number, 2, most)
            one, other = pair[..., 0:1], pair[..., 1:2]
            first, second = order.gather(-1, one), order.gather(-1, other)
            order = torch.where(at == one, second, torch.where(at == other, first, order))
        return rows.gather(-1, order)


@dataclass(frozen=True)
class MaskSpan(TextView):
    """Replace one span of tokens by the token ``mask`` (Joshi et al. 2020, with a span of one length).

    Attributes:
        mask: the number of the token that hides others.
        length: the span's length: tokens, or a share of the text's tokens as a number with a point, rounded down.
        pad: the number of the padding.
    """

    mask: int
    length: int | float = 0.15
    pad: int = 0

    def __post_init__(self) -> None:
        fits = self.length >= 0 and (isinstance(self.length, int) or self.length <= 1)
        require(self, "length", fits, "use tokens, such as 3, or a share of the text, such as 0.15")

    def seen(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the texts with a hidden span."""
        most = lengths(rows, self.pad)
        if isinstance(self.length, int):
            long = most.clamp(max=self.length)
        else:
            long = (most * int(self.length * (1 << 20))) >> 20
        first = below(keys, 0, 1, most - long + 1)
        at = torch.arange(rows.shape[-1], device=rows.device)
        return torch.where((at >= first) & (at < first + long), torch.full_like(rows, self.mask), rows)


@dataclass(frozen=True)
class MaskTokens(TextView):
    """Replace each token by the token ``mask`` with probability ``p``.

    Attributes:
        mask: the number of the token that hides others.
        p: the probability.
        pad: the number of the padding.
    """

    mask: int
    p: float = 0.15
    pad: int = 0

    def __post_init__(self) -> None:
        require_share(self, "p")

    def seen(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the texts with hidden tokens."""
        at = torch.arange(rows.shape[-1], device=rows.device)
        hidden = coins(keys, 0, rows.shape[-1], self.p) & (at < lengths(rows, self.pad))
        return torch.where(hidden, torch.full_like(rows, self.mask), rows)
