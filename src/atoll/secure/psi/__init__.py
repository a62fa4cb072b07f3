"""Whom two tables share: the keys of their rows as text, in an order that every side computes alone.

`RowKeys` are the distinct keys of one party in the order of u; `normalise_key` says which texts are one key, `order_keys` what u is. `Alignment` is the job, `align_parties`
what a program awaits, and the protocols are parts below `PsiProtocol`: `Ecdh`, `Oprf`, `Unbalanced`, `Opprf`, and `Circuit`,
of which nobody learns the intersection.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
