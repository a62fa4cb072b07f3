"""The four kinds of rows, and how a view refuses another kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from atoll.core.errors import ConfigError, DataError
from atoll.core.validation import is_real

from .base import View

__all__ = ["ImageView", "SeriesView", "TableView", "TextView"]

Tensor = torch.Tensor
_VIEWS = {
    "images": "Translate(), Flip(), Affine() or weak('images')",
    "series": "Jitter(), TimeWarp() or weak('series')",
    "text": "DropTokens(), SwapTokens() or weak('text')",
    "table": "SwapFeatures(), MaskFeatures() or weak('table')",
}


class ImageView(View):
    """A view of images: numbers with a point, ``(B, height, width)`` or ``(B, channels, height, width)``."""

    @property
    def kind(self) -> str:
        """``"images"``."""
        return "images"

    def check(self, rows: Tensor) -> None:
        """Refuse rows that are no images."""
        if not rows.is_floating_point():
            _refuse(self, rows, "text" if rows.dim() == 2 else "", "convert pixels to floats: rows.float() / 255")
        if rows.dim() not in (3, 4):
            _refuse(
                self, rows, "table", "give images the shape (B, channels, height, width), such as digits(flat=False)"
            )

    def seen(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the images as this view shows them."""
        if rows.dim() == 4:
            return self.shown(rows, keys, own)
        return self.shown(rows.unsqueeze(1), keys, own).squeeze(1)

    def shown(self, rows: Tensor, keys: Tensor, own: Any) -> Tensor:
        """Return the images ``(B, channels, height, width)`` as this view shows them."""
        raise NotImplementedError


class SeriesView(View):
    """A view of series: numbers with a point, ``(B, times)`` or ``(B, channels, times)``."""

    @property
    def kind(self) -> str:
        """``"series"``."""
        return "series"

    def check(self, rows: Tensor) -> None:
        """Refuse rows that are no series."""
        if not rows.is_floating_point():
            _refuse(self, rows, "text" if rows.dim() == 2 else "", "convert the numbers to floats: rows.float()")
        if rows.dim() not in (2, 3):
            _refuse(self, rows, "images", "give series the shape (B, channels, times)")


class TextView(View):
    """A view of text: numbers of tokens, whole numbers, ``(B, length)``, with padding at the end."""

    @property
    def kind(self) -> str:
        """``"text"``."""
        return "text"

    def check(self, rows: Tensor) -> None:
        """Refuse rows that are no tokens."""
        if rows.is_floating_point() or rows.dtype == torch.bool or rows.dim() != 2:
            kind = {2: "table", 3: "series", 4: "images"}.get(rows.dim(), "") if rows.is_floating_point() else ""
            _refuse(self, rows, kind, "give texts as whole numbers of tokens, of the shape (B, length)")


class TableView(View):
    """A view of tables: numbers with a point, ``(B, features)``."""

    @property
    def kind(self) -> str:
        """``"table"``."""
        return "table"

    def check(self, rows: Tensor) -> None:
        """Refuse rows that are no rows of a table."""
        if not rows.is_floating_point() or rows.dim() != 2:
            kind = {3: "series", 4: "images"}.get(rows.dim(), "") if rows.is_floating_point() else ""
            _refuse(self, rows, kind, "give tables as floats of the shape (B, features)")


def _refuse(view: View, rows: Tensor, kind: str, remedy: str) -> None:
    shape = ", ".join(["B", *(str(n) for n in rows.shape[1:])])
    other = f"; for {kind} use {_VIEWS[kind]}" if kind else ""
    raise DataError(
        f"a view of {view.kind} was given rows of the shape ({shape}) and type {str(rows.dtype).removeprefix('torch.')}",
        where=type(view).__name__,
        remedy=remedy + other,
    )


def require(view: Any, name: str, fits: bool, remedy: str) -> None:
    """Refuse a setting of a view.

    Raises:
        ConfigError: it does not fit.
    """
    if not fits:
        raise ConfigError(f"{name}={getattr(view, name)!r}", where=type(view).__name__, remedy=remedy)


def require_share(view: Any, *names: str) -> None:
    """Refuse settings that are not within 0 and 1."""
    for name in names:
        require(view, name, 0 <= getattr(view, name) <= 1, "use a number from 0 to 1")


def require_range(view: Any, name: str, least: float) -> None:
    """Refuse a setting that is no pair of a low and a high number, ``least`` or above."""
    value = getattr(view, name)
    pair = isinstance(value, Sequence) and len(value) == 2 and all(is_real(one) for one in value)
    fits = pair and least <= value[0] <= value[1]
    require(view, name, fits, f"use a pair (low, high) with {least:g} <= low <= high")
