"""Methods for data without full labels, one idea a file."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .dsfl import DSFL
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(__name__, {"dsfl": ("DSFL",)})

__all__ = ["DSFL"]
