"""Dark on light for light on dark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .draws import coins
from .kinds import ImageView, require_share
from .pixels import limits

__all__ = ["Invert"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class Invert(ImageView):
    """Invert some images within their own range: ``low + high - x``, with an image's smallest and largest value.

    It bridges domains in which the ground may be lighter than what stands on it.

    Attributes:
        p: the probability of an inversion.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        require_share(self, "p")

    def shown(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the images, some inverted."""
        low, high = limits(rows)
        turned = coins(keys, 0, 1, self.p)[..., 0].reshape(-1, 1, 1, 1)
        return torch.where(turned, low + high - rows, rows)
