"""A scikit-learn pipeline of prepared columns: its transformers hold what the aggregates say."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.extras import need

from .rows import FeatureLayout, typed

__all__ = ["pipeline_of"]


def pipeline_of(layout: FeatureLayout, model: Any) -> Any:
    """The pipeline.

    Args:
        layout: the prepared columns.
        model: the fitted estimator.

    Raises:
        MissingExtraError: scikit-learn or pandas is not installed.
    """
    compose, pipeline = (need(f"sklearn.{name}", "sklearn", "a pipeline") for name in ("compose", "pipeline"))
    values = {name: _values(layout, name) for name in layout.levels}
    blocks = []
    if layout.numbers:
        blocks.append(("numbers", pipeline.Pipeline(_numbers(layout)), list(layout.numbers)))
    if layout.levels:
        blocks.append(
            ("categories", pipeline.Pipeline(_categories(layout, list(values.values()))), list(layout.levels))
        )
    columns = compose.ColumnTransformer(blocks, sparse_threshold=0.0)
    columns.fit(_example(layout, values))
    _write(layout, values, columns.named_transformers_)
    return pipeline.Pipeline([("columns", columns), ("model", model)])


def _values(layout: FeatureLayout, name: str) -> NDArray[Any]:
    """The values of a column of categories as a frame has them: numbers or text."""
    return np.array(typed([*map(str, layout.levels[name])]).tolist(), dtype=object)


def _example(layout: FeatureLayout, values: dict[str, NDArray[Any]]) -> Any:
    """Two rows of the right kinds, from which transformers learn names and shapes."""
    rows = {**{name: np.zeros(2) for name in layout.numbers}, **{name: values[name][[0, 0]] for name in layout.levels}}
    return need("pandas", "sklearn", "a pipeline by names of columns").DataFrame(rows)


def _numbers(layout: FeatureLayout) -> list[tuple[str, Any]]:
    preprocessing, impute = (need(f"sklearn.{name}", "sklearn", "a pipeline") for name in ("preprocessing", "impute"))
    steps = [("impute", impute.SimpleImputer())] if layout.fill else []
    return [*steps, *([("scale", preprocessing.StandardScaler())] if layout.centre else [])] or [
        ("as they are", "passthrough")
    ]


def _categories(layout: FeatureLayout, values: list[NDArray[Any]]) -> list[tuple[str, Any]]:
    preprocessing, impute = (need(f"sklearn.{name}", "sklearn", "a pipeline") for name in ("preprocessing", "impute"))
    if layout.encode == "ordinal":
        coder = preprocessing.OrdinalEncoder(categories=values, handle_unknown="use_encoded_value", unknown_value=-1)
    else:
        coder = preprocessing.OneHotEncoder(categories=values, handle_unknown="ignore", sparse_output=False)
    steps = [("impute", impute.SimpleImputer(strategy="most_frequent"))] if layout.fill else []
    return [*steps, ("encode", coder)]


def _write(layout: FeatureLayout, values: dict[str, NDArray[Any]], fitted: Any) -> None:
    """Write what the aggregates say into the transformers."""
    if layout.fill and layout.numbers:
        fitted["numbers"]["impute"].statistics_ = np.array([float(layout.fill[name]) for name in layout.numbers])
    if layout.centre:
        scaler = fitted["numbers"]["scale"]
        scaler.mean_, scaler.scale_ = np.array(layout.centre), np.array(layout.spread)
        scaler.var_ = scaler.scale_**2
    if layout.fill and layout.levels:
        place = {name: [*map(str, layout.levels[name])].index(str(layout.fill[name])) for name in layout.levels}
        fitted["categories"]["impute"].statistics_ = np.array(
            [values[name][k] for name, k in place.items()], dtype=object
        )
