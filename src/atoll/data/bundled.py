"""Real data without a download: the small sets that scikit-learn bundles."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from atoll.core.rng import Rng

from ._checks import Array
from ._extra import need
from .dataset import Dataset

__all__ = ["breast_cancer", "diabetes", "digits", "iris", "linnerud", "wine"]


def digits(*, flat: bool = True, test: float = 0.2, seed: int | Rng = 0) -> Dataset:
    """Load 1,797 handwritten digits of 8 by 8 pixels, 10 classes; ``x`` is float32 in [0, 1].

    Args:
        flat: ``x`` of shape ``(rows, 64)`` instead of ``(rows, 1, 8, 8)``.
        test: share of the rows held out for the server; 0 for none.
        seed: which rows.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    pixels, y = _digits()
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


def iris(*, test: float = 0.2, seed: int | Rng = 0) -> Dataset:
    """Load 150 irises: 4 measures in cm, 3 species.

    Args:
        test: share of the rows held out for the server; 0 for none.
        seed: which rows.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    return _classes("iris", "Fisher: The use of multiple measurements in taxonomic problems, 1936", test, seed)


def wine(*, test: float = 0.2, seed: int | Rng = 0) -> Dataset:
    """Load 178 wines: 13 chemical measures, 3 cultivars.

    Args:
        test: share of the rows held out for the server; 0 for none.
        seed: which rows.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    return _classes("wine", "Aeberhard and Forina: Wine, UCI, 1991", test, seed)


def breast_cancer(*, test: float = 0.2, seed: int | Rng = 0) -> Dataset:
    """Load 569 breast masses: 30 measures of cell nuclei, malignant (0) or benign (1).

    Args:
        test: share of the rows held out for the server; 0 for none.
        seed: which rows.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    citation = "Wolberg, Mangasarian, Street, Street: Breast cancer Wisconsin (diagnostic), UCI, 1995"
    return _classes("breast_cancer", citation, test, seed, task="binary")


def diabetes(*, test: float = 0.2, seed: int | Rng = 0) -> Dataset:
    """Load 442 diabetes patients: 10 centred and scaled measures, the disease's progression after a year.

    Args:
        test: share of the rows held out for the server; 0 for none.
        seed: which rows.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    raw = _raw("diabetes")
    citation = "Efron, Hastie, Johnstone, Tibshirani: Least angle regression, 2004"
    y = raw.target.astype(np.float32)
    names = list(raw.feature_names)
    return _dataset("diabetes", raw.data.astype(np.float32), y, "regression", citation, [], names, test, seed)


def linnerud(*, test: float = 0.2, seed: int | Rng = 0) -> Dataset:
    """Load 20 men: 3 exercises, and as targets weight, waist and pulse, ``y`` of shape ``(rows, 3)``.

    Args:
        test: share of the rows held out for the server; 0 for none.
        seed: which rows.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    raw = _raw("linnerud")
    citation = "Linnerud, in Tenenhaus: La régression PLS, 1998"
    y = raw.target.astype(np.float32)
    names = list(raw.feature_names)
    return _dataset("linnerud", raw.data.astype(np.float32), y, "regression", citation, [], names, test, seed)


def _digits() -> tuple[Array, Array]:
    """Rows of 64 pixels from 0 to 16, and the digits: from scikit-learn's file, without loading scikit-learn, which takes longer than most runs."""
    found = importlib.util.find_spec("sklearn")
    for folder in (found.submodule_search_locations or ()) if found else ():
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1], table[:, -1].astype(int)
    raw = _raw("digits")
    return raw.data, raw.target


def _raw(name: str) -> Any:
    return getattr(need("sklearn.datasets", "sklearn", f"the data set {name!r}"), f"load_{name}")()


def _classes(name: str, citation: str, test: float, seed: int | Rng, task: str = "classification") -> Dataset:
    raw = _raw(name)
    labels = [str(label) for label in raw.target_names]
    names = [str(feature) for feature in raw.feature_names]
    return _dataset(name, raw.data.astype(np.float32), raw.target, task, citation, labels, names, test, seed)


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
