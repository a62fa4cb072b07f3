"""Mechanisms of differential privacy: ``Training(privacy=...)``. Each rewrites the parts of a training, so that no algorithm or engine knows it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .adaptive_clip import AdaptiveClip
    from .base import Mechanism
    from .central import CentralDP
    from .claim import Attendance, Guarantee
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "adaptive_clip": ("AdaptiveClip",),
            "base": ("Mechanism",),
            "central": ("CentralDP",),
            "claim": ("Attendance", "Guarantee"),
        },
    )

__all__ = ["AdaptiveClip", "Attendance", "CentralDP", "Guarantee", "Mechanism"]
