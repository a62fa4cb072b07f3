"""The weak and the strong view of each kind of rows."""

from __future__ import annotations

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError, nearest

from .base import Compose, View
from .geometry import Affine, Flip, Translate
from .pixels import ColourJitter, Cutout
from .randaugment import RandAugment
from .series import Jitter, Magnify, MaskTime, Slice, TimeWarp
from .table import MaskFeatures, SwapFeatures
from .text import DropTokens, SwapTokens

__all__ = ["strong", "weak"]

_KINDS = ("images", "photos", "series", "text", "table")


@checked_call
def weak(kind: str) -> View:
    """Return a view that keeps what a row is beyond doubt.

    ======== ====================================================================
    kind     view
    ======== ====================================================================
    images   digits and signs, whose mirror image is another one: moved by up to 1/14 of the side (2 of 28 pixels)
    photos   mirrored, and moved by up to 1/8 of the side, mirrored at the border (FixMatch)
    series   noise of .03, in the unit of the series
    text     one exchange of two tokens for every 20
    table    a tenth of the features hidden
    ======== ====================================================================

    Raises:
        ConfigError: there is no such kind.
    """
    _check(kind)
    made: dict[str, View] = {
        "images": Translate(),
        "photos": Compose([Flip(), Translate(1 / 8, fill=None)]),
        "series": Jitter(0.03),
        "text": SwapTokens(0.05),
        "table": MaskFeatures(0.1),
    }
    return made[kind]


@checked_call
def strong(kind: str) -> View:
    """Return a view that changes as much of a row as its meaning bears.

    ======== ====================================================================
    kind     view
    ======== ====================================================================
    images   affine (30 degrees, moved by up to .1 of the side, scale .75 to 1.25, shear .3), values times .3 to 1.3, a square of 10/28 of the side cut out
    photos   mirrored, moved, two operations of RandAugment, a square of half the side cut out (FixMatch)
    series   noise of .1, each channel times .8 to 1.2, uneven time, a window of .8, a gap of .1
    text     a tenth of the tokens exchanged, a fifth dropped
    table    .6 of the features from other rows (SCARF)
    ======== ====================================================================

    Raises:
        ConfigError: there is no such kind.
    """
    _check(kind)
    made: dict[str, View] = {
        "images": Compose([Affine(), ColourJitter((0.3, 1.3), (1.0, 1.0)), Cutout()]),
        "photos": Compose([Flip(), Translate(1 / 8, fill=None), RandAugment(), Cutout(0.5)]),
        "series": Compose([Jitter(0.1), Magnify(0.2), TimeWarp(), Slice(0.8), MaskTime()]),
        "text": Compose([SwapTokens(), DropTokens(0.2)]),
        "table": SwapFeatures(),
    }
    return made[kind]


def _check(kind: str) -> None:
    if kind not in _KINDS:
        raise ConfigError(
            f"kind={kind!r}.{nearest(str(kind), _KINDS)}", where="views", remedy=f"use one of {', '.join(_KINDS)}"
        )
