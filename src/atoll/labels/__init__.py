"""Learning without full labels: semi-supervised, self-supervised, and between domains."""

from . import objectives

__all__ = ["objectives"]
