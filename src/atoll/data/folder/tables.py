"""Tables and texts from the folder in ``ATOLL_DATA``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from ..dataset import Dataset
from ..join import concatenate
from ..readers.arrays import arrays_of
from ..readers.csv import read_csv, table_of_csv
from ..readers.table import from_table
from ._place import CROWDS, Folder, divided, locate

__all__ = [
    "airfoil",
    "airline_tweets",
    "boston_housing",
    "celeba_attributes",
    "crowd_labels",
    "fate_vertical",
    "gas_turbine",
    "kddcup99_tcp",
    "movielens_100k",
    "sentiment140",
]


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


# Tweets with a sentiment label.


@checked_call
def airline_tweets(*, test: float = 0.2, seed: int | None = 0, folder: Folder = None) -> Dataset:
    """Load 14,640 tweets on six airlines: columns ``text``, ``airline``, ``user`` and 3 classes of sentiment.

    There is no ``x``: encode the text, for example with `hash_words`. Six natural clients: ``natural(data,
    "airline")``. File: ``airline_tweets/airline_tweets.csv.gz``.

    Args:
        test: share of the rows held out for the server; 0 for none.
        seed: the seed that chooses the test rows; ``None`` takes the last rows.
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: a missing or malformed file.
    """
    whole = read_csv(
        locate(folder, "airline_tweets", "airline_tweets.csv.gz"),
        target="airline_sentiment",
        features=(),
        keep=("text", "airline", "user_id"),
        categories={"airline_sentiment": ("negative", "neutral", "positive")},
        name="airline_tweets",
        citation="CrowdFlower: Twitter US airline sentiment, 2015",
    )
    return divided(_rename_set(whole), test, seed)


@checked_call
def sentiment140(*, test: float = 0.2, seed: int | None = 0, folder: Folder = None) -> Dataset:
    """Load 19,999 tweets of Sentiment140: columns ``text``, ``user``; ``y`` is 1 for positive.

    No user has more than 9 tweets, so clients must be made in another way. File:
    ``sent140/sent140_20k_with_users.csv.gz``.

    Args:
        test: share of the rows held out for the server; 0 for none.
        seed: the seed that chooses the test rows; ``None`` takes the last rows.
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: a missing or malformed file.
    """
    whole = read_csv(
        locate(folder, "sent140", "sent140_20k_with_users.csv.gz"),
        target="label",
        task="binary",
        features=(),
        keep=("text", "user_id"),
        name="sentiment140",
        citation="Go, Bhayani, Huang: Twitter sentiment classification using distant supervision, 2009",
    )
    return divided(_rename_set(whole), test, seed)


def _rename_set(whole: Dataset) -> Dataset:
    columns = {"user" if name == "user_id" else name: whole[name] for name in whole.columns}
    about = whole.about
    return Dataset(
        columns,
        task=about.task,
        classes=about.classes,
        labels=about.labels,
        name=about.name,
        citation=about.citation,
    )


# Data sets of two tables: vertical federated learning, and crowd labels with the true labels.


_VERTICAL = {"breast": ("y", "binary"), "default_credit": ("y", "binary"), "motor": ("motor_speed", "regression")}


@checked_call
def fate_vertical(name: str, *, folder: Folder = None) -> tuple[Dataset, Dataset]:
    """Load one of FATE's vertical examples as (guest, host): the guest has the target, both have a column ``id``.

    The rows are not aligned: match the ids first. Files: ``fate_vfl/<name>_hetero_{guest,host}.csv.gz``.

    Args:
        name: "breast" (569 rows, 10 + 20 features), "default_credit" (30,000, 13 + 10) or "motor" (800, 4 + 7).
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: another name, or missing or malformed files.
    """
    if name not in _VERTICAL:
        raise DataError(f"no vertical example {name!r}", remedy=f"choose one of {', '.join(_VERTICAL)}")
    target, task = _VERTICAL[name]
    citation = "FATE examples (Apache-2.0), from UCI and Kaggle; features standardised there"
    guest = locate(folder, "fate_vfl", f"{name}_hetero_guest.csv.gz")
    host = locate(folder, "fate_vfl", f"{name}_hetero_host.csv.gz")
    parts = []
    for part, path, of, kind in (("guest", guest, target, task), ("host", host, None, None)):
        table = table_of_csv(path)
        key = next((column for column in ("id", "idx") if column in table), None)
        if key is None:
            raise DataError("no column id", where=path.name, remedy="give each row its id, as FATE's files do")
        columns = {"id" if column == key else column: values for column, values in table.items()}
        made = from_table(
            columns, target=of, task=kind, keep=["id"], name=f"{name} ({part})", citation=citation, row_offset=2
        )
        parts.append(made)
    return parts[0], parts[1]


@checked_call
def crowd_labels(name: str, *, folder: Folder = None) -> tuple[Dataset, Dataset]:
    """Load crowd labels as (labels, truth): columns ``task``, ``worker``, ``label``, and ``task``, ``truth``.

    Files: ``crowd_truth/<name>_labels.csv.gz`` and ``crowd_truth/<name>_truth.csv.gz``.

    Args:
        name: "bluebirds", "dog", "ducks", "emotion_numeric", "snow_rte", "snow_temp" or "weather_sentiment".
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: another name, or missing or malformed files.
    """
    if name not in CROWDS:
        raise DataError(f"no crowd labels {name!r}", remedy=f"choose one of {', '.join(CROWDS)}")
    parts = []
    for part, columns in (("labels", ("task", "worker", "label")), ("truth", ("task", "truth"))):
        path = locate(folder, "crowd_truth", f"{name}_{part}.csv.gz")
        table = table_of_csv(path)
        absent = [column for column in columns if column not in table]
        if absent:
            raise DataError(f"no column {', '.join(absent)}", where=path.name, remedy=f"give {', '.join(columns)}")
        chosen = {column: np.asarray(table[column]) for column in columns}
        parts.append(Dataset(chosen, name=f"{name} ({part})", citation="see the crowd data's own publication"))
    return parts[0], parts[1]
