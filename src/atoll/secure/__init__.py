"""Computing on what nobody may see: totals as words that add up exactly, masks, and sums over encrypted numbers."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
