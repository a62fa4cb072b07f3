"""What travels in a secure sum: the layout of a request's totals, its lanes of words, and the fixed-point codec.

`FixedPoint` says how numbers become whole numbers, `WordLayout` where each total stands among a party's words. Every reducer of this room shares both.
"""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
