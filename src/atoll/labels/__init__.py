"""Learning without full labels: semi-supervised, self-supervised, and between domains."""

from . import objectives, views

__all__ = ["objectives", "views"]
