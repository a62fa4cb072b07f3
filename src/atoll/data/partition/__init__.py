"""Partitioners: ``f(dataset, parties=..., seed=...) -> Islands``. Each row goes to exactly one client."""

from .feature import feature_skew, natural
from .label_skew import classes_per_client, dirichlet, dominant_class, shards
from .sizes import gaussian_sizes, iid, quantity_skew

__all__ = [
    "classes_per_client",
    "dirichlet",
    "dominant_class",
    "feature_skew",
    "gaussian_sizes",
    "iid",
    "natural",
    "quantity_skew",
    "shards",
]
