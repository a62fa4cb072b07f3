"""What travels in a secure sum: the layout of a request's totals, its lanes of words, and the fixed-point codec.

`FixedPoint` says how numbers become whole numbers, `WordLayout` where each total stands among a party's words. Every reducer of this room shares both.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .fixed import FixedPoint
    from .layout import Decoded, Encoded, WordLayout, form_of
    from .slots import Slot
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {"fixed": ("FixedPoint",), "layout": ("Decoded", "Encoded", "WordLayout", "form_of"), "slots": ("Slot",)},
    )

__all__ = ["Decoded", "Encoded", "FixedPoint", "Slot", "WordLayout", "form_of"]
