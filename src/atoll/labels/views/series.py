"""Series: noise, time that runs unevenly, windows and gaps. The last dimension is time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .draws import below, normals, units
from .geometry import pixels, require_length
from .kinds import SeriesView, require, require_share

__all__ = ["Jitter", "Magnify", "MaskTime", "Slice", "TimeWarp"]

Tensor = torch.Tensor


def _beside(values: Tensor, rows: Tensor) -> Tensor:
    """Give values ``(B, times)`` the channels of the rows."""
    return values if rows.dim() == 2 else values.unsqueeze(-2).expand(rows.shape)


def sample_series(rows: Tensor, at: Tensor) -> Tensor:
    """Return the series at times ``(B, times)`` between 0 and ``T - 1``, linearly."""
    first = at.floor()
    part = _beside(at - first, rows).to(rows.dtype)
    index = _beside(first.to(torch.int64), rows)
    here, next_ = rows.gather(-1, index), rows.gather(-1, (index + 1).clamp(max=rows.shape[-1] - 1))
    return here + part * (next_ - here)


@dataclass(frozen=True)
class Jitter(SeriesView):
    """Add Gaussian noise to every number (Um et al. 2017).

    Attributes:
        sigma: its standard deviation, in the unit of the series.
    """

    sigma: float = 0.05

    def __post_init__(self) -> None:
        require(self, "sigma", self.sigma >= 0, "use 0 or more")

    def seen(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the series with noise."""
        each = rows.shape[1:].numel()
        noise = normals(keys, 0, each).reshape(rows.shape).to(rows.dtype)
        return rows + noise * self.sigma


@dataclass(frozen=True)
class TimeWarp(SeriesView):
    """Let time run unevenly: its speed is drawn at ``knots`` places and linear between them (Um et al. 2017, with lines for cubic splines).

    The first and the last moment stay in place.

    Attributes:
        strength: speeds are uniform in ``[1 - strength, 1 + strength]`` before they are scaled to the length.
        knots: number of places.
    """

    strength: float = 0.5
    knots: int = 4

    def __post_init__(self) -> None:
        require(self, "strength", 0 <= self.strength < 1, "use 0 or more, below 1")
        require(self, "knots", self.knots >= 2, "use 2 or more")

    def seen(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the warped series."""
        times = rows.shape[-1]
        if times < 3 or self.strength == 0:
            return rows
        speed = 1.0 + self.strength * (2.0 * units(keys, 0, self.knots) - 1.0)
        # The integral of a function that is linear between knots is a sum of fixed functions of time, one for each knot.
        at = torch.arange(times, device=rows.device, dtype=torch.float32) * ((self.knots - 1) / (times - 1))
        passed = torch.zeros((*speed.shape[:-1], times), device=rows.device)
        for knot in range(self.knots):
            passed = passed + speed[..., knot, None] * _integral(at - knot, first=knot == 0)
        whole = passed[..., -1:]
        return sample_series(rows, (passed * ((times - 1) / whole)).clamp(0, times - 1))


def _integral(x: Tensor, *, first: bool) -> Tensor:
    """The integral of the hat ``max(0, 1 - |x|)`` up to ``x``, from 0 for the first knot and else from -1."""
    left = (x.clamp(-1, 0) + 1) ** 2 / 2
    right = x.clamp(0, 1)
    return right - right**2 / 2 + (0.0 if first else left)


@dataclass(frozen=True)
class Slice(SeriesView):
    """Show a window of each series, stretched to the whole length (Le Guennec et al. 2016).

    Attributes:
        share: the window's length, as a share of the series.
    """

    share: float = 0.9

    def __post_init__(self) -> None:
        require(self, "share", 0 < self.share <= 1, "use a share above 0 and at most 1")

    def seen(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the stretched windows."""
        times = rows.shape[-1]
        long = max(1, pixels(float(self.share), times))
        start = below(keys, 0, 1, times - long + 1).to(torch.float32)
        step = (long - 1) / (times - 1) if times > 1 else 0.0
        at = start + torch.arange(times, device=rows.device, dtype=torch.float32) * step
        return sample_series(rows, at.clamp(0, times - 1))


@dataclass(frozen=True)
class MaskTime(SeriesView):
    """Fill one span of each series, in all channels.

    Attributes:
        length: the span's length: moments, or a share of the series as a number with a point.
        fill: the value of the span.
    """

    length: int | float = 0.1
    fill: float = 0.0

    def __post_init__(self) -> None:
        require_length(self, "length")

    def seen(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the series with a gap."""
        times = rows.shape[-1]
        long = min(times, pixels(self.length, times))
        first = below(keys, 0, 1, times - long + 1)
        at = torch.arange(times, device=rows.device)
        hidden = (at >= first) & (at < first + long)
        return torch.where(_beside(hidden, rows), torch.full_like(rows, self.fill), rows)


@dataclass(frozen=True)
class Magnify(SeriesView):
    """Multiply each channel of a series by one number (Um et al. 2017, scaling).

    Attributes:
        strength: the factor is uniform in ``[1 - strength, 1 + strength]``.
    """

    strength: float = 0.1

    def __post_init__(self) -> None:
        require_share(self, "strength")

    def seen(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the series, larger or smaller."""
        channels = rows.shape[-2] if rows.dim() == 3 else 1
        factor = 1.0 + self.strength * (2.0 * units(keys, 0, channels) - 1.0)
        return rows * (factor if rows.dim() == 2 else factor.unsqueeze(-1)).to(rows.dtype)
