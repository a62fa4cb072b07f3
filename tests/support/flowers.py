"""Rows of iris at three parties, and a fit over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_iris

import atoll
from atoll.fitting import Fit, FittedModel
from atoll.reducers import SecureAggregation

__all__ = ["COLUMNS", "PARTS", "SECURE", "X", "Y", "fit", "parties"]

COLUMNS = ["a", "b", "c", "d"]
_order = np.random.default_rng(0).permutation(150)
X, Y = load_iris().data[_order] + np.random.default_rng(1).normal(0, 0.01, (150, 4)), load_iris().target[_order]
PARTS = {"north": slice(0, 60), "south": slice(60, 100), "west": slice(100, 150)}
SECURE: dict[str, Any] = {"reducer": SecureAggregation(), "categories": {"y": ["0", "1", "2"]}}
"""Settings with which the server sees sums alone."""


def frame() -> pd.DataFrame:
    return pd.DataFrame(X, columns=COLUMNS).assign(y=Y)


def parties(table: pd.DataFrame | None = None) -> dict[str, pd.DataFrame]:
    whole = frame() if table is None else table
    return {name: whole[rows] for name, rows in PARTS.items()}


def fit(model: Any, data: Any = None, **settings: Any) -> FittedModel:
    job = Fit(model=model, **{"columns": COLUMNS, **settings})
    found = atoll.simulate(job, parties() if data is None else data, engine="inline", progress=False).outcome
    assert isinstance(found, FittedModel)
    return found
