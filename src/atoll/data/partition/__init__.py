"""Partitioners: ``f(dataset, parties=..., seed=...) -> Islands``. Each row goes to exactly one client."""

from .dirichlet import dirichlet
from .dominant import dominant_class
from .feature import feature_skew
from .iid import iid
from .natural import natural
from .shards import classes_per_client, shards
from .sizes import gaussian_sizes, quantity_skew

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
