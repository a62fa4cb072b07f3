"""Mechanisms of differential privacy: ``Training(privacy=...)``. Each rewrites the parts of a training, so that no algorithm or engine knows it."""

from atoll.core.lazy import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__)
