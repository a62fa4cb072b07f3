"""Views: rows as an augmentation shows them, a function of the row and of its key."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Compose, OwnRows, View
    from .defaults import strong, weak
    from .draws import row_keys
    from .geometry import Affine, Crop, Flip, QuarterTurn, Translate
    from .kinds import ImageView, SeriesView, TableView, TextView
    from .pixels import ColourJitter, Cutout, GaussianBlur, Invert, Mixup, Thicken
    from .randaugment import RandAugment
    from .series import Jitter, Magnify, MaskTime, Slice, TimeWarp
    from .table import MaskFeatures, SwapFeatures
    from .text import DropTokens, MaskSpan, MaskTokens, SwapTokens
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "base": (
                "Compose",
                "OwnRows",
                "View",
            ),
            "defaults": (
                "strong",
                "weak",
            ),
            "draws": ("row_keys",),
            "geometry": (
                "Affine",
                "Crop",
                "Flip",
                "QuarterTurn",
                "Translate",
            ),
            "kinds": (
                "ImageView",
                "SeriesView",
                "TableView",
                "TextView",
            ),
            "pixels": (
                "ColourJitter",
                "Cutout",
                "GaussianBlur",
                "Invert",
                "Mixup",
                "Thicken",
            ),
            "randaugment": ("RandAugment",),
            "series": (
                "Jitter",
                "Magnify",
                "MaskTime",
                "Slice",
                "TimeWarp",
            ),
            "table": (
                "MaskFeatures",
                "SwapFeatures",
            ),
            "text": (
                "DropTokens",
                "MaskSpan",
                "MaskTokens",
                "SwapTokens",
            ),
        },
    )

__all__ = [
    "Affine",
    "ColourJitter",
    "Compose",
    "Crop",
    "Cutout",
    "DropTokens",
    "Flip",
    "GaussianBlur",
    "ImageView",
    "Invert",
    "Jitter",
    "Magnify",
    "MaskFeatures",
    "MaskSpan",
    "MaskTime",
    "MaskTokens",
    "Mixup",
    "OwnRows",
    "QuarterTurn",
    "RandAugment",
    "SeriesView",
    "Slice",
    "SwapFeatures",
    "SwapTokens",
    "TableView",
    "TextView",
    "Thicken",
    "TimeWarp",
    "Translate",
    "View",
    "row_keys",
    "strong",
    "weak",
]
