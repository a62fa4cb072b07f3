"""Images moved: shifted, flipped, cut out of themselves, turned, sheared and scaled.

A map of the plane is six numbers a row, ``(a, b, c, d, e, f)``: the place ``(x, y)`` of the result shows the place
``(a x + b y + c, d x + e y + f)`` of the image, with the image's centre as origin and pixels as units.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from atoll.core.errors import DataError

from .draws import below, between, coins, compute_cos_sin, quantile, units
from .kinds import ImageView, require, require_range, require_share

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Affine", "Crop", "Flip", "QuarterTurn", "Translate", "matrices_of", "warp"]

Tensor = torch.Tensor
_RATIOS = 1024


def warp(rows: Tensor, maps: Tensor, fill: float | None = 0.0) -> Tensor:
    """Sample images at mapped places, bilinearly; what lies outside is ``fill``, or the nearest pixel of the border.

    Args:
        rows: ``(B, channels, height, width)``.
        maps: ``(B, 6)``, ``float32``.
        fill: the value around the image; ``None`` repeats its border.
    """
    height, width = rows.shape[-2:]
    across, down = _centre_grid(width, rows.device), _centre_grid(height, rows.device).unsqueeze(-1)
    # The grid of PyTorch's sampler measures half widths from the centre.
    half = (2 / max(1, width - 1), 2 / max(1, height - 1))
    shares = torch.stack([maps[..., 3 * i : 3 * i + 3] * half[i] for i in (0, 1)], -2)
    a, b, c = (shares[..., i, None, None] for i in range(3))
    grid = (a * across + (b * down + c)).movedim(-3, -1)
    work = rows if rows.dtype in (torch.float32, torch.float64) else rows.float()
    moved_by = work - fill if fill else work
    around = "border" if fill is None else "zeros"
    seen = F.grid_sample(moved_by, grid.to(work.dtype), "bilinear", around, align_corners=True)
    seen = (seen + fill if fill else seen).to(rows.dtype)
    # The sampler rounds places. An image that does not move keeps its bits.
    still = (maps == torch.tensor([1.0, 0, 0, 0, 1, 0], device=maps.device)).all(-1)
    return torch.where(still[..., None, None, None], rows, seen)


def matrices_of(maps: Tensor, height: int, width: int) -> Tensor:
    """Return maps as matrices ``(B, 2, 3)`` from pixels ``(x, y)`` of the result to pixels of the image, counted from the upper left corner."""
    whole = maps.reshape(*maps.shape[:-1], 2, 3).clone()
    centre = torch.tensor([(width - 1) / 2, (height - 1) / 2], dtype=whole.dtype, device=whole.device)
    whole[..., 2] += centre - whole[..., :2] @ centre
    return whole


def _centre_grid(n: int, device: torch.device) -> Tensor:
    return torch.arange(n, device=device, dtype=torch.float32) - (n - 1) / 2


def pixels(amount: int | float, side: int) -> int:
    """Return a length in pixels: a whole number is one already, a share is of the image's side."""
    return amount if isinstance(amount, int) else int(amount * side + 0.5)


def require_length(view: Any, name: str) -> None:
    """Refuse a length that is neither pixels nor a share."""
    value = getattr(view, name)
    fits = value >= 0 and (isinstance(value, int) or value <= 1)
    require(view, name, fits, "use pixels, such as 2, or a share of the side, such as 0.1")


def move_images(rows: Tensor, down: Tensor, right: Tensor, most: tuple[int, int], fill: float | None) -> Tensor:
    """Move images by whole pixels, ``(B,)`` each and at most ``most``; ``fill=None`` mirrors the image at its border."""
    height, width = rows.shape[-2:]
    frame = (most[1], most[1], most[0], most[0])
    framed = F.pad(rows, frame, mode="reflect") if fill is None else F.pad(rows, frame, value=fill)
    wide = width + 2 * most[1]
    first = (most[0] - down) * wide + (most[1] - right)
    inside = torch.arange(height, device=rows.device).unsqueeze(-1) * wide + torch.arange(width, device=rows.device)
    at = (first.unsqueeze(-1) + inside.flatten()).unsqueeze(-2).expand(*rows.shape[:-2], height * width)
    return framed.flatten(-2).gather(-1, at).reshape(rows.shape)


