"""Views: what an augmentation makes of a row."""

from .core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
