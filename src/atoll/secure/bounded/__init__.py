"""Sums at two servers that check the norm of every hidden update; `BoundedSum` is the reducer."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
