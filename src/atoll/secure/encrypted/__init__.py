"""Encrypted sums: parties encrypt, the server adds up ciphertexts, and only who holds the key can open the sum."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .batchcrypt import BatchCrypt
    from .bfv import BFV
    from .ckks import CKKS
    from .digits import Digits
    from .paillier import Paillier
    from .reducer import Encrypted
    from .scheme import Scheme, scheme_named
    from .threshold import ThresholdPaillier
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "batchcrypt": ("BatchCrypt",),
            "bfv": ("BFV",),
            "ckks": ("CKKS",),
            "digits": ("Digits",),
            "paillier": ("Paillier",),
            "reducer": ("Encrypted",),
            "scheme": ("Scheme", "scheme_named"),
            "threshold": ("ThresholdPaillier",),
        },
    )

__all__ = [
    "BFV",
    "CKKS",
    "BatchCrypt",
    "Digits",
    "Encrypted",
    "Paillier",
    "Scheme",
    "ThresholdPaillier",
    "scheme_named",
]
