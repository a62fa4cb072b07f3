"""Finding the data folder, and files in it."""

from __future__ import annotations

import os
from pathlib import Path

from atoll.core.errors import DataError

from ..dataset import Dataset

VARIABLE = "ATOLL_DATA"
Folder = str | Path | None


_MNIST = tuple(f"mnist/{part}-{what}-ubyte.gz" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1"))
CROWDS = ("bluebirds", "dog", "ducks", "emotion_numeric", "snow_rte", "snow_temp", "weather_sentiment")
FILES: dict[str, tuple[str, ...]] = {
    "airline_tweets": ("airline_tweets/airline_tweets.csv.gz",),
    "airfoil": ("airfoil/airfoil_self_noise.csv.gz",),
    "celeba_attributes": ("celeba_attr/celeba_attr.npz",),
    "boston_housing": ("boston_housing/boston_housing.csv.gz",),
    "cifar10_subset": ("cifar10_subset/cifar10_subset.npz",),
    "digit_domains": (*_MNIST, "cifar10_subset/cifar10_subset.npz"),
    "crowd_labels": (
        *(f"crowd_truth/{name}_{part}.csv.gz" for name in CROWDS for part in ("labels", "truth")),
        *(f"crowd_truth/birthplaces_{part}.csv.gz" for part in ("claims", "groundtruths", "hierarchy")),
    ),
    **{
        f"fate_vertical:{name}": tuple(f"fate_vfl/{name}_hetero_{side}.csv.gz" for side in ("guest", "host"))
        for name in ("default_credit", "motor")
    },
    "geo:airbnb": ("geo/nyc_airbnb_2019.csv.gz",),
    "geo:taxis": ("geo/beijing_taxi_traces.csv.gz",),
    "gas_turbine": tuple(f"gas_turbine/gt_{year}.csv.gz" for year in range(2011, 2016)),
    "kddcup99_tcp": ("kddcup99/kddcup99_tcp_safa.npz",),
    "mnist": _MNIST,
    "mosi_texts": ("cmu_mosi_text/mosi_label.csv.gz",),
    "movielens_100k": tuple(f"movielens_100k/{name}" for name in ("u.data", "u.user", "u.item")),
    "qmnist_writers": ("qmnist_writers/mnist_writer_ids.npz", *_MNIST),
    "sentiment140": ("sent140/sent140_20k_with_users.csv.gz",),
}
"""The files of the data sets that reproductions need."""


def require(*names: str) -> None:
    """Look for the files of data sets, and read none.

    Raises:
        DataError: there is no data folder, or a file is missing; names the first.
    """
    for name in names:
        for path in FILES[name]:
            locate(None, *path.split("/"))


def locate(folder: Folder, *parts: str) -> Path:
    """Return the path of a file below the data folder.

    Args:
        folder: the data folder; ``None`` reads the environment variable ``ATOLL_DATA``.
        parts: the file's path in the folder; a file with ``.gz`` appended also matches.

    Raises:
        DataError: there is no folder or no such file; the remedy says what to set, or which file to add.
    """
    relative = Path(*parts)
    if folder is None:
        folder = os.environ.get(VARIABLE) or None
    if folder is None:
        raise DataError(
            f"the environment variable {VARIABLE} is not set",
            where=f"data set {parts[0]!r}",
            remedy=f"set {VARIABLE} to the folder with {relative.as_posix()}, or pass folder=",
        )
    if not Path(folder).is_dir():
        raise DataError(
            f"{VARIABLE} names {str(folder)!r}, which is not a folder",
            where=f"data set {parts[0]!r}",
            remedy=f"set {VARIABLE} to the folder with {relative.as_posix()}",
        )
    path = Path(folder) / relative
    packed = path.with_name(path.name + ".gz")
    if not path.is_file() and packed.is_file():
        return packed
    if not path.is_file():
        raise DataError(
            f"there is no {relative.as_posix()} in the folder of {VARIABLE}",
            where=f"data set {parts[0]!r}",
            remedy="put the file there, or set the variable to another folder",
        )
    return path


def divided(whole: Dataset, test: float, seed: int | None) -> Dataset:
    """Hold out a share of the rows for the server; 0 holds out none."""
    if not test:
        return whole
    train, held = whole.split(test, seed)
    return train.with_test(held)
