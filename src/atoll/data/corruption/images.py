"""Corruptions of images: blur, salt and pepper, rotation."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError

from .._checks import Array
from .base import Columns, Corruption, CorruptionScope, like

__all__ = ["Blur", "Rotate", "SaltAndPepper", "gaussian_blur"]


def gaussian_blur(images: Array, sigma: float) -> NDArray[np.float32]:
    """Blur the last two axes with a Gaussian kernel, separably.

    The kernel is ``exp(-k^2 / (2 sigma^2))`` for ``|k| <= ceil(3 sigma)``, normalised to sum 1; edges are mirrored
    with the edge pixel repeated (``d c b a | a b c d | d c b a``).

    Args:
        images: ``(..., height, width)``.
        sigma: standard deviation of the kernel in pixels.

    Returns:
        Same shape, float32.
    """
    radius = ceil(3.0 * sigma)
    offsets = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offsets / sigma) ** 2)
    kernel = (kernel / kernel.sum()).astype(np.float32)
    blurred = images.astype(np.float32)
    for axis in (-2, -1):
        n = blurred.shape[axis]
        mirrored = np.arange(-radius, n + radius) % (2 * n)
        padded = np.take(blurred, np.minimum(mirrored, 2 * n - 1 - mirrored), axis=axis)
        total = np.zeros_like(blurred)
        for k, weight in enumerate(kernel):
            window = [slice(None)] * blurred.ndim
            window[axis] = slice(k, k + n)
            total += weight * padded[tuple(window)]
        blurred = total
    return blurred


@dataclass(frozen=True)
class _OnImages(Corruption):
    """A corruption that needs height and width.

    Attributes:
        shape: (height, width) or (channels, height, width) of flat rows. Images of three or four dimensions,
            ``(rows, height, width)`` or ``(rows, channels, height, width)``, do not need it.
    """

    shape: tuple[int, ...] | None = None

    def as_images(self, x: Array) -> Array:
        return x if self.shape is None else x.reshape(len(x), *self.shape)

    def check(self, scope: CorruptionScope) -> None:
        """Refuse settings or data that the corruption does not support."""
        super().check(scope)
        x = scope.sample.x
        if self.shape is None and x.ndim not in (3, 4):
            side = round(x.shape[-1] ** 0.5)
            guess = (side, side) if side * side == x.shape[-1] else ("height", "width")
            raise DataError(
                f"{self.name!r} needs images, but each row of x has shape {x.shape[1:]}",
                where=f"data set {scope.sample.name!r}",
                remedy=f"give the layout of flat rows: {type(self).__name__}(shape={guess})".replace("'", ""),
            )
        if self.shape is not None and (len(self.shape) not in (2, 3) or prod(self.shape) != prod(x.shape[1:])):
            raise DataError(
                f"shape={self.shape} does not fit rows of shape {x.shape[1:]}",
                where=f"corruption {self.name!r}",
                remedy=f"give (height, width) or (channels, height, width) of {prod(x.shape[1:])} values",
            )


@dataclass(frozen=True)
class Blur(_OnImages):
    """Gaussian blur. FedProf (section 5.5) blurs 20 % of the clients without naming the kernel.

    Attributes:
        shape: layout of flat rows, see `gaussian_blur` for the axes.
        sigma: standard deviation of the kernel in pixels.
    """

    sigma: float = 2.0
    name: ClassVar[str] = "blur"

    def apply(self, columns: Columns, client: int, rng: np.random.Generator, scope: CorruptionScope) -> Columns:
        """Blur ``x``."""
        x = columns["x"]
        return {"x": like(gaussian_blur(self.as_images(x), self.sigma).reshape(x.shape), x)}

    def check(self, scope: CorruptionScope) -> None:
        """Refuse settings or data that the corruption does not support."""
        super().check(scope)
        if not 0.0 < self.sigma < np.inf:
            raise DataError(f"sigma={self.sigma}", where="corruption 'blur'", remedy="choose a positive number")


@dataclass(frozen=True)
class Rotate(_OnImages):
    """Rotate images by quarter turns, counter-clockwise: a feature skew that keeps the labels correct.

    Attributes:
        shape: layout of flat rows.
        turns: number of quarter turns; an odd number needs square images.
    """

    turns: int = 1
    name: ClassVar[str] = "rotate"

    def apply(self, columns: Columns, client: int, rng: np.random.Generator, scope: CorruptionScope) -> Columns:
        """Rotate ``x``."""
        x = columns["x"]
        return {"x": np.ascontiguousarray(np.rot90(self.as_images(x), self.turns, axes=(-2, -1))).reshape(x.shape)}

    def check(self, scope: CorruptionScope) -> None:
        """Refuse settings or data that the corruption does not support."""
        super().check(scope)
        height, width = self.as_images(scope.sample.x[:1]).shape[-2:]
        if self.turns % 2 and height != width:
            raise DataError(
                f"a quarter turn of images of {height} by {width}",
                where="corruption 'rotate'",
                remedy="use turns=2, or square images",
            )


@dataclass(frozen=True)
class SaltAndPepper(Corruption):
    """Set a random share of the values to the population's largest (salt) or smallest (pepper), half each.

    Works on any numeric features; each value is drawn independently.

    Attributes:
        density: share of the values to replace; FedProf uses 0.3.
    """

    density: float = 0.3
    name: ClassVar[str] = "salt_and_pepper"

    def apply(self, columns: Columns, client: int, rng: np.random.Generator, scope: CorruptionScope) -> Columns:
        """Set values of ``x`` to the ends of the range."""
        x = columns["x"]
        draw = rng.random(x.shape, dtype=np.float32)
        peppered = np.where(draw < self.density / 2, scope.low, x)
        return {"x": like(np.where(draw >= 1.0 - self.density / 2, scope.high, peppered), x)}

    def check(self, scope: CorruptionScope) -> None:
        """Refuse settings or data that the corruption does not support."""
        super().check(scope)
        if not 0.0 <= self.density <= 1.0:
            raise DataError(
                f"density={self.density}", where="corruption 'salt_and_pepper'", remedy="choose it between 0 and 1"
            )
