"""Secure indexing: indices of codewords add up as counts, and nobody who sees the counts sees an index.

`SecureIndexing` is the reducer. `points` has point functions: two short keys whose evaluations differ at one index.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .noise import CountNoise
    from .reducer import SecureIndexing
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(__name__, {"noise": ("CountNoise",), "reducer": ("SecureIndexing",)})

__all__ = ["CountNoise", "SecureIndexing"]
