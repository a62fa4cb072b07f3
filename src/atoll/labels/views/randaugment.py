"""RandAugment, with operations drawn for each image, not for each batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .draws import below, compute_cos_sin, units, words
from .geometry import warp
from .kinds import ImageView, require, require_share
from .pixels import limits, mean

__all__ = ["RandAugment"]

Tensor = torch.Tensor
# The first five move the image, the others change its values.
OPERATIONS = (
    "rotate", "shear_x", "shear_y", "translate_x", "translate_y",
    "brightness", "contrast", "autocontrast", "colour", "posterize", "solarize", "sharpness", "identity",
)  # fmt: skip
_MOVES = 5
_DEGREES, _SHEAR, _SHIFT, _FACTOR = (
    0.5235987755982988,
    0.3,
    0.3,
    0.95,
)  # the largest strengths: those of FixMatch, table 12


@dataclass(frozen=True)
class RandAugment(ImageView):
    """Apply ``operations`` of thirteen to each image, each drawn for that image (Cubuk et al. 2020; the list of FixMatch without equalisation).

    Rotate (30 degrees), shear (.3) and translate (.3) in x and y; brightness, contrast, colour and sharpness (factors .05 to 1.95); autocontrast;
    posterize (8 to 4 bits); solarize; identity. The numbers are strengths at magnitude 1.
    Movements are made at once, before changes of values, so that an image is sampled once. Colour is the identity unless there are three channels.
    Values stay within the image's own smallest and largest value and ``fill``.

    Attributes:
        operations: how many are applied to an image.
        magnitude: share of the largest strength, 0 to 1.
        uniform: whether the strength of each operation is uniform in ``[0, magnitude]``, as in FixMatch, or ``magnitude`` itself.
        fill: the value around the image.
    """

    operations: int = 2
    magnitude: float = 1.0
    uniform: bool = True
    fill: float = 0.0

    def __post_init__(self) -> None:
        require(self, "operations", self.operations >= 0, "use 0 or more")
        require_share(self, "magnitude")

    def drawn(self, keys: Tensor) -> Tensor:
        """Return the number of each operation in `OPERATIONS`, ``(B, operations)``."""
        return below(keys, 0, self.operations, len(OPERATIONS))

    def shown(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the images after the operations of each."""
        if self.operations == 0:
            return rows
        chosen = self.drawn(keys)
        strength = units(keys, 1, self.operations) * self.magnitude if self.uniform else self._full(chosen)
        signed = torch.where(words(keys, 2, self.operations) & 1 == 1, strength, -strength)
        low, high = limits(rows)
        shown = warp(rows, self._maps(chosen, signed, *rows.shape[-2:]), self.fill)
        for slot in range(self.operations):
            at = [t[..., slot, None, None, None] for t in (chosen, strength.to(rows.dtype), signed.to(rows.dtype))]
            shown = _change_values(shown, at[0] - _MOVES, at[1], at[2], low, high)
        return shown

    def _full(self, chosen: Tensor) -> Tensor:
        return torch.full(chosen.shape, self.magnitude, device=chosen.device)

    def _maps(self, chosen: Tensor, signed: Tensor, height: int, width: int) -> Tensor:
        """The product of the movements that were drawn, ``(B, 6)``."""
        zero = torch.zeros_like(signed)
        picked = [torch.where(chosen == i, signed, zero) for i in range(_MOVES)]
        cosine, sine = compute_cos_sin(picked[0] * _DEGREES)
        own = [
            cosine,
            sine + picked[1] * _SHEAR,
            picked[3] * (_SHIFT * width),
            picked[2] * _SHEAR - sine,
            cosine,
            picked[4] * (_SHIFT * height),
        ]
        first = [t[..., 0] for t in own]
        for slot in range(1, self.operations):
            a, b, c, d, e, f = first
            p, q, r, s, t, u = (m[..., slot] for m in own)
            first = [a * p + b * s, a * q + b * t, a * r + b * u + c, d * p + e * s, d * q + e * t, d * r + e * u + f]
        return torch.stack(first, -1)


def _change_values(x: Tensor, which: Tensor, strength: Tensor, signed: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Apply to each image the one change of values that was drawn for it."""
    factor = 1.0 + _FACTOR * signed
    ground = torch.where(which == 1, mean(x, 3), torch.zeros_like(factor))
    scaled = ground + (x - ground) * torch.where((which == 0) | (which == 1), factor, torch.ones_like(factor))
    least, most = limits(x)
    stretch = (high - low) / torch.where(most > least, most - least, torch.ones_like(most))
    shown = torch.where((which == 2) & (most > least), low + (x - least) * stretch, scaled)
    if x.shape[-3] == 3:
        grey = 0.299 * x[..., 0:1, :, :] + 0.587 * x[..., 1:2, :, :] + 0.114 * x[..., 2:3, :, :]
        shown = torch.where(which == 3, grey + (x - grey) * factor, shown)
    span = torch.where(high > low, high - low, torch.ones_like(high))
    step = 2.0 ** (4 * strength + 0.5).floor() / 255.0
    shown = torch.where(which == 4, low + (((x - low) / span / step).floor() * step) * span, shown)
    threshold = high - strength * (high - low)
    shown = torch.where((which == 5) & (x > threshold), low + (high - x), shown)
    smooth = _smooth(x)
    shown = torch.where(which == 6, smooth + (x - smooth) * factor, shown)
    within = shown.clamp(torch.minimum(low, least), torch.maximum(high, most))
    return torch.where((which >= 0) & (which <= 6), within, x)


def _smooth(x: Tensor) -> Tensor:
    """The image under the kernel (1 1 1; 1 5 1; 1 1 1)/13; its border stays."""
    if min(x.shape[-2:]) < 3:
        return x
    rows = x[..., :-2, :] + x[..., 1:-1, :] + x[..., 2:, :]
    square = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    inner = (square + 4.0 * x[..., 1:-1, 1:-1]) * (1 / 13)
    middle = torch.cat([x[..., 1:-1, :1], inner, x[..., 1:-1, -1:]], -1)
    return torch.cat([x[..., :1, :], middle, x[..., -1:, :]], -2)
