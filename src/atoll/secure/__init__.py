"""Computing on what nobody may see: totals as words that add up exactly, masks, and sums over encrypted numbers."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(
    __name__,
    moved={
        "BoundedSum": "atoll.reducers",
        "Enclave": "atoll.reducers",
        "Encrypted": "atoll.reducers",
        "MultiRound": "atoll.reducers",
        "OneShot": "atoll.reducers",
        "SecureAggregation": "atoll.reducers",
        "SecureIndexing": "atoll.reducers",
        "SecureTree": "atoll.reducers",
        "TwoServers": "atoll.reducers",
    },
)
