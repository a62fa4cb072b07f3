"""Real data without a download: the small sets that scikit-learn bundles."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.extras import need

from ._checks import Array
from .dataset import Dataset

__all__ = ["breast_cancer", "diabetes", "digits", "iris", "linnerud", "wine"]

_FLOWER = ("sepal length (cm)", "sepal width (cm)", "petal length (cm)", "petal width (cm)")
_CHEMICAL = (
    *("alcohol", "malic_acid", "ash", "alcalinity_of_ash", "magnesium", "total_phenols", "flavanoids"),
    *("nonflavanoid_phenols", "proanthocyanins", "color_intensity", "hue", "od280/od315_of_diluted_wines", "proline"),
)  # fmt: skip
_OF_NUCLEI = (
    *("radius", "texture", "perimeter", "area", "smoothness"),
    *("compactness", "concavity", "concave points", "symmetry", "fractal dimension"),
)


@checked_call
def digits(*, flat: bool = True, test: float = 0.2, seed: int | Rng = 0) -> Dataset:
    """Load 1,797 handwritten digits of 8 by 8 pixels, 10 classes; ``x`` is float32 in [0, 1].

    Args:
        flat: ``x`` of shape ``(rows, 64)`` instead of ``(rows, 1, 8, 8)``.
        test: share of the rows held out for the server; 0 for none.
        seed: the seed that chooses the test rows.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    pixels, y = _rows("digits", "digits.csv.gz")
    x = (pixels / 16.0).astype(np.float32)
    return _dataset(
        "digits",
        x if flat else x.reshape(-1, 1, 8, 8),
        y,
        "classification",
        "Alpaydin and Kaynak: Optical recognition of handwritten digits (test part), UCI, 1998",
        [str(label) for label in range(10)],
        [],
        test,
        seed,
    )


@checked_call
def iris(*, test: float = 0.2, seed: int | Rng = 0) -> Dataset:
    """Load 150 irises: 4 measures in cm, 3 species.

    Args:
        test: share of the rows held out for the server; 0 for none.
        seed: the seed that chooses the test rows.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    x, y = _rows("iris", "iris.csv", above=1)
    citation = "Fisher: The use of multiple measurements in taxonomic problems, 1936"
    species = ["setosa", "versicolor", "virginica"]
    return _dataset("iris", x.astype(np.float32), y, "classification", citation, species, list(_FLOWER), test, seed)


@checked_call
def wine(*, test: float = 0.2, seed: int | Rng = 0) -> Dataset:
    """Load 178 wines: 13 chemical measures, 3 cultivars.

    Args:
        test: share of the rows held out for the server; 0 for none.
        seed: the seed that chooses the test rows.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    x, y = _rows("wine", "wine_data.csv", above=1)
    citation, cultivars = "Aeberhard and Forina: Wine, UCI, 1991", ["class_0", "class_1", "class_2"]
    return _dataset("wine", x.astype(np.float32), y, "classification", citation, cultivars, list(_CHEMICAL), test, seed)


@checked_call
def breast_cancer(*, test: float = 0.2, seed: int | Rng = 0) -> Dataset:
    """Load 569 breast masses: 30 measures of cell nuclei, malignant (0) or benign (1).

    Args:
        test: share of the rows held out for the server; 0 for none.
        seed: the seed that chooses the test rows.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    citation = "Wolberg, Mangasarian, Street, Street: Breast cancer Wisconsin (diagnostic), UCI, 1995"
    x, y = _rows("breast_cancer", "breast_cancer.csv", above=1)
    labels = ["malignant", "benign"]
    names = [form.format(part) for form in ("mean {}", "{} error", "worst {}") for part in _OF_NUCLEI]
    return _dataset("breast_cancer", x.astype(np.float32), y, "binary", citation, labels, names, test, seed)


@checked_call
def diabetes(*, test: float = 0.2, seed: int | Rng = 0) -> Dataset:
    """Load 442 diabetes patients: 10 centred and scaled measures, the disease's progression after a year.

    Args:
        test: share of the rows held out for the server; 0 for none.
        seed: the seed that chooses the test rows.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    raw = _raw("diabetes")
    citation = "Efron, Hastie, Johnstone, Tibshirani: Least angle regression, 2004"
    y = raw.target.astype(np.float32)
    names = list(raw.feature_names)
    return _dataset("diabetes", raw.data.astype(np.float32), y, "regression", citation, [], names, test, seed)


@checked_call
def linnerud(*, test: float = 0.2, seed: int | Rng = 0) -> Dataset:
    """Load 20 men: 3 exercises, and as targets weight, waist and pulse, ``y`` of shape ``(rows, 3)``.

    Args:
        test: share of the rows held out for the server; 0 for none.
        seed: the seed that chooses the test rows.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    raw = _raw("linnerud")
    citation = "Linnerud, in Tenenhaus: La régression PLS, 1998"
    y = raw.target.astype(np.float32)
    names = list(raw.feature_names)
    return _dataset("linnerud", raw.data.astype(np.float32), y, "regression", citation, [], names, test, seed)


def _rows(name: str, file: str, above: int = 0) -> tuple[Array, Array]:
    """Features and classes from scikit-learn's file, without loading scikit-learn, which takes longer than most runs.

    Args:
        name: scikit-learn's name of the data set; scikit-learn is asked if the file is elsewhere.
        file: the file, with the class in the last column.
        above: number of lines above the rows.
    """
    found = importlib.util.find_spec("sklearn")
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = Path(folder, "datasets", "data", file)
        if path.is_file():
            table = np.loadtxt(path, delimiter=",", skiprows=above)
            return table[:, :-1], table[:, -1].astype(int)
    raw = _raw(name)
    return raw.data, raw.target


def _raw(name: str) -> Any:
    return getattr(need("sklearn.datasets", "sklearn", f"the data set {name!r}"), f"load_{name}")()


def _dataset(
    name: str,
    x: Array,
    y: Array,
    task: str,
    citation: str,
    labels: list[str],
    features: list[str],
    test: float,
    seed: int | Rng,
) -> Dataset:
    whole = Dataset({"x": x, "y": y}, task=task, name=name, citation=citation, labels=labels, features=features)
    if not test:
        return whole
    train, held = whole.split(test, seed)
    return train.with_test(held)
