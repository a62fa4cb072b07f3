"""Named data sets, read from the folder in the environment variable ``ATOLL_DATA``."""

from ._place import FILES, locate, require
from .given import available, divided_by_party, open, read_data  # noqa: A004 - read as atoll.data.open("mnist")
from .images import cifar10_subset, digit_domains, mnist, qmnist_writers
from .tables import (
    airfoil,
    airline_tweets,
    boston_housing,
    celeba_attributes,
    crowd_labels,
    fate_vertical,
    gas_turbine,
    kddcup99_tcp,
    movielens_100k,
    sentiment140,
)

__all__ = [
    "FILES",
    "airfoil",
    "airline_tweets",
    "available",
    "boston_housing",
    "celeba_attributes",
    "cifar10_subset",
    "crowd_labels",
    "digit_domains",
    "divided_by_party",
    "fate_vertical",
    "gas_turbine",
    "kddcup99_tcp",
    "locate",
    "mnist",
    "movielens_100k",
    "open",
    "qmnist_writers",
    "read_data",
    "require",
    "sentiment140",
]
