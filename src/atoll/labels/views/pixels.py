"""Images whose values change: brightness and contrast, blur, squares cut out, and mixtures of two."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from .base import OwnRows
from .draws import below, between, coins, quantile, units, words
from .geometry import pixels, require_length
from .kinds import ImageView, require, require_range, require_share

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ColourJitter", "Cutout", "GaussianBlur", "Invert", "Mixup", "Thicken"]

Tensor = torch.Tensor
_STEPS = 256


def total(values: Tensor, dims: int) -> Tensor:
    """Add up the last ``dims`` dimensions and keep them: halves are added to halves, so that the order never depends on the batch."""
    flat = values.flatten(-dims)
    while (n := flat.shape[-1]) > 1:
        half = n // 2
        rest = flat[..., 2 * half :]
        flat = torch.cat([flat[..., :half] + flat[..., half : 2 * half], rest], -1)
    return flat.reshape(*flat.shape[:-1], *[1] * dims)


def mean(values: Tensor, dims: int) -> Tensor:
    """Return the mean over the last ``dims`` dimensions, which stay with length 1."""
    return total(values, dims) * (1.0 / math.prod(values.shape[-dims:]))


def limits(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest value of each image, ``(B, 1, 1, 1)``."""
    low, high = rows.flatten(-3).aminmax(dim=-1)
    return _each(low), _each(high)


def _each(numbers: Tensor) -> Tensor:
    return numbers.unsqueeze(-1).unsqueeze(-1).unsqueeze(-1)


