"""Sums at two servers that check the norm of every hidden update; `BoundedSum` is the reducer."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .reducer import BoundedSum
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(__name__, {"reducer": ("BoundedSum",)})

__all__ = ["BoundedSum"]
