"""Views: rows as an augmentation shows them, a function of the row and of its key."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