@dataclass(frozen=True)
class ColourJitter(ImageView):
    """Change brightness, then contrast: ``b x``, then ``m + c (x - m)`` with the image's mean ``m``.

    Values stay within the image's own smallest and largest value.

    Attributes:
        brightness: ``b`` is uniform in this range. For white on black it is the contrast to the ground.
        contrast: ``c`` is uniform in this range.
    """

    brightness: tuple[float, float] = (0.6, 1.4)
    contrast: tuple[float, float] = (0.6, 1.4)

    def __post_init__(self) -> None:
        require_range(self, "brightness", 0.0)
        require_range(self, "contrast", 0.0)

    def shown(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the images, brighter or darker, with more or less contrast."""
        low, high = limits(rows)
        shown = rows
        if tuple(self.brightness) != (1.0, 1.0):
            shown = shown * _each(between(keys, 0, *self.brightness)).to(rows.dtype)
        if tuple(self.contrast) != (1.0, 1.0):
            m = mean(shown, 3)
            shown = m + (shown - m) * _each(between(keys, 1, *self.contrast)).to(rows.dtype)
        return shown.clamp(low, high)


@dataclass(frozen=True)
class GaussianBlur(ImageView):
    """Blur each image with a Gaussian whose ``sigma`` is one of 256 evenly spaced values; edges are repeated.

    Attributes:
        sigma: low and high, in pixels.
        radius: the kernel has ``2 radius + 1`` entries in each direction.
        p: the probability of a blur.
    """

    sigma: tuple[float, float] = (0.1, 2.0)
    radius: int = 2
    p: float = 0.5

    def __post_init__(self) -> None:
        require_range(self, "sigma", 0.0)
        require(self, "sigma", self.sigma[0] > 0, "use widths above 0")
        require(self, "radius", self.radius >= 1, "use 1 or more")
        require_share(self, "p")

    def shown(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the images, some blurred."""
        kernel = quantile(_kernels(tuple(self.sigma), self.radius), self._entries(keys)).to(rows.dtype)
        shown = _along(_along(rows, kernel, -1), kernel, -2)
        return torch.where(_each(coins(keys, 1, 1, self.p)[..., 0]), shown, rows)

    def _entries(self, keys: Tensor) -> Tensor:
        entry = torch.arange(self.radius + 1, device=keys.device)
        return below(keys, 0, 1, _STEPS) * (self.radius + 1) + entry


@functools.lru_cache(maxsize=16)
def _kernels(sigma: tuple[float, float], radius: int) -> NDArray[np.float32]:
    """The entries 0 to ``radius`` of the kernel of each width, one width after another."""
    widths = np.linspace(*sigma, _STEPS)[:, None]
    entries = np.exp(-0.5 * (np.arange(radius + 1) / widths) ** 2)
    whole = entries[:, :1] + 2 * entries[:, 1:].sum(axis=1, keepdims=True)
    return np.asarray((entries / whole).ravel(), dtype=np.float32)


def _along(rows: Tensor, kernel: Tensor, dim: int) -> Tensor:
    n = rows.shape[dim]
    at = torch.arange(n, device=rows.device)
    shown = rows * _each(kernel[..., 0])
    for d in range(1, kernel.shape[-1]):
        beside = [rows.index_select(dim, (at + move).clamp(0, n - 1)) for move in (-d, d)]
        shown = shown + (beside[0] + beside[1]) * _each(kernel[..., d])
    return shown


@dataclass(frozen=True)
class Cutout(ImageView):
    """Fill a square of each image, whose centre is uniform in it, so that the square may reach over the border (DeVries and Taylor 2017).

    Attributes:
        size: the square's side in pixels, or a share of the image's shorter side as a number with a point.
        fill: the value of the square; ``None`` takes the mean of the image.
    """

    size: int | float = 10 / 28
    fill: float | None = 0.0

    def __post_init__(self) -> None:
        require_length(self, "size")

    def shown(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the images with a square cut out."""
        side = pixels(self.size, min(rows.shape[-2:]))
        hidden = []
        for call, n in enumerate(rows.shape[-2:]):
            first = below(keys, call, 1, n) - side // 2
            at = torch.arange(n, device=rows.device)
            hidden.append((at >= first) & (at < first + side))
        square = hidden[0].unsqueeze(-1) & hidden[1].unsqueeze(-2)
        inside = torch.full_like(rows, self.fill) if self.fill is not None else rows.mean((-3, -2, -1), keepdim=True)
        return torch.where(square.unsqueeze(-3), inside, rows)


@dataclass(frozen=True)
class Mixup(ImageView):
    """Mix each image with another of the party: ``w x + (1 - w) x'`` (Zhang et al. 2018).

    ``w`` is the larger of ``v`` and ``1 - v`` for ``v ~ Beta(alpha, alpha)``, as in MixMatch (Berthelot et al. 2019, equation 10).
    `drawn` gives ``w`` and the other row, so that an objective mixes targets in the same way.

    Attributes:
        alpha: parameter of the distribution; 0 leaves the images as they are.
    """

    alpha: float = 0.75
    uses_own: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self, "alpha", self.alpha >= 0, "use 0 or more")

    def drawn(self, keys: Tensor, own: OwnRows) -> tuple[Tensor, Tensor]:
        """Return the numbers of the other rows, ``(B,)``, and the weights ``w``, ``(B,)``."""
        other = own.draw_numbers(keys, 0, 1)[..., 0]
        if self.alpha == 0:
            return other, torch.ones(keys.shape, device=keys.device)
        return other, quantile(_larger(float(self.alpha)), words(keys, 1, 1)[..., 0] >> 20)

    def shown(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the mixtures."""
        other, weight = self.drawn(keys, own)
        beside = own.rows[other].reshape(rows.shape)
        return beside + (rows - beside) * _each(weight).to(rows.dtype) if self.alpha else rows


@functools.lru_cache(maxsize=16)
def _larger(alpha: float, quantiles: int = 4096) -> NDArray[np.float32]:
    """Quantiles of ``max(v, 1 - v)``, ``v ~ Beta(alpha, alpha)``.

    ``s = u^(1/alpha)`` turns the density ``s^(alpha-1) (1-s)^(alpha-1)`` on (0, 1/2) into ``(1 - u^(1/alpha))^(alpha-1)``, which has no pole.
    """
    u = np.linspace(0.0, 0.5**alpha, 20_001)
    density = (1.0 - u ** (1.0 / alpha)) ** (alpha - 1.0)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    at = (np.arange(quantiles) + 0.5) / quantiles * mass[-1]
    return np.asarray(1.0 - np.interp(at, mass, u) ** (1.0 / alpha), dtype=np.float32)


# Dark on light for light on dark.


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


# Images whose strokes are thicker or thinner.


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
