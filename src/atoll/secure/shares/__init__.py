"""Secret sharing: values split among parties that compute on them and open results only.

`WordRing`, `Field` and `Binary` are where shares live; `split_additive`, `split_shamir` and `split_replicated` split arrays without any communication. A
`Computation` is one party's side of a session in which shares are added, multiplied and compared; see `atoll.secure.shares.operations`.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
