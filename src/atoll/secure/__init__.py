"""Computing on what nobody may see: sums over encrypted numbers. Masks and shares will stand here too."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ckks import encrypt, encryption_key, make_keys, masked_squares, open_sum, require_library, require_public
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "ckks": (
                "encrypt",
                "encryption_key",
                "make_keys",
                "masked_squares",
                "open_sum",
                "require_library",
                "require_public",
            ),
        },
    )

__all__ = [
    "encrypt",
    "encryption_key",
    "make_keys",
    "masked_squares",
    "open_sum",
    "require_library",
    "require_public",
]
