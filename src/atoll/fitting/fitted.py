"""A fitted model: its parameters, predictions and file, and the scikit-learn pipeline that it becomes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError, DataError
from atoll.core.extras import need
from atoll.core.persistence.files import as_json
from atoll.data import Dataset, DataTable
from atoll.data.model_columns import ModelColumns, ModelEstimator, RowPredictions, TableModel, as_numbers
from atoll.data.units import ColumnExtent
from atoll.statistics.columns import table_of

from .method import FitMethod
from .page import Readings, read_coefficients, read_curves
from .rows import FeatureLayout, PartyRows, rows_of, typed

__all__ = ["FittedModel", "pipeline_of"]


# A scikit-learn pipeline of prepared columns: its transformers hold what the aggregates say.


def pipeline_of(layout: FeatureLayout, model: Any) -> Any:
    """The pipeline.

    Args:
        layout: the prepared columns.
        model: the fitted estimator.

    Raises:
        MissingExtraError: scikit-learn or pandas is not installed.
    """
    compose, pipeline = (need(f"sklearn.{name}", "sklearn", "a pipeline") for name in ("compose", "pipeline"))
    values = {name: _values_of_categories(layout, name) for name in layout.levels}
    blocks = []
    if layout.numbers:
        blocks.append(("numbers", pipeline.Pipeline(_steps_of_numbers(layout)), list(layout.numbers)))
    if layout.levels:
        blocks.append(
            ("categories", pipeline.Pipeline(_steps_of_categories(layout, list(values.values()))), list(layout.levels))
        )
    columns = compose.ColumnTransformer(blocks, sparse_threshold=0.0)
    columns.fit(_make_example(layout, values))
    _write_aggregates(layout, values, columns.named_transformers_)
    return pipeline.Pipeline([("columns", columns), ("model", model)])


def _values_of_categories(layout: FeatureLayout, name: str) -> NDArray[Any]:
    """The values of a column of categories as a frame has them: numbers or text."""
    return np.array(typed([*map(str, layout.levels[name])]).tolist(), dtype=object)


def _make_example(layout: FeatureLayout, values: dict[str, NDArray[Any]]) -> Any:
    """Two rows of the right kinds, from which transformers learn names and shapes."""
    rows = {**{name: np.zeros(2) for name in layout.numbers}, **{name: values[name][[0, 0]] for name in layout.levels}}
    return need("pandas", "compare", "a pipeline by names of columns").DataFrame(rows)


def _steps_of_numbers(layout: FeatureLayout) -> list[tuple[str, Any]]:
    preprocessing, impute = (need(f"sklearn.{name}", "sklearn", "a pipeline") for name in ("preprocessing", "impute"))
    steps = [("impute", impute.SimpleImputer())] if layout.fill else []
    return [*steps, *([("scale", preprocessing.StandardScaler())] if layout.centre else [])] or [
        ("as they are", "passthrough")
    ]


def _steps_of_categories(layout: FeatureLayout, values: list[NDArray[Any]]) -> list[tuple[str, Any]]:
    preprocessing, impute = (need(f"sklearn.{name}", "sklearn", "a pipeline") for name in ("preprocessing", "impute"))
    if layout.encode == "ordinal":
        coder = preprocessing.OrdinalEncoder(categories=values, handle_unknown="use_encoded_value", unknown_value=-1)
    else:
        drop = "first" if layout.encode == "dummy" else None
        coder = preprocessing.OneHotEncoder(categories=values, drop=drop, handle_unknown="ignore", sparse_output=False)
    steps = [("impute", impute.SimpleImputer(strategy="most_frequent"))] if layout.fill else []
    return [*steps, ("encode", coder)]


def _write_aggregates(layout: FeatureLayout, values: dict[str, NDArray[Any]], fitted: Any) -> None:
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


_FORMAT = "atoll.fit/1"
_SHORT = 50
"""Longest array that a run's manifest repeats."""


