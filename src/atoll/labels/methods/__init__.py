"""Methods for data without full labels, one idea a file."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Method, local_sgd
    from .dsfl import DSFL
    from .fixmatch import FixMatch
    from .supervised import Supervised
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "base": (
                "Method",
                "local_sgd",
            ),
            "dsfl": ("DSFL",),
            "fixmatch": ("FixMatch",),
            "supervised": ("Supervised",),
        },
    )

__all__ = [
    "DSFL",
    "FixMatch",
    "Method",
    "Supervised",
    "local_sgd",
]
