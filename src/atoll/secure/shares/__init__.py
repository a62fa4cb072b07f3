"""Secret sharing: values split among parties that compute on them and open results only.

`WordRing`, `Field` and `Binary` are where shares live; `split_additive`, `split_shamir` and `split_replicated` split arrays without any communication. A
`Computation` is one party's side of a session in which shares are added, multiplied and compared; see `atoll.secure.shares.operations`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .additive import AdditiveComputation
    from .authenticated import AuthenticatedComputation
    from .binary import Binary
    from .computation import Computation
    from .dealer import Dealer, PartyDealer, deal
    from .domain import Domain
    from .field import Field
    from .operations import bits_of, dot, equal, less, mul, negative, number_of, opened, select, truncate
    from .polynomial import ShamirComputation
    from .replicated import ReplicatedComputation
    from .schemes import open_additive, open_replicated, open_shamir, split_additive, split_replicated, split_shamir
    from .shared_array import SharedArray, concatenated
    from .sharing import AdditiveSharing, AuthenticatedSharing, ReplicatedSharing, ShamirSharing, Sharing
    from .word_ring import WordRing
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "additive": ("AdditiveComputation",),
            "authenticated": ("AuthenticatedComputation",),
            "binary": ("Binary",),
            "computation": ("Computation",),
            "dealer": ("Dealer", "PartyDealer", "deal"),
            "domain": ("Domain",),
            "field": ("Field",),
            "operations": (
                "bits_of",
                "dot",
                "equal",
                "less",
                "mul",
                "negative",
                "number_of",
                "opened",
                "select",
                "truncate",
            ),
            "polynomial": ("ShamirComputation",),
            "replicated": ("ReplicatedComputation",),
            "word_ring": ("WordRing",),
            "schemes": (
                "open_additive",
                "open_replicated",
                "open_shamir",
                "split_additive",
                "split_replicated",
                "split_shamir",
            ),
            "shared_array": ("SharedArray", "concatenated"),
            "sharing": ("AdditiveSharing", "AuthenticatedSharing", "ReplicatedSharing", "ShamirSharing", "Sharing"),
        },
    )

__all__ = [
    "AdditiveComputation",
    "AdditiveSharing",
    "AuthenticatedComputation",
    "AuthenticatedSharing",
    "Binary",
    "Computation",
    "Dealer",
    "Domain",
    "Field",
    "PartyDealer",
    "ReplicatedComputation",
    "ReplicatedSharing",
    "ShamirComputation",
    "ShamirSharing",
    "SharedArray",
    "Sharing",
    "WordRing",
    "bits_of",
    "concatenated",
    "deal",
    "dot",
    "equal",
    "less",
    "mul",
    "negative",
    "number_of",
    "open_additive",
    "open_replicated",
    "open_shamir",
    "opened",
    "select",
    "split_additive",
    "split_replicated",
    "split_shamir",
    "truncate",
]
