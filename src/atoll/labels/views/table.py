"""Rows of tables: features taken from other rows of the party, or hidden."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from .draws import coins, words
from .kinds import TableView, require_share

__all__ = ["MaskFeatures", "SwapFeatures"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class SwapFeatures(TableView):
    """Give ``floor(share * features)`` features of each row the values that other rows of the party have (SCARF, Bahri et al. 2022, algorithm 1).

    Each value is that of a row drawn for this feature alone: a draw from the feature's marginal at the party.

    Attributes:
        share: share of the features.
    """

    share: float = 0.6
    uses_own: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_share(self, "share")

    def seen(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the rows with swapped features."""
        features = rows.shape[-1]
        count = int(self.share * features)
        if not count:
            return rows
        # Which: the features with the smallest of distinct numbers.
        noise = (words(keys, 0, features) << 20) | torch.arange(features, device=rows.device)
        swapped = noise <= noise.kthvalue(count, -1, keepdim=True).values
        others = own.rows.gather(0, own.draw_numbers(keys, 1, features))
        return torch.where(swapped, others, rows)


@dataclass(frozen=True)
class MaskFeatures(TableView):
    """Hide each feature with probability ``p``.

    Attributes:
        p: the probability.
        fill: the value of what is hidden.
    """

    p: float = 0.3
    fill: float = 0.0

    def __post_init__(self) -> None:
        require_share(self, "p")

    def seen(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the rows with hidden features."""
        return torch.where(coins(keys, 0, rows.shape[-1], self.p), torch.full_like(rows, self.fill), rows)
