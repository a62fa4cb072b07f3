"""Bandits: agents that choose, learn from rewards, and share what they learned under privacy."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .discounted import DiscountedUCB
    from .federated import FederatedBandit, Played
    from .linucb import LinUCB
    from .tree import NoisyPrefix
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "discounted": ("DiscountedUCB",),
            "federated": ("FederatedBandit", "Played"),
            "linucb": ("LinUCB",),
            "tree": ("NoisyPrefix",),
        },
    )

__all__ = [
    "DiscountedUCB",
    "FederatedBandit",
    "LinUCB",
    "NoisyPrefix",
    "Played",
]
