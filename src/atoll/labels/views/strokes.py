"""Images whose strokes are thicker or thinner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .draws import units
from .kinds import ImageView, require_share

__all__ = ["Thicken"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class Thicken(ImageView):
    """Make the bright strokes of each image thicker or thinner: grey dilation or erosion by 3 x 3 pixels, in part.

    With ``t`` uniform in ``[-by, by]``, the result is ``(1 - |t|) x + |t| m``. Here ``m`` is at each pixel the largest of the 3 x 3 pixels around it that
    lie in the image where ``t`` is above 0, and the smallest where it is below.

    Attributes:
        by: the largest part, at most 1. 0 leaves the images as they are.

    Source: Serra. Image Analysis and Mathematical Morphology. 1982, for dilation and erosion of grey images.
    """

    by: float = 0.8

    def __post_init__(self) -> None:
        require_share(self, "by")

    def parts(self, keys: Tensor) -> Tensor:
        """Return the ``t`` that the keys draw, ``(B,)``."""
        return (units(keys, 0, 1)[..., 0] * 2.0 - 1.0) * self.by

    def shown(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the images with other strokes."""
        part = self.parts(keys)[..., None, None, None].to(rows.dtype)
        sign = torch.where(part < 0, -1.0, 1.0).to(rows.dtype)
        # An erosion is a dilation of the negative; each row needs one of the two.
        most = _largest_of_three(_largest_of_three(rows * sign, -1), -2) * sign
        return rows + (most - rows) * part.abs()


def _largest_of_three(rows: Tensor, along: int) -> Tensor:
    """Return the largest of each place and its neighbours; faster than a pooling, which keeps track of where it found it."""
    side = rows.shape[along]
    if side < 2:
        return rows
    pairs = torch.maximum(rows.narrow(along, 0, side - 1), rows.narrow(along, 1, side - 1))
    inner = torch.maximum(pairs.narrow(along, 0, side - 2), pairs.narrow(along, 1, side - 2))
    return torch.cat([pairs.narrow(along, 0, 1), inner, pairs.narrow(along, side - 2, 1)], along)