@dataclass(frozen=True)
class FittedModel:
    """A fitted method, which needs no federation any more.

    Attributes:
        method: what was fitted, with its settings.
        layout: how a table becomes features.
        params: the numbers, by name; ``model["coef"]`` is ``model.params["coef"]``.
        told: rows, rows withheld at parties, contacts, and whether the method converged.
        codes: column of numbers that are codes of text, as in a data set -> its values, in the order of their codes.
        extents: see `atoll.data.model_columns.ModelColumns`; empty where the rows are at sites, which tell sums alone.
    """

    method: FitMethod
    layout: FeatureLayout
    params: Mapping[str, Any]
    told: Mapping[str, Any] = field(default_factory=dict)
    codes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    extents: Mapping[str, ColumnExtent] = field(default_factory=dict, compare=False)

    def __getitem__(self, name: str) -> Any:
        if name not in self.params:
            raise ConfigError(
                f"no parameter {name!r}", where="FittedModel", remedy=f"use one of {', '.join(self.params)}"
            )
        return self.params[name]

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features."""
        return self.layout.features

    @property
    def coefficients(self) -> Readings:
        """What R and statsmodels print of a linear model, by column: ``estimate``, ``error``, ``low`` and ``high`` (95%), ``p``; of `Cox` also the hazard ``ratio`` with its interval.

        The intercept is ``(intercept)``; with several classes a name is ``column [class]``. What the rows do not determine is NaN. Other methods have none. ``coefficients.to_pandas()`` is a frame.
        """
        return read_coefficients(self)

    @property
    def curves(self) -> Readings:
        """The curves of `KaplanMeier` by group, as lists: ``time``, ``at_risk``, ``events``, ``survival``, ``error`` (Greenwood), ``low`` and ``high`` (95%). Other methods have none.

        The interval is R's: ``S exp(-+ 1.96 error / S)``, at most 1; NaN where nobody is left. ``curves.to_pandas()`` is a frame.
        """
        return read_curves(self)

    def predict(self, data: Any) -> NDArray[Any]:
        """Predictions for a table, data set, frame or array: classes, numbers, clusters, risks, or the rows in components.

        Args:
            data: a table with the columns of the training, or an array ``(rows, columns)`` in their order.
        """
        rows = self._new_rows(data)
        return self.method.predict(self.params, rows, self.layout.classes)

    def predict_proba(self, data: Any) -> NDArray[Any]:
        """Probabilities of the classes ``layout.classes``, ``(rows, classes)``; the argument is that of `predict`.

        Raises:
            CompositionError: the method has none.
        """
        if not self.method.probable:
            return self.table_model().predict_proba(data)
        rows = self._new_rows(data)
        return self.method.probabilities(self.params, rows, self.layout.classes)

    def _new_rows(self, data: Any) -> PartyRows:
        table, columns = table_of(self._table(data)), self.columns
        columns.require_all(table, "predict")
        columns.warn_of_far_rows({name: as_numbers(table[name], None) for name in self.extents})
        return rows_of(table, self.layout, "predict", labelled=False)

    @property
    def columns(self) -> ModelColumns:
        """The columns that the model takes; what may be missing the layout says."""
        columns = (*self.layout.numbers, *self.layout.levels)
        words = {name: tuple(map(str, values)) for name, values in {**self.layout.levels, **self.codes}.items()}
        task = "classification" if self.layout.classes else ("regression" if self.layout.label else "")
        return ModelColumns(columns, words, True, "float64", (), task, tuple(self.layout.classes), self.extents)

    def table_model(self) -> TableModel:
        """The model as one that predicts rows of tables, and refuses texts that it does not know."""
        return TableModel(type(self.method).__name__, self.columns, self._answer, self.method.probable)

    def to_sklearn(self) -> ModelEstimator:
        """A fitted scikit-learn estimator that predicts what `predict` does, and refuses texts that it does not know; `estimator` gives scikit-learn's own class."""
        return self.table_model().to_sklearn()

    def _answer(self, data: Any, where: str) -> RowPredictions:
        if not self.method.featured:
            self.method.predict(self.params, rows_of({"rows": np.zeros(0)}, FeatureLayout(), where), ())
        chosen = self.columns.select(self._table(data), where)
        texts = {name: as_numbers(chosen[name], words) for name, words in self.codes.items()}
        table = DataTable({name: texts.get(name, chosen[name]) for name in chosen.columns}, name=chosen.name)
        self.columns.warn_of_far_rows({name: as_numbers(table[name], None) for name in self.extents})
        rows = rows_of(table, self.layout, table.name, labelled=False)
        found = self.method.predict(self.params, rows, self.layout.classes)
        return RowPredictions(
            found, self.method.probabilities(self.params, rows, self.layout.classes) if self.method.probable else None
        )

    def score(self, data: Any) -> float:
        """How good the model is on a table that has the label too: `FitMethod.measure`."""
        return float(self.method.score(self.params, rows_of(data, self.layout, "score"), self.layout.classes))

    def dataset(self, data: Any, name: str = "data") -> Dataset:
        """A table as a data set of prepared features, and of labels if there is one: what a training takes.

        Args:
            data: a table with the columns of the fit.
            name: of the data set.
        """
        rows, classes = rows_of(data, self.layout, name), self.layout.classes
        columns = {"x": rows.x, **({"y": rows.y} if self.layout.label else {})}
        if classes:
            return Dataset(columns, classes=len(classes), labels=classes, features=self.features, name=name)
        return Dataset(columns, task="regression" if self.layout.label else None, features=self.features, name=name)

    def estimator(self) -> Any:
        """A fitted estimator of the installed scikit-learn; with prepared columns a ``Pipeline``, which takes a ``pandas.DataFrame``.

        Raises:
            MissingExtraError: scikit-learn is not installed.
            CompositionError: scikit-learn has no such estimator.
        """
        made = self.method.estimator(self.params, self.layout.classes)
        if not self.layout.prepared:
            return made

        return pipeline_of(self.layout, made)

    def _table(self, data: Any) -> Any:
        if isinstance(data, np.ndarray):
            names = (*self.layout.numbers, *self.layout.levels)
            if data.ndim != 2 or data.shape[1] != len(names):
                raise DataError(
                    f"an array of shape {data.shape}",
                    where="predict",
                    remedy=f"give {len(names)} columns: {', '.join(names)}",
                )
            return dict(zip(names, data.T, strict=True))
        return data

    # ------------------------------------------------------------------ files

    def plain(self, *, short: bool = False) -> dict[str, Any]:
        """The model as plain data; ``short`` leaves long arrays out."""
        params = {
            name: _as_plain(value) for name, value in self.params.items() if not short or np.size(value) <= _SHORT
        }
        return {
            "method": type(self.method).__name__,
            "features": list(self.features)[:_SHORT] if short else list(self.features),
            **dict(self.told),
            "params": params,
            **({"coefficients": told} if (told := self.coefficients) else {}),
            **{name: _as_plain(self.params[name]) for name in ("rank", "condition") if name in self.params},
        }

    def to_json(self) -> bytes:
        """The model as a file: numbers and words, no code. Numbers come back to the bit."""
        settings = {one.name: _as_plain(getattr(self.method, one.name)) for one in fields(self.method)}
        arrays = {
            name: {"values": _in_words(_as_plain(value)), "dtype": np.asarray(value).dtype.str}
            for name, value in self.params.items()
        }
        whole = {
            "format": _FORMAT, "method": type(self.method).__name__, "settings": settings, "layout": self.layout.packed(), "params": arrays,
            "told": dict(self.told), **({"codes": {name: list(words) for name, words in self.codes.items()}} if self.codes else {}),
            **({"extents": {name: one.pack() for name, one in self.extents.items()}} if self.extents else {}),
        }  # fmt: skip
        return as_json(whole, indent=1).encode()

    def save(self, path: str | Path) -> None:
        """Write the model to a file."""
        Path(path).write_bytes(self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> FittedModel:
        """Read a model that `save` or a run folder wrote.

        Raises:
            DataError: the file is not such a model.
        """
        from . import methods

        try:
            whole = json.loads(Path(path).read_bytes())
            if whole["format"] != _FORMAT:
                raise ValueError(f"its format is {whole['format']!r}")
            if whole["method"] not in dir(methods):
                raise ValueError(f"its method is {whole['method']!r}")
            method = getattr(methods, whole["method"])(**whole["settings"])
            params = {name: _read_array(one) for name, one in whole["params"].items()}
            codes = {str(name): tuple(map(str, words)) for name, words in whole.get("codes", {}).items()}
            extents = {str(name): ColumnExtent.unpack(one) for name, one in whole.get("extents", {}).items()}
            return cls(method, FeatureLayout.unpacked(whole["layout"]), params, whole["told"], codes, extents)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is not a fitted model: {error}",
                where="FittedModel.load",
                remedy="give a file that FittedModel.save wrote",
            ) from error


def _as_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _as_plain(one) for name, one in value.items()}
    if isinstance(value, str | bool) or value is None:
        return value
    return np.asarray(value).tolist()


def _in_words(value: Any) -> Any:
    """Numbers that JSON does not have as words, which `numpy.array` reads: ``"nan"`` and ``"inf"``."""
    if isinstance(value, list):
        return [_in_words(one) for one in value]
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


def _read_array(one: Mapping[str, Any]) -> NDArray[Any]:
    kind = np.dtype(one["dtype"])
    if kind.kind not in "biufU":
        raise ValueError(f"an array of type {one['dtype']}")
    return np.array(one["values"], dtype=kind)
