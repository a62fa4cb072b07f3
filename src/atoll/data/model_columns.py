"""What a saved model knows of the rows that it takes, and models that predict the rows of any table by the names of its columns."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.calls import level_outside
from atoll.core.errors import CompositionError, DataError, nearest
from atoll.core.extras import need
from atoll.core.redaction import private

from .dataset import About, Dataset
from .islands import Islands
from .missing import name_number
from .readers._words import is_number, read_truths
from .readers.table import holes
from .table import DataTable
from .units import ColumnExtent, extents_of, name_far_rows

__all__ = ["RowPredictions", "ModelColumns", "ModelEstimator", "TableModel", "as_numbers", "type_classes"]

Array = NDArray[Any]
_SHOWN = 20
"""Most columns that an error lists."""
_CLIENTS = 100
"""Most clients that are looked at for a row of the other class."""


@dataclass(frozen=True)
class ModelColumns:
    """The columns that a model was trained on, the codes of text, missing values, and the classes that it predicts.

    All kinds of saved models have it: trees in the model file's own attributes, trainings in the metadata of ``model.safetensors``, fits as their layout.

    Attributes:
        features: names of the columns, in the model's order; ``x0``, ``x1``, ... if the data had no names.
        categories: column of text -> its values, in the order of their codes.
        missing: whether features may be missing.
        dtype: NumPy's name of the type of the features.
        shape: shape of a row, if it is not ``(features,)``, as of an image.
        task: see `atoll.data.About`; empty if the model has no label.
        classes: names of the classes, in the order of their codes; empty if it predicts no class.
        extents: column of numbers -> where nearly all values of the training lay, roughly; empty of features without names and of models that promise privacy.
    """

    features: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    missing: bool = False
    dtype: str = "float32"
    shape: tuple[int, ...] = ()
    task: str = ""
    classes: tuple[str, ...] = ()
    extents: Mapping[str, ColumnExtent] = field(default_factory=dict, hash=False, compare=False)

    @classmethod
    def of(cls, data: Any, *, private: bool = False) -> ModelColumns | None:
        """Return the columns of a population; ``None`` if its features are no numbers, as texts are, or nothing describes them.

        Args:
            data: `Islands`, or their outline: clients (``shard``) and a description (``about``).
            private: whether the model promises privacy, and says nothing of its rows but what its columns are called.
        """
        about, rows = getattr(data, "about", None), data.shard(0) if len(data) else {}
        if about is None or "x" not in rows:
            return None
        x = np.asarray(rows["x"])
        if x.dtype.kind not in "biuf" or x.ndim < 2:
            return None
        width = int(np.prod(x.shape[1:]))
        names = tuple(about.features) if len(about.features) == width else _number_names(width)
        classes = tuple(about.labels)
        if about.task == "binary":
            classes = classes or (str(_lower_class(data)), "1")
        elif about.task in ("classification", "multilabel"):
            classes = classes or tuple(map(str, range(about.classes or 0)))
        # Between sites they have told the server, if they do; else the rows are here.
        told = getattr(data, "extents", None)
        measured = {} if private or len(about.features) != width else extents_of(data) if told is None else told
        return cls(
            names, dict(about.categories), about.missing_features, x.dtype.name, x.shape[1:] if x.ndim > 2 else (), about.task, classes,
            {name: extent for name, extent in measured.items() if extent.many},
        )  # fmt: skip

    def packed(self) -> str:
        """Return the columns as one line of JSON without an equals sign, for a file of any library."""
        whole = {name: getattr(self, name) for name in ("features", "missing", "dtype", "shape", "task", "classes")}
        if self.features == _number_names(len(self.features)):
            whole["features"] = len(self.features)
        whole["categories"] = {name: list(values) for name, values in self.categories.items()}
        if self.extents:
            whole["extents"] = {name: extent.pack() for name, extent in self.extents.items()}
        return json.dumps(whole).replace("=", "\\u003d")

    @classmethod
    def unpacked(cls, text: str, where: str) -> ModelColumns:
        """Return the inverse of `packed`.

        Raises:
            DataError: the text is something else.
        """
        try:
            whole = json.loads(text)
            if isinstance(whole["features"], int):
                whole["features"] = _number_names(whole["features"])
            tuples = {name: tuple(map(str, whole[name])) for name in ("features", "classes")}
            words = {str(name): tuple(map(str, values)) for name, values in whole["categories"].items()}
            shape, dtype = tuple(int(n) for n in whole["shape"]), np.dtype(str(whole["dtype"]))
            if dtype.kind not in "biuf":
                raise ValueError(f"features of type {dtype}")
            extents = {str(name): ColumnExtent.unpack(one) for name, one in whole.get("extents", {}).items()}
            return cls(
                **tuples, categories=words, missing=bool(whole["missing"]), dtype=dtype.name, shape=shape, task=str(whole["task"]), extents=extents
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"the model's columns cannot be read: {error}", where=where, remedy="save the model again"
            ) from error

    @property
    def about(self) -> About:
        """The description of a data set with these columns."""
        classes = len(self.classes) or None
        return About(
            "rows", self.task or "unlabelled", classes, "", self.classes, self.features, self.missing, self.categories
        )

    def select(self, rows: Any, where: str = "rows") -> DataTable:
        """Return the model's columns of a table, matched by name and in the model's order, text written as the model knows it; other columns are left out.

        Args:
            rows: a CSV or Parquet file, a table, a frame, or a dict of columns.
            where: the place, for errors; a file has its own.

        Raises:
            DataError: a column is missing, holds text in place of numbers or a text that the model does not know, or lacks values that the model needs; names the
                column, the row and the nearest name.
        """
        place, first = _place_of(rows, where)
        table = table_of_rows(rows, place)
        self.require_all(table, place)
        for name in self.features:
            self._require_known(table[name], name, place, first)
        return DataTable({name: self._rewritten(table[name], name) for name in self.features}, name=place)

    def require_all(self, table: DataTable, where: str) -> None:
        """Refuse a table that lacks a column of the training; other columns may be there.

        Raises:
            DataError: names the first such column and the nearest one.
        """
        lacking = [name for name in self.features if name not in table]
        if lacking:
            more = f" ({len(lacking)} are missing: {', '.join(lacking[:8])})" if len(lacking) > 1 else ""
            unused = [name for name in table.columns if name not in self.features]
            raise DataError(
                f"no column {lacking[0]!r}{more}.{nearest(lacking[0], unused or table.columns)}",
                where=where,
                remedy=f"the model was trained on {_list_names(self.features)}: give all of these columns, in any order",
            )

    def _rewritten(self, values: Array, name: str) -> Array:
        """Text as the model writes it: 1 for 1.0, and nothing where a value is missing."""
        words = self.categories.get(name)
        if words is None:
            return values
        codes = _code_words(values, words)
        return np.array([*words, ""])[np.where(np.isnan(codes), len(words), codes).astype(np.int64)]

    def _require_known(self, values: Array, name: str, where: str, first: int) -> None:
        hole = holes(values)
        if hole.any() and not self.missing:
            raise DataError(
                f"{int(hole.sum())} values of column {name!r} are missing, the first in row {int(np.argmax(hole)) + first}",
                where=where,
                remedy="fill them in, or leave these rows out: the model was trained on rows without missing values",
            )
        words = self.categories.get(name)
        if words is not None:
            unknown = np.isnan(_code_words(values, words)) & ~hole
            if unknown.any():
                k = int(np.argmax(unknown))
                word = _write_word(values[k])
                raise DataError(
                    f"column {name!r} has {private(repr(word))} in row {k + first}, which the model does not know.{nearest(word, words)}",
                    where=where,
                    remedy=f"correct the value, or leave the row out: the model knows {_list_names(words)}",
                )
        elif values.dtype.kind not in "biuf" and not hole.all() and read_truths(values) is None:
            k = int(np.argmax(~hole & ~np.array([is_number(str(value)) for value in values.tolist()], bool)))
            raise DataError(
                f"column {name!r} has the text {private(repr(str(values[k])))} in row {k + first}, but the model was trained on numbers",
                where=where,
                remedy="correct the value; if the comma is the decimal sign of the file set decimal=','",
            )

    def matrix(self, rows: Any, where: str = "rows") -> Array:
        """Return the rows as the model takes them, ``(rows, ...)``.

        Args:
            rows: as in `select`, or a data set, or an array whose columns are in the model's order and whose text is coded.
            where: the place, for errors.

        Raises:
            DataError: as in `select`; or an array has another shape.
        """
        if isinstance(rows, Dataset):
            rows = np.asarray(rows.with_features_of(self.about)["x"])
        if isinstance(rows, np.ndarray | list | tuple):
            made = self._of_array(np.asarray(rows), where)
            self.warn_of_far_rows(dict(zip(self.features, made.T, strict=True)) if made.ndim == 2 else {})
            return made
        table = self.select(rows, where)
        coded = [as_numbers(table[name], self.categories.get(name)) for name in self.features]
        self.warn_of_far_rows(dict(zip(self.features, coded, strict=True)))
        return self._of_array(np.stack(coded, axis=1), _place_of(rows, where)[0])

    def warn_of_far_rows(self, rows: Mapping[str, Any]) -> None:
        """Warn of columns of which most rows lie outside nearly all rows of the training, by a factor of two or more: their unit may be another.

        Args:
            rows: column -> its numbers, ``(rows,)``.
        """
        for line in name_far_rows(self.extents, rows):
            warnings.warn(line, RuntimeWarning, stacklevel=level_outside())

    def _of_array(self, x: Array, where: str) -> Array:
        shape = self.shape or (len(self.features),)
        if x.shape[1:] not in (shape, (int(np.prod(shape)),)) or x.dtype.kind not in "biuf":
            raise DataError(
                f"rows of type {x.dtype} and shape {list(x.shape[1:])}, and the model takes numbers of shape {list(shape)}",
                where=where,
                remedy=f"give one column a feature, in the order {_list_names(self.features)}; or a table with these columns, in any order",
            )
        hole = np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool)
        with np.errstate(over="ignore", invalid="ignore"):
            made = x.reshape(len(x), *shape).astype(self.dtype)
        if hole.any() and (not self.missing or made.dtype.kind != "f"):
            raise DataError(
                "values are missing (NaN)", where=where, remedy="fill them in: the model was trained on rows without"
            )
        if made.dtype.kind == "f" and not (np.isfinite(made) | hole.reshape(made.shape)).all():
            raise DataError(f"a value is infinite, or too large for {self.dtype}", where=where, remedy="correct it")
        return made

    def outline(self) -> Islands:
        """Return one client with a few made-up rows of this form: what a learner needs to be made again."""
        rows = max(2, len(self.classes))
        columns: dict[str, ArrayLike] = {"x": np.zeros((rows, *(self.shape or (len(self.features),))), self.dtype)}
        about = self.about
        if self.task in ("classification", "binary"):
            columns["y"] = np.resize(
                np.arange(len(self.classes)) if self.task == "classification" else self.values, rows
            )
        elif self.task == "regression":
            columns["y"] = np.zeros(rows, np.float32)
        made = Dataset(columns, task=about.task, classes=about.classes if self.task == "classification" else None)
        return Islands.from_datasets(
            {"rows": Dataset._of(made._base, None, rows, replace(about, classes=made.classes))}
        )

    @property
    def values(self) -> Array:
        """The classes as numbers if all of them are, else as text."""
        return type_classes(self.classes)

    def decide(self, probabilities: Array) -> RowPredictions:
        """Return the most probable classes; of equal ones the first."""
        return RowPredictions(self.values[np.asarray(probabilities).argmax(axis=1)], np.asarray(probabilities))


def _lower_class(data: Any) -> int:
    """The other class of a binary task than 1: 0 or -1."""
    for client in range(min(len(data), _CLIENTS)):
        rows = data.shard(client)
        if "y" in rows and len(rows) and (least := int(np.asarray(rows["y"]).min())) < 1:
            return least
    return -1


def _number_names(count: int) -> tuple[str, ...]:
    """The names of features without names."""
    return tuple(f"x{k}" for k in range(count))


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _place_of(rows: Any, where: str) -> tuple[str, int]:
    """The place that errors name, and the number of the first row there: line 2 of a CSV file."""
    if isinstance(rows, str | Path):
        return str(rows), 1 if Path(rows).suffix in (".parquet", ".pq") else 2
    return where, rows.row_offset if isinstance(rows, DataTable) else 0


def table_of_rows(rows: Any, where: str) -> DataTable:
    """The rows of a file, a frame or a dict of columns as a table.

    Raises:
        DataError: there is no such file.
    """
    if isinstance(rows, DataTable):
        return rows
    if isinstance(rows, str | Path):
        if not Path(rows).is_file():
            raise DataError("there is no such file", where=where, remedy="give a CSV or Parquet file with rows")
        return DataTable.read(rows)
    return DataTable.of(rows, where)


def as_numbers(values: Array, words: Sequence[str] | None) -> Array:
    """A column as the model takes it; text as codes, and NaN where a value is missing."""
    if words is not None:
        return _code_words(values, words)
    if values.dtype.kind != "U":
        return values
    truths = read_truths(values)
    return np.full(len(values), np.nan) if truths is None else truths


def _code_words(values: Array, words: Sequence[str]) -> NDArray[np.float64]:
    """The code of each text, NaN of one that is missing or unknown; numbers count as the texts that write them."""
    place = {str(word): float(code) for code, word in enumerate(words)}
    found, inverse = np.unique(values, return_inverse=True)
    codes = [place.get(str(value), place.get(_write_word(value), np.nan)) for value in found]
    return np.array(codes, dtype=np.float64)[inverse.reshape(-1)]


def _write_word(value: Any) -> str:
    return name_number(value) if isinstance(value, float | np.floating) else str(value)


def type_classes(names: Sequence[str]) -> Array:
    """Return names of classes as whole numbers or numbers if all of them are written as such, else as text.

    ``007`` and ``7`` are text: as numbers they would be one class.
    """
    texts = [*map(str, names)]
    for kind, write in ((np.int64, str), (np.float64, repr)):
        try:
            made = np.array(texts).astype(kind)
        except (ValueError, OverflowError):
            continue
        if all(text in (write(value), f"{value:g}") for text, value in zip(texts, made.tolist(), strict=True)):
            return made
    return np.array(texts, dtype=np.str_)


@dataclass(frozen=True)
class RowPredictions:
    """What a model says of rows.

    Attributes:
        prediction: classes or numbers, ``(rows,)``; of several targets or components ``(rows, outputs)``.
        probabilities: ``(rows, classes)``; ``None`` if the model has none.
    """

    prediction: Array
    probabilities: Array | None = None


@dataclass(frozen=True)
class TableModel:
    """A model that predicts the rows of any table: trees, a fit or a training. `atoll.runs.load_model` reads one.

    Attributes:
        title: what it is, for people.
        columns: the columns that it takes.
        answer: takes rows and the place that errors name, and predicts.
        probable: whether it has probabilities of classes.
    """

    title: str
    columns: ModelColumns
    answer: Callable[[Any, str], RowPredictions] = field(repr=False)
    probable: bool = False

    def predict(self, rows: Any, where: str = "rows") -> Array:
        """Return the predicted classes or numbers, ``(rows,)``.

        Args:
            rows: a file, a table, a frame or a dict of columns, matched by name; or an array in the model's order.
            where: the place, for errors.

        Raises:
            DataError: the rows are not what the model takes, see `ModelColumns.select`.
        """
        return self.answer(rows, where).prediction

    def predict_proba(self, rows: Any, where: str = "rows") -> Array:
        """Return the probabilities of the classes ``columns.classes``, ``(rows, classes)``; the arguments are those of `predict`.

        Raises:
            CompositionError: the model has no probabilities.
        """
        found = self.answer(rows, where).probabilities if self.probable else None
        if found is None:
            raise CompositionError(
                f"{self.title} has no probabilities of classes", where="predict_proba", remedy="use predict"
            )
        return found

    def to_sklearn(self) -> ModelEstimator:
        """Return a fitted scikit-learn estimator that predicts what this model predicts."""
        return ModelEstimator(self)


class ModelEstimator:
    """A fitted scikit-learn estimator around a model; it takes frames, whose columns it finds by name, and arrays in the model's order.

    Args:
        model: the model.

    Attributes:
        feature_names_in_: names of the columns.
        n_features_in_: their number.
        classes_: the classes, if it is a classifier.
    """

    def __init__(self, model: TableModel) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        # scikit-learn asks with hasattr what an estimator can do.
        model = self.__dict__.get("model")
        if model is not None:
            if name == "classes_" and model.columns.classes:
                return model.columns.values
            if name == "predict_proba" and model.probable:
                return model.predict_proba
            if name == "_estimator_type":
                return "classifier" if model.columns.classes else "regressor"
        raise AttributeError(name)

    @property
    def feature_names_in_(self) -> Array:
        """Names of the columns."""
        return np.array(self.model.columns.features, dtype=object)

    @property
    def n_features_in_(self) -> int:
        """Number of columns."""
        return len(self.model.columns.features)

    def predict(self, x: Any) -> Array:
        """Return classes or numbers."""
        return self.model.predict(x)

    def score(self, x: Any, y: ArrayLike) -> float:
        """Return the share of right classes, or of a regression R²."""
        found, truth = self.predict(x), np.asarray(y)
        if self.model.columns.classes:
            return float((found == truth).mean())
        return float(1 - ((truth - found) ** 2).sum() / ((truth - truth.mean()) ** 2).sum())

    def fit(self, x: Any, y: Any = None) -> ModelEstimator:
        """Refused: the model was trained over a federation.

        Raises:
            CompositionError: always.
        """
        raise CompositionError(
            "a federated model is not fitted again to rows of one place",
            where="fit",
            remedy="use it as it is: in scikit-learn's tools, inside sklearn.frozen.FrozenEstimator(model)",
        )

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the model, as scikit-learn asks for the arguments of an estimator."""
        del deep
        return {"model": self.model}

    def set_params(self, **params: Any) -> ModelEstimator:
        """Replace the model."""
        self.model = params.get("model", self.model)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        utils, classes = need("sklearn.utils", "sklearn", "an estimator"), self.model.columns.classes
        return utils.Tags(
            estimator_type="classifier" if classes else "regressor",
            target_tags=utils.TargetTags(required=False),
            classifier_tags=utils.ClassifierTags(multi_class=len(classes) > 2) if classes else None,
            regressor_tags=None if classes else utils.RegressorTags(),
        )
