"""Masked sums: parties add masks that cancel, and a threshold of them opens what is left.

`SecureAggregation` is the reducer, and `OneShot` one that opens all masks at once. `plan` says how many neighbours and which threshold a cohort needs. Other protocols may build on `deal` and `reveal` (tasks that
share seeds and open them once), `Opening` (the server's half), `shares_of` and `opened` (Shamir's sharing of 32-byte seeds), and `rings` (the graph).
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