@dataclass(frozen=True)
class Translate(ImageView):
    """Move each image by whole pixels, each direction uniform in ``[-by, by]``.

    Attributes:
        by: pixels, or a share of the side as a number with a point.
        fill: the value that comes in; ``None`` mirrors the image at its border, as FixMatch does (Sohn et al. 2020, section 2.3).
    """

    by: int | float = 2 / 28
    fill: float | None = 0.0

    def __post_init__(self) -> None:
        require_length(self, "by")

    def shown(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the moved images."""
        most = [pixels(self.by, side) for side in rows.shape[-2:]]
        if self.fill is None:
            most = [min(n, side - 1) for n, side in zip(most, rows.shape[-2:], strict=True)]
        down, right = (below(keys, call, 1, 2 * n + 1)[..., 0] - n for call, n in enumerate(most))
        return move_images(rows, down, right, (most[0], most[1]), self.fill)


@dataclass(frozen=True)
class Flip(ImageView):
    """Mirror an image left to right with probability ``p``.

    Attributes:
        p: the probability.
        vertical: mirror top to bottom instead.
    """

    p: float = 0.5
    vertical: bool = False

    def __post_init__(self) -> None:
        require_share(self, "p")

    def shown(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the images, some mirrored."""
        flipped = rows.flip(-2 if self.vertical else -1)
        return torch.where(coins(keys, 0, 1, self.p).unsqueeze(-1).unsqueeze(-1), flipped, rows)


@dataclass(frozen=True)
class Crop(ImageView):
    """Show a part of each image, enlarged to the whole: the random resized crop of SimCLR (Chen et al. 2020, appendix A).

    The part's area is uniform in ``area``, the ratio of its sides log-uniform in ``ratio`` where that fits into the image, its place uniform.
    SimCLR draws again where a part does not fit; here its longer side is cut to the image's.

    Attributes:
        area: share of the image's area, low and high.
        ratio: width over height, low and high.
    """

    area: tuple[float, float] = (0.2, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        require_range(self, "area", 0.0)
        require(self, "area", self.area[0] > 0 and self.area[1] <= 1, "use shares above 0 and at most 1")
        require_range(self, "ratio", 0.0)
        require(self, "ratio", self.ratio[0] > 0, "use ratios above 0")

    def shown(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the enlarged parts."""
        height, width = rows.shape[-2:]
        ratio = quantile(_ratios(tuple(self.ratio)), below(keys, 0, 1, _RATIOS)[..., 0])
        area = between(keys, 1, *self.area)
        wide, tall = (area * ratio).sqrt().clamp(max=1.0), (area / ratio).sqrt().clamp(max=1.0)
        place = units(keys, 2, 2) - 0.5
        zero = torch.zeros_like(wide)
        right, down = (1 - wide) * place[..., 0] * width, (1 - tall) * place[..., 1] * height
        return _sample_clamped(rows, torch.stack([wide, zero, right, zero, tall, down], -1))


@functools.lru_cache(maxsize=16)
def _ratios(ratio: tuple[float, float]) -> NDArray[np.float32]:
    """Evenly spaced on a logarithmic scale: a table, since a power of a tensor may differ from machine to machine."""
    return np.geomspace(*ratio, _RATIOS).astype(np.float32)


def _sample_clamped(rows: Tensor, maps: Tensor) -> Tensor:
    """Sample with the border's own values around the image."""
    framed = F.pad(rows, (1, 1, 1, 1), mode="replicate")
    return warp(framed, maps)[..., 1:-1, 1:-1]


@dataclass(frozen=True)
class Affine(ImageView):
    """Turn, move, scale and shear each image about its centre.

    The result shows at ``p`` the image's place ``M^-1 (p - t)`` with ``M = R(angle) [[1, shear], [0, 1]] scale``, sampled bilinearly.

    Attributes:
        degrees: the angle is uniform in ``[-degrees, degrees]``, clockwise where it is above 0.
        shift: ``t`` is uniform in ``[-shift, shift]`` times the sides.
        scale: the factor is uniform in ``[1 - scale, 1 + scale]``.
        shear: the shear is uniform in ``[-shear, shear]``.
        fill: the value around the image; ``None`` repeats its border, for images whose ground is not dark.
    """

    degrees: float = 30.0
    shift: float = 0.1
    scale: float = 0.25
    shear: float = 0.3
    fill: float | None = 0.0

    def __post_init__(self) -> None:
        require(self, "degrees", 0 <= self.degrees <= 180, "use 0 to 180 degrees")
        require_share(self, "shift")
        require(self, "scale", 0 <= self.scale < 1, "use 0 or more, below 1")
        require(self, "shear", self.shear >= 0, "use 0 or more")

    def maps(self, keys: Tensor, height: int, width: int) -> Tensor:
        """Return the maps that the keys draw, ``(B, 6)``; see `matrices_of`."""
        drawn = units(keys, 0, 5) * 2.0 - 1.0
        cosine, sine = compute_cos_sin(drawn[..., 0] * math.radians(self.degrees))
        down, right = drawn[..., 1] * (self.shift * height), drawn[..., 2] * (self.shift * width)
        smaller, shear = 1.0 / (drawn[..., 3] * self.scale + 1.0), drawn[..., 4] * self.shear
        # M^-1 = [[1, -shear], [0, 1]] R(-angle) / scale
        a, b = (cosine + shear * sine) * smaller, (sine - shear * cosine) * smaller
        d, e = -sine * smaller, cosine * smaller
        return torch.stack([a, b, -(a * right + b * down), d, e, -(d * right + e * down)], -1)

    def shown(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the moved images."""
        return warp(rows, self.maps(keys, *rows.shape[-2:]), self.fill)


@dataclass(frozen=True)
class QuarterTurn(ImageView):
    """Turn each image by 0, 90, 180 or 270 degrees, for the prediction of rotations (Gidaris et al. 2018).

    Images must be square. `turns` gives the targets.
    """

    def turns(self, keys: Tensor) -> Tensor:
        """Return the number of quarter turns counter-clockwise of each row, ``(B,)``: the class to predict."""
        return below(keys, 0, 1, 4)[..., 0]

    def check(self, rows: Tensor) -> None:
        """Refuse images that are not square."""
        super().check(rows)
        if rows.shape[-1] != rows.shape[-2]:
            raise DataError(
                f"images of {rows.shape[-2]} x {rows.shape[-1]} pixels cannot be turned by 90 degrees",
                where="QuarterTurn",
                remedy="cut them to squares, or use Affine(degrees=180)",
            )

    def shown(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the turned images."""
        turns = self.turns(keys).unsqueeze(-1).unsqueeze(-1).unsqueeze(-1)
        shown = rows
        for n in (1, 2, 3):
            shown = torch.where(turns == n, rows.rot90(n, (-2, -1)), shown)
        return shown
