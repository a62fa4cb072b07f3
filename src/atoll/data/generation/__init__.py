"""Generated populations: the clients' rows are made on access."""

from .linear import linear
from .synthetic import synthetic, synthetic_iid

__all__ = ["linear", "synthetic", "synthetic_iid"]
