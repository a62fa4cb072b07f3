"""Mechanisms of differential privacy: ``Training(privacy=...)``. Each rewrites the parts of a training, so that no algorithm or engine knows it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Mechanism
    from .central import CentralDP
    from .claim import Attendance, Guarantee
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "base": ("Mechanism",),
            "central": ("CentralDP",),
            "claim": ("Attendance", "Guarantee"),
        },
    )

__all__ = ["Attendance", "CentralDP", "Guarantee", "Mechanism"]
