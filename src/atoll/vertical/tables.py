"""One party's table, as vertical models read it: keys, features, and at the guest labels."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from atoll.core.algebra.rng import name_order
from atoll.core.calls import level_outside
from atoll.core.errors import DataError, nearest
from atoll.core.redaction import private
from atoll.data.dataset import Dataset
from atoll.data.missing import name_number, require_single_precision
from atoll.data.readers._words import require_plain_numbers
from atoll.data.readers.table import holes, require_no_key, without_holes
from atoll.data.units import extents_in, measure_tables, name_far_rows
from atoll.secure.psi import RowKeys
from atoll.secure.psi.keys import offset_of
from atoll.trees.objectives import LOGISTIC, SOFTMAX, SQUARED, TreeLoss

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["GuestLabels", "PartyTable", "read_class_names", "read_labels", "read_new_rows"]

Task = Literal["auto", "binary", "multiclass", "regression"]
MOST_CATEGORIES = 64
"""A column of categories has at most so many different ones (XGBoost's ``max_cat_threshold``)."""
MOST_CLASSES = 20
"""Whole numbers with more different values than this are amounts, not classes, unless ``task`` says otherwise."""


@dataclass(frozen=True)
class PartyTable:
    """The columns of one party.

    Attributes:
        party: its name, for errors.
        features: names of the columns.
        x: ``(rows, inputs)`` in the precision of the model; NaN is missing. A column of numbers is one input. A column of categories has one for each category, 1 for rows of it and 0 for
            others.
        columns: all columns by name, the keys and the labels among them.
        categories: the categories of each such column, in the order of their names.
        row_offset: added to row numbers in errors: 2 for the lines of a CSV file.
    """

    party: str
    features: tuple[str, ...]
    x: NDArray[Any]
    columns: Mapping[str, Any]
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    row_offset: int = 0

    @classmethod
    def of(
        cls,
        data: Any,
        party: str,
        *,
        key: str = "id",
        label: str | None = None,
        only: Sequence[str] | None = None,
        precision: type[np.floating[Any]] = np.float32,
        coded: Sequence[str] | None = None,
        known: Mapping[str, Sequence[str]] | None = None,
        as_listed: bool = False,
    ) -> PartyTable:
        """Read a party's data: a `DataTable`, a `Dataset` whose target is the label, a ``pandas.DataFrame``, or a dict of columns.

        Args:
            data: the data.
            party: whose they are.
            key: the column of the keys.
            label: the column of the labels, at the guest; ``None`` at a host, whose columns are all features. A `Dataset` has its target anyway.
            only: the features to read, in this order; by default all, in the order of their names, so that a table with its columns in another order gives the same model.
                Other columns may hold anything.
            precision: the floating-point type of the features.
            coded: columns whose numbers are codes of categories; others are left out of account. With ``None`` the model has no categories, and text is refused, else it is categories.
            known: the categories of a training. Rows of any other are of none of them; rows without a value are missing.
            as_listed: whether all features keep the table's order, as the pixels of an image and the columns of boosted trees do.

        Raises:
            DataError: there is no column of that name, a feature is no column of numbers or holds an infinity, or there are too many categories.
        """
        columns, own, texts = _columns_of(data, party)
        missing = [name for name in (key, label) if name is not None and name not in columns]
        if missing:
            raise DataError(
                f"no column {missing[0]!r}.{nearest(missing[0], columns)}",
                where=f"table of {party!r}",
                remedy=f"choose from {list(columns)[:20]}"
                + (", or name the party that has the labels: guest=" if missing[0] == label else ""),
            )
        absent = [name for name in only or () if name not in own]
        if absent:
            raise DataError(
                f"no column {absent[0]!r}, on which the model was trained",
                where=f"table of {party!r}",
                remedy="give the columns of the training",
            )
        features = tuple(name for name in own if name not in (key, label)) if only is None else tuple(only)
        if only is None and not as_listed:
            features = tuple(features[i] for i in name_order(features).tolist())
        if only is None and known is None:  # not of the rows that a model predicts
            for name in features:
                _require_feature(columns[name], name, party, offset_of(data), {*texts, *(coded or ())})
        rows = len(next(iter(columns.values())))
        # A reader takes a column without any value for text; it is one of numbers that are all missing.
        columns |= {name: np.full(rows, np.nan) for name in features if name not in texts and _is_empty(columns[name])}
        if known is None:
            text = [name for name in features if name in texts or np.asarray(columns[name]).dtype.kind in "UO"]
            if coded is None and text:
                raise _not_numbers(text[0], "text" if text[0] not in texts else "the codes of text", party)
            mine = [name for name in features if name in text or name in (coded or ())]
        else:
            mine = [name for name in features if name in known]
        names = {name: _category_names(columns[name], texts.get(name)) for name in mine}
        kept = {
            name: _find_categories(each, name, party) if known is None else tuple(map(str, known[name]))
            for name, each in names.items()
        }
        offset = offset_of(data)
        made = {name: (names[name], kept[name]) for name in kept}
        x = _features(columns, features, party, np.dtype(precision), made, offset)
        return cls(party, features, x, columns, kept, offset)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def groups(self) -> tuple[int, ...]:
        """The number of each input's column of categories, -1 for a column of numbers; empty if all are numbers."""
        if not self.categories:
            return ()
        coded = {name: k for k, name in enumerate(self.categories)}
        return tuple(coded.get(name, -1) for name in self.features for _ in range(len(self.categories.get(name, "1"))))

    @property
    def extents(self) -> dict[str, list[int]]:
        """Where nearly all numbers of each column with more than two of them lie, roughly: `ColumnExtent.pack` by name."""
        measured = measure_tables([self.columns], [name for name in self.features if name not in self.categories])
        return {name: extent.pack() for name, extent in measured.items() if extent.many}

    def keys(self, column: str, seed: int, repeats: Literal["first"] | None = None, reading: Any = None) -> RowKeys:
        """The distinct keys in the order of u; see `RowKeys`.

        Raises:
            DataError: two rows have one key, and ``repeats`` does not say that the first counts; or no row has a key.
        """
        where = f"table of {self.party!r}"
        made = RowKeys.of(self.columns, column, seed=seed, key=reading, where=where, row_offset=self.row_offset)
        made.require_distinct(repeats, where=where)
        return made


def read_new_rows(data: Any, party: str, half: Mapping[str, Any], *, key: str, precision: type[np.floating[Any]], warn: bool = True) -> PartyTable:  # fmt: skip
    """Read rows to predict, with the columns of a party's saved part of a model.

    Args:
        data: see `PartyTable.of`.
        party: whose they are.
        half: its saved part, with `PartyTable.extents`; a part of before has none.
        key: the column of the keys.
        precision: the floating-point type of the features.
        warn: whether to warn of columns of which most rows lie outside nearly all rows of the training, or that have a number such as -99.

    Raises:
        DataError: see `PartyTable.of`.
    """
    table = PartyTable.of(data, party, key=key, only=half["features"], precision=precision, known=half.get("categories", {}))  # fmt: skip
    extents = extents_in(half.get("extents", {}), f"model of {party!r}") if warn else {}
    for line in name_far_rows(extents, table.columns):
        warnings.warn(f"table of {party!r}: {line}", RuntimeWarning, stacklevel=level_outside())
    return table


@dataclass(frozen=True)
class GuestLabels:
    """The guest's labels.

    Attributes:
        values: numbers, or codes of classes, ``(rows,)``; NaN where a row has no label.
        objective: the loss that fits them.
        classes: names of the classes, in the order of the codes; empty for a regression.
    """

    values: NDArray[np.float64]
    objective: TreeLoss
    classes: tuple[str, ...] = ()

    @property
    def task(self) -> str:
        """``binary``, ``multiclass`` or ``regression``."""
        return {LOGISTIC: "binary", SOFTMAX: "multiclass", SQUARED: "regression"}[self.objective.name]

    def require_varied(self, rows: NDArray[Any]) -> None:
        """Refuse training rows whose labels are all the same, or lack one of two classes.

        Raises:
            DataError: they are.
        """
        found = self.values[rows]
        if len(np.unique(found[~np.isnan(found)])) < 2:
            raise DataError(
                f"all {len(rows)} training rows have the same label",
                where="labels",
                remedy="train on rows with different labels, or hold out fewer rows",
            )

    def require_all(self, rows: NDArray[Any]) -> None:
        """Refuse training rows without a label.

        Raises:
            DataError: there are some.
        """
        absent = int(np.isnan(self.values[rows]).sum())
        if absent:
            raise DataError(
                f"{absent} of {len(rows)} shared rows have no label",
                where="labels",
                remedy="leave these rows out of the guest's table, or use a model that trains with few labels, such as SFTL",
            )


_LARGEST = float(np.finfo(np.float32).max)


def read_labels(
    table: PartyTable, label: str, task: Task = "auto", precision: type[np.floating[Any]] = np.float32
) -> GuestLabels:
    """The labels of the guest's rows, numbers in the precision of the model.

    With ``auto``, two different values are a binary task, text and up to 20 different whole numbers classes, everything else a regression. A `Dataset` whose column ``labelled`` says
    that a row has no label has NaN there.

    Raises:
        DataError: a label is missing or infinite, or the labels do not fit the task.
    """
    values = np.asarray(table.columns[label])
    where = f"column {label!r} of {table.party!r}"
    known = np.array([bool(str(one).strip()) for one in values]) if values.dtype.kind == "U" else np.isfinite(values)
    has = np.ones(len(values), np.bool_)
    if "labelled" in table.columns and "labelled" not in table.features:
        has = np.asarray(table.columns["labelled"], np.bool_)
    if values.ndim != 1 or has.ndim != 1 or not (known | ~has).all():
        row = int(np.flatnonzero(~known & has)[0]) if values.ndim == has.ndim == 1 else 0
        raise DataError(
            f"the label of row {row + table.row_offset} is missing or infinite",
            where=where,
            remedy="leave the row out, or correct it",
        )
    every, values = values, values[has]
    distinct, codes = np.unique(values, return_inverse=True)
    whole = values.dtype.kind == "U" or bool((values == np.floor(values)).all())
    found: str = task
    if task == "auto":
        found = (
            "binary"
            if len(distinct) == 2
            else "multiclass"
            if whole and len(distinct) <= MOST_CLASSES
            else "regression"
        )
    if values.dtype.kind == "U" and found == "regression" and task == "auto":
        found = "multiclass"
    if (found == "regression" and values.dtype.kind == "U") or (found == "binary" and len(distinct) > 2):
        shown = ", ".join(private(one) for one in distinct[:3].tolist())
        raise DataError(
            f"{len(distinct)} different labels, such as {shown}, for task={found!r}",
            where=where,
            remedy="use task='auto', or correct the labels",
        )
    if found == "multiclass" and not whole:
        raise DataError(
            f"{len(distinct)} different labels with fractions, for task={found!r}",
            where=where,
            remedy="use task='regression', or give whole numbers or text for classes",
        )
    if found == "regression":
        _require_squares(values, where)
        if precision == np.float32:
            _require_single(values, label, where)
        return GuestLabels(_spread(values.astype(precision), has, len(every)), TreeLoss(SQUARED))
    names = tuple(_name_class(one) for one in distinct.tolist())
    objective = TreeLoss(LOGISTIC) if found == "binary" else TreeLoss(SOFTMAX, len(distinct))
    return GuestLabels(_spread(codes, has, len(every)), objective, names)


def _name_class(value: Any) -> str:
    return value if isinstance(value, str) else name_number(value)


def read_class_names(table: PartyTable, label: str) -> NDArray[np.str_]:
    """The class of each row by the name that `read_labels` would give it; "" for a row without a label, which is NaN or blank.

    Raises:
        DataError: a row has several.
    """
    values = np.asarray(table.columns[label])
    if values.ndim != 1:
        raise DataError(
            f"labels of shape {values.shape}", where=f"column {label!r} of {table.party!r}", remedy="give a label a row"
        )
    missing = [one is None or one != one or not str(one).strip() for one in values.tolist()]
    return np.array(["" if no else _name_class(one) for one, no in zip(values.tolist(), missing, strict=True)], np.str_)


def _spread(values: NDArray[Any], has: NDArray[np.bool_], rows: int) -> NDArray[np.float64]:
    """Values of the rows that have one, among all rows; NaN elsewhere."""
    made = np.full(rows, np.nan)
    made[has] = values
    return made


def _require_squares(values: NDArray[Any], where: str) -> None:
    """Refuse labels whose gains, sums of gradients squared, are beyond single precision, so that no split could be told from another."""
    distance = np.abs(values - values.mean()).max(initial=0.0) if np.abs(values).max(initial=0.0) < _LARGEST else np.inf
    if not len(values) * distance**2 < _LARGEST:
        raise DataError(
            f"labels up to {private(float(np.abs(values).max()))}, whose squares are beyond single precision",
            where=where,
            remedy="divide the labels by a fixed number, such as 1e9",
        )


def _columns_of(data: Any, party: str) -> tuple[dict[str, Any], tuple[str, ...], Mapping[str, Sequence[str]]]:
    """All columns by name, the names of those that may be features, and what text the codes of some stand for."""
    if hasattr(data, "dataset") and not isinstance(data, Dataset):
        data = data.dataset()  # a shard
    if isinstance(data, Dataset):
        x = np.asarray(data["x"])
        x = x.reshape(len(x), -1)  # an image's numbers are columns in C order
        names = data.about.features or tuple(f"x{i}" for i in range(x.shape[1]))
        columns = {name: x[:, i] for i, name in enumerate(names)}
        others = {name: np.asarray(data[name]) for name in data.columns if name not in ("x", *columns)}
        return {**columns, **others}, tuple(names), data.about.categories
    if isinstance(data, Mapping):
        columns = {str(name): np.asarray(values) for name, values in data.items()}
    elif hasattr(data, "columns") and hasattr(data, "__getitem__"):
        columns = {str(name): np.asarray(data[name]) for name in data.columns}
    else:
        raise DataError(
            f"a {type(data).__name__} is no table",
            where=f"data of {party!r}",
            remedy="give an atoll.data.DataTable, a Dataset, a pandas.DataFrame or a dict of columns",
        )
    sizes = {len(values) if values.ndim else -1 for values in columns.values()}
    if len(sizes) != 1:
        raise DataError(
            f"columns of {sorted(sizes)} rows", where=f"data of {party!r}", remedy="give columns of one length"
        )
    return columns, tuple(columns), {}


def _require_feature(values: Any, name: str, party: str, offset: int, listed: Collection[str]) -> None:
    """Refuse a column that is no feature, by the rules of the readers of `atoll.data`: a key beside the one of the job, or amounts that text hides.

    Raises:
        DataError: names the party, the column and a value.
    """
    found, where = np.asarray(values), f"table of {party!r}"
    if name in listed or found.ndim != 1 or found.dtype.kind not in "iufU":
        return
    if found.dtype.kind == "U" and not holes(found).all():
        require_plain_numbers(without_holes(found), name, where, offset)
    require_no_key(found, name, where, f"leave the column out of the table (atoll vertical: --drop {name})")


def _is_empty(values: Any) -> bool:
    """Tell whether a column of text holds none."""
    found = np.asarray(values)
    return found.dtype.kind == "U" and not np.char.strip(found).astype(np.bool_).any()


def _category_names(values: Any, texts: Sequence[str] | None) -> NDArray[Any]:
    """The category of each row as text, blanks at its ends cut off; empty where there is none."""
    found = np.asarray(values)
    if texts is not None:
        found = np.array([*texts, ""])[np.where(np.isnan(found), len(texts), found).astype(np.int64)]
    if found.dtype.kind in "biuf":
        return np.array(["" if one != one else f"{one:.17g}" for one in found.astype(np.float64).tolist()])
    empty = [one is None or one != one for one in found.tolist()]
    return np.array(["" if none else str(one).strip() for one, none in zip(found.tolist(), empty, strict=True)])


def _find_categories(names: NDArray[Any], column: str, party: str) -> tuple[str, ...]:
    """The different categories, by name.

    Raises:
        DataError: they are more than 64.
    """
    found = sorted({one for one in names.tolist() if one})
    if len(found) > MOST_CATEGORIES:
        raise DataError(
            f"column {column!r} has {len(found)} categories, more than {MOST_CATEGORIES}",
            where=f"table of {party!r}",
            remedy="leave the column out, or give rare categories one name",
        )
    return tuple(found)


def _features(
    columns: Mapping[str, Any], names: tuple[str, ...], party: str, dtype: np.dtype[Any],
    categories: Mapping[str, tuple[NDArray[Any], tuple[str, ...]]], offset: int = 0,
) -> NDArray[Any]:  # fmt: skip
    rows = len(next(iter(columns.values())))
    made = np.empty((rows, sum(len(categories[name][1]) if name in categories else 1 for name in names)), dtype)
    i = -1
    for name in names:
        if name in categories:
            of_rows, known = categories[name]
            for one in known:
                i += 1
                made[:, i] = np.where(of_rows == "", np.nan, of_rows == one)
            continue
        i += 1
        values = np.asarray(columns[name])
        if values.ndim != 1 or values.dtype.kind not in "biuf":
            raise _not_numbers(name, "text" if values.dtype.kind in "UO" else str(values.dtype), party)
        # Squares of values beyond single precision overflow in double precision too.
        infinite = np.abs(values.astype(np.float64)) > np.finfo(np.float32).max
        if infinite.any():
            row = int(np.flatnonzero(infinite)[0])
            raise DataError(
                f"column {name!r} is infinite in row {row + offset}, or beyond single precision",
                where=f"table of {party!r}",
                remedy="correct the value, or leave it empty",
            )
        if dtype == np.float32:
            _require_single(values, name, f"table of {party!r}")
        made[:, i] = values
    return made


def _require_single(values: NDArray[Any], name: str, where: str) -> None:
    """See `require_single_precision`; the column is of one party.

    Raises:
        DataError: values that differ become equal.
    """
    try:
        require_single_precision(values, name, where)
    except DataError as error:
        remedy = str(error.remedy).replace(" at all parties", "")
        raise DataError(error.what, where=where, remedy=f"{remedy}, or use a model in double precision, such as VerticalLinear") from None  # fmt: skip


def _not_numbers(column: str, kind: str, party: str) -> DataError:
    return DataError(
        f"column {column!r} holds {kind}, not numbers",
        where=f"table of {party!r}",
        remedy="leave the column out, or replace its values by numbers that have their order",
    )
