"""Named data sets, read from the folder in the environment variable ``ATOLL_DATA``."""

from ._place import FILES, require
from .domains import digit_domains
from .given import divided_by_party, read_data
from .images import cifar10_subset, mnist, qmnist_writers
from .named import available, open  # noqa: A004 - read as atoll.data.open("mnist")
from .pairs import crowd_labels, fate_vertical
from .tables import airfoil, boston_housing, celeba_attributes, gas_turbine, kddcup99_tcp, movielens_100k
from .texts import airline_tweets, sentiment140

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
    "mnist",
    "movielens_100k",
    "open",
    "qmnist_writers",
    "read_data",
    "require",
    "sentiment140",
]
