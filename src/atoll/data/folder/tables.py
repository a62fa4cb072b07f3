"""Tables: airfoil, Boston housing, KDD Cup 1999, gas turbine, CelebA attributes, MovieLens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from ..dataset import Dataset
from ..join import concatenate
from ..readers.csv import read_csv
from ..readers.npz import arrays_of
from ._place import Folder, divided, locate

__all__ = ["airfoil", "boston_housing", "celeba_attributes", "gas_turbine", "kddcup99_tcp", "movielens_100k"]


@checked_call
def airfoil(*, test: float = 0.2, seed: int | None = 0, folder: Folder = None) -> Dataset:
    """Load the airfoil self-noise: 1,503 rows, 5 features, the target in dB.

    File: ``airfoil/airfoil_self_noise.csv.gz``, target ``spl_db``.

    Args:
        test: share of the rows held out for the server; 0 for none.
        seed: the seed that chooses the test rows; ``None`` takes the last rows.
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: a missing or malformed file.
    """
    citation = "Brooks, Pope, Marcolini: Airfoil self-noise and prediction, NASA RP-1218, 1989"
    path = locate(folder, "airfoil", "airfoil_self_noise.csv.gz")
    return divided(read_csv(path, target="spl_db", name="airfoil", citation=citation), test, seed)


@checked_call
def boston_housing(
    *, test: float = 0.3, seed: int | None = 0, drop: Sequence[str] = (), folder: Folder = None
) -> Dataset:
    """Load Boston housing: 506 rows, 13 features, the target MEDV in 1,000 dollars.

    Column B encodes race and is ethically contested; ``drop=["B"]`` leaves it out. SAFA's first task takes the first
    70 % of the rows to train: ``test=0.3, seed=None``. File: ``boston_housing/boston_housing.csv.gz``.

    Args:
        test: share of the rows held out for the server; 0 for none.
        seed: the seed that chooses the test rows; ``None`` takes the last rows.
        drop: features to leave out.
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: a missing or malformed file.
    """
    citation = "Harrison and Rubinfeld: Hedonic housing prices and the demand for clean air, 1978"
    path = locate(folder, "boston_housing", "boston_housing.csv.gz")
    whole = read_csv(path, target="MEDV", drop=drop, name="boston_housing", citation=citation)
    return divided(whole, test, seed)


@checked_call
def kddcup99_tcp(*, test: float = 0.3, seed: int | None = 0, folder: Folder = None) -> Dataset:
    """Load KDD Cup 1999, TCP connections as SAFA filters them: 186,479 rows, 35 features, -1 normal / +1 attack.

    File: ``kddcup99/kddcup99_tcp_safa.npz`` (arrays ``x`` and ``y``). Not scaled.

    Args:
        test: share of the rows held out for the server; 0 for none.
        seed: the seed that chooses the test rows; ``None`` takes the last rows.
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: a missing or malformed file.
    """
    x, y = arrays_of(locate(folder, "kddcup99", "kddcup99_tcp_safa.npz"), ("x", "y"))
    citation = "Stolfo, Fan, Lee, Prodromidis, Chan: KDD Cup 1999 data, UCI"
    whole = Dataset(
        {"x": x, "y": y}, task="binary", name="kddcup99_tcp", citation=citation, labels=("normal", "attack")
    )
    return divided(whole, test, seed)


@checked_call
def gas_turbine(
    *, targets: Sequence[str] = ("CO", "NOX"), test: float = 0.3, seed: int | None = 0, folder: Folder = None
) -> Dataset:
    """Load the gas turbine emissions: 36,733 hours, 9 features, the targets CO and NOX, and a column ``year``.

    Files: ``gas_turbine/gt_2011.csv.gz`` to ``gt_2015.csv.gz``. FedProf holds out 11.0 of 36.7 thousand rows.

    Args:
        targets: one of "CO" and "NOX" or both; the other does not become a feature.
        test: share of the rows held out for the server; 0 for none.
        seed: the seed that chooses the test rows; ``None`` takes the last rows.
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: missing or malformed files, or another target.
    """
    if not targets or not set(targets) <= {"CO", "NOX"}:
        raise DataError(f"targets={list(targets)}", where="data set 'gas_turbine'", remedy="choose 'CO', 'NOX' or both")
    citation = "Kaya, Tüfekci, Uzun: Predicting CO and NOx emissions from gas turbines, 2019"
    target = list(targets) if len(targets) > 1 else targets[0]
    parts = []
    for year in range(2011, 2016):
        path = locate(folder, "gas_turbine", f"gt_{year}.csv.gz")
        drop = {"CO", "NOX"} - set(targets)
        part = read_csv(path, target=target, drop=drop, name="gas_turbine", citation=citation)
        parts.append(part.with_columns({"year": np.full(len(part), year)}))
    return divided(concatenate(parts), test, seed)


@checked_call
def celeba_attributes(*, target: str = "Smiling", folder: Folder = None) -> Dataset:
    """Load CelebA's attributes, without the images: 39 binary features, one attribute as target, column ``identity``.

    The official split: the first 182,637 rows train (with the validation rows), the other 19,962 test. File:
    ``celeba_attr/celeba_attr.npz`` (arrays ``attr``, ``attr_names``, ``identity``).

    Args:
        target: the attribute to predict.
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: a missing or malformed file, or no such attribute.
    """
    path = locate(folder, "celeba_attr", "celeba_attr.npz")
    attributes, names, identity = arrays_of(path, ("attr", "attr_names", "identity"))
    columns = [str(name) for name in names]
    if target not in columns:
        raise DataError(f"no attribute {target!r}", where="celeba_attr", remedy=f"choose one of {', '.join(columns)}")
    k = columns.index(target)
    whole = Dataset(
        {"x": np.delete(attributes, k, axis=1).astype(np.float32), "y": attributes[:, k], "identity": identity},
        task="binary",
        name="celeba_attributes",
        citation="Liu, Luo, Wang, Tang: Deep learning face attributes in the wild, ICCV 2015",
        features=[*columns[:k], *columns[k + 1 :]],
        labels=(f"not {target}", target),
    )
    train = min(182_637, len(whole) - 1)
    return whole.take(slice(0, train)).with_test(whole.take(slice(train, len(whole))))


@checked_call
def movielens_100k(*, folder: Folder = None) -> Dataset:
    """Load MovieLens 100K: ``x (100000, 2)`` of user and item numbers from 0, ratings 1 to 5, ``user``, ``time``.

    File: ``movielens_100k/u.data``, tab separated without a header.

    Args:
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: a missing or malformed file.
    """
    path = locate(folder, "movielens_100k", "u.data")
    try:
        rows = np.loadtxt(path, dtype=np.int64, delimiter="\t", ndmin=2)
        user, item, rating, time = rows.T
    except ValueError as error:
        raise DataError(f"not user, item, rating, time: {error}", where="u.data", remedy="fetch it again") from error
    return Dataset(
        {"x": np.stack([user - 1, item - 1], axis=1), "y": rating.astype(np.float32), "user": user - 1, "time": time},
        task="regression",
        name="movielens_100k",
        citation="Harper and Konstan: The MovieLens datasets: history and context, 2015",
        features=("user", "item"),
    )
