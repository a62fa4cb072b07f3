"""Secure indexing: indices of codewords add up as counts, and nobody who sees the counts sees an index.

`SecureIndexing` is the reducer. `points` has point functions: two short keys whose evaluations differ at one index.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
