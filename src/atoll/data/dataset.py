"""`Dataset`: rows with a target; `About`, its description without rows; and how labels become codes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.errors import DataError, nearest
from atoll.core.redaction import private

from ._checks import Array, as_columns, check_labels, resolve_task, whole_labels
from .missing import Missing
from .units import require_one_unit

__all__ = ["About", "Dataset", "Rows", "common_labels", "named", "places_in", "root", "united"]


# `About`: the description of a data set, without its rows.


@dataclass(frozen=True)
class About:
    """The description of a data set, without its rows.

    Attributes:
        name: short name.
        task: "classification", "binary", "regression", "multilabel", "tokens" (a class for each entry of a row) or "unlabelled".
        classes: number of classes (of labels, if multilabel); ``None`` for a regression.
        citation: who made the data, and where it was published.
        labels: the classes' names, in code order, if known.
        features: names of the features in ``x``, if known.
        missing_features: whether features may be missing: NaN in ``x``.
        categories: of features that were text, the values in the order of their codes.
        reordered: whether tables had the features in different orders, so that these are alphabetical and nobody's own.
    """

    name: str = "data"
    task: str = "unlabelled"
    classes: int | None = None
    citation: str = ""
    labels: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    missing_features: bool = False
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False, repr=False)
    reordered: bool = field(default=False, compare=False, repr=False)


# Class names of data sets that meet: one code means one class, even if the rows were read separately.


def united(names: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """All class names, in the order of the codes that reading the rows together would give: numbers by value, words alphabetically."""
    union = {label for labels in names for label in labels}
    words = sorted(union)  # 7 and 007 are one number, and their order is not that of a set
    return tuple(sorted(words, key=float) if all(map(_is_number, words)) else words)


def named(about: About) -> bool:
    """Whether each class code has a name."""
    return about.task == "classification" and len(about.labels) == about.classes


def common_labels(own: About, other: About, codes: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the labels that give test rows the codes of the training rows.

    Args:
        own: the description of the training rows.
        other: the description of the test rows.
        codes: the classes of the test rows.

    Raises:
        DataError: the test rows have a class that the training rows lack, so that one code would mean two classes.
    """
    mine, theirs = own.labels, other.labels
    if theirs == mine[: len(theirs)]:
        return theirs
    others = [theirs[code] for code in np.unique(codes) if theirs[code] not in mine]
    if others and mine == theirs[: len(mine)]:
        return theirs
    if others:
        raise DataError(
            f"the test rows have the class {private(others[0])}, but the training rows have only {private(', '.join(mine[:8]))}",
            where=f"data set {other.name!r}",
            remedy="read both with the same classes, in one order: categories={target: [...]}",
        )
    return mine


def places_in(labels: tuple[str, ...], own: tuple[str, ...]) -> NDArray[np.int64]:
    """The code among ``labels`` of each label in ``own``; -1 for a class that is missing there."""
    code = {label: k for k, label in enumerate(labels)}
    return np.array([code.get(label, -1) for label in own], dtype=np.int64)


# Columns have names: tables of one data set are matched by them, in any order.


def has_named_features(data: Dataset) -> bool:
    """Whether ``x`` has one named column a feature."""
    names, x = data.about.features, data._base.get("x")
    return bool(names) and x is not None and x.ndim == 2 and x.shape[1] == len(names)


def require_columns(found: Iterable[str], wanted: Iterable[str], where: str, *, exactly: bool = False) -> None:
    """Refuse a table that lacks a column, or (``exactly``) has one that the others lack.

    Raises:
        DataError: names the table, the column, and the nearest name that the table has.
    """
    own, needed = list(found), list(wanted)
    lacking = [name for name in needed if name not in own]
    extra = [name for name in own if name not in needed]
    if lacking:
        require_one_unit(own, needed, where, "the other tables")
        name = lacking[0]
        more = f" ({len(lacking)} are missing: {', '.join(lacking[:8])})" if len(lacking) > 1 else ""
        raise DataError(
            f"no column {name!r}{more}.{nearest(name, extra or own)}",
            where=where,
            remedy=f"its columns are {', '.join(own[:20])}; give all tables the same columns, in any order",
        )
    if extra and exactly:
        raise DataError(
            f"column {extra[0]!r} is in no other table.{nearest(extra[0], needed)}",
            where=where,
            remedy=f"leave it out: drop=[{extra[0]!r}], or name the columns that you use: features=[...]",
        )


def order_columns(names: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """One order for all tables: theirs if it is the same everywhere, else alphabetical, so that no order of tables or of columns counts."""
    first = tuple(names[0])
    return first if all(tuple(each) == first for each in names) else tuple(sorted(first))


def unite_categories(lists: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """One coding of a text column: the list that has all values, if there is one such order; else all values, sorted."""
    found = {tuple(each) for each in lists}
    whole = {each for each in found if all(set(other) <= set(each) for other in found)}
    return whole.pop() if len(whole) == 1 else united(found)


def _other_kind(column: str, name: str, text: bool) -> DataError:
    here, there = ("text", "numbers") if text else ("numbers", "text")
    return DataError(
        f"column {column!r} holds {here}, and {there} in the other tables",
        where=f"data set {name!r}",
        remedy="write the column the same way everywhere, or leave it out with drop=",
    )


def _is_number(label: str) -> bool:
    try:
        return "_" not in label and math.isfinite(float(label))
    except ValueError:
        return False


Rows = slice | NDArray[np.int64]


@checked_call
class Dataset:
    """Immutable named columns: arrays that share their first dimension, the rows.

    By convention the features are the column ``x`` and the labels the column ``y``; there may be others, such as
    ``writer``. Integer labels of a classification are stored as int64. Selecting rows is lazy: ``take`` and
    ``split`` copy a column only when you access it.

    Args:
        columns: maps a name to an array-like, ``(rows, ...)``.
        task: see `About`; inferred from ``y`` when omitted (floats: regression; -1/+1: binary; other integers:
            classification; no ``y``: unlabelled).
        classes: number of classes; inferred as ``max(y) + 1`` when omitted.
        name: short name for tables and errors.
        citation: the source of the data.
        labels: class names in code order.
        features: names of the features in ``x``.
        test: test rows that the server keeps for evaluation.
        missing: values of ``y`` that mean "no label", such as ``-1``; NaN always does. If a label is missing, a column ``labelled`` says which exist,
            and ``y`` holds 0 in place of the others.
        missing_features: whether features may be missing: NaN in ``x``. Jobs that cannot use them refuse such data.
        categories: of features that were text, the values in the order of their codes.

    Raises:
        DataError: ragged columns, values that are not finite, or labels outside the range.

    Example:
        >>> data = Dataset({"x": [[0.0], [1.0], [2.0]], "y": [0, 1, 1]}, name="toy")
        >>> data
        Dataset('toy': 3 rows, x float64[1], y int64, classification of 2 classes)
        >>> data.take([2, 0])["x"].tolist()
        [[2.0], [0.0]]
    """

    __slots__ = ("_about", "_base", "_cache", "_length", "_rows", "_test")
    __iter__ = None  # a data set is neither a sequence of rows nor a mapping of columns

    _about: About
    _base: Mapping[str, Array]
    _cache: dict[str, Array]
    _length: int
    _rows: Rows | None
    _test: Dataset | None

    def __init__(
        self,
        columns: Mapping[str, ArrayLike],
        *,
        task: str | None = None,
        classes: int | None = None,
        name: str = "data",
        citation: str = "",
        labels: Sequence[str] = (),
        features: Sequence[str] = (),
        test: Dataset | None = None,
        missing: Missing = None,
        missing_features: bool = False,
        categories: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        where = f"data set {name!r}"
        arrays = as_columns(columns, where, missing, missing_features)
        there = arrays.get("labelled") if "y" in arrays else None
        if there is not None:
            arrays["y"] = whole_labels(arrays["y"], task, there)
            if task is None and not classes and not labels and not there.any():
                task = "unlabelled"
        known = arrays.get("y") if there is None or there.ndim > 1 else arrays["y"][there]
        task = resolve_task(known, task, where)
        if "y" in arrays:
            if classes is None and labels and task == "classification":
                classes = len(labels)
            arrays["y"], classes = check_labels(arrays["y"], task, classes, where, there)
        coded = {str(key): tuple(map(str, values)) for key, values in (categories or {}).items()}
        about = About(name, task, classes, citation, tuple(labels), tuple(features), missing_features, coded)
        self._fill(arrays, None, len(next(iter(arrays.values()))), about, test)

    def _fill(
        self,
        base: Mapping[str, Array],
        rows: Rows | None,
        length: int,
        about: About,
        test: Dataset | None,
    ) -> None:
        self._base, self._rows, self._length = base, rows, length
        self._about, self._test = about, test
        self._cache = {}

    @classmethod
    def _of(
        cls,
        base: Mapping[str, Array],
        rows: Rows | None,
        length: int,
        about: About,
        test: Dataset | None = None,
    ) -> Dataset:
        """Make a data set of columns that have been checked before."""
        made = object.__new__(cls)
        made._fill(base, rows, length, about, test)
        return made

    @property
    def about(self) -> About:
        """Name, task, classes, citation and names of features and labels."""
        return self._about

    @property
    def name(self) -> str:
        """Short name."""
        return self._about.name

    @property
    def task(self) -> str:
        """The kind of target: see `About`."""
        return self._about.task

    @property
    def classes(self) -> int | None:
        """Number of classes, or ``None`` for a regression."""
        return self._about.classes

    @property
    def citation(self) -> str:
        """The source of the data."""
        return self._about.citation

    @property
    def test(self) -> Dataset | None:
        """Test rows that the server keeps for evaluation, if any."""
        return self._test

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._base)

    @property
    def x(self) -> Array:
        """The features."""
        return self["x"]

    @property
    def y(self) -> Array:
        """The labels or targets."""
        return self["y"]

    @property
    def nbytes(self) -> int:
        """Size in bytes once all columns are copied."""
        return self._length * self.row_bytes

    @property
    def row_bytes(self) -> int:
        """Size of one row in bytes."""
        return sum(a.dtype.itemsize * math.prod(a.shape[1:]) for a in self._base.values())

    def __len__(self) -> int:
        return self._length

    def __contains__(self, column: object) -> bool:
        return column in self._base

    def __getitem__(self, column: str) -> Array:
        if self._rows is None:
            found = self._base.get(column)
        else:
            found = self._cache.get(column)
            if found is None and column in self._base:
                found = self._base[column][self._rows]
                found.flags.writeable = False
                self._cache[column] = found
        if found is None:
            raise DataError(
                f"no column {column!r}.{nearest(str(column), self._base)}",
                where=f"data set {self.name!r}",
                remedy=f"use one of {', '.join(self._base)}",
            )
        return found

    def take(self, rows: ArrayLike | slice) -> Dataset:
        """Return a view of some rows, in the given order, with the same test rows; a column is copied when you access it.

        Args:
            rows: row numbers, a boolean mask or a slice.

        Raises:
            DataError: a row number outside ``0..len-1`` or a mask of another length.
        """
        made = self._view(rows)
        made._test = self._test
        return made

    def _view(self, rows: ArrayLike | slice) -> Dataset:
        """Return a view of some rows without the test rows, which are the server's: what a client has."""
        if isinstance(rows, slice):
            start, stop, step = rows.indices(self._length)
            if self._rows is None and step == 1:
                stop = max(start, stop)
                return self._of(self._base, slice(start, stop), stop - start, self._about)
            rows = np.arange(start, stop, step)
        index = _row_numbers(rows, self._length, self.name)
        if isinstance(self._rows, slice):
            index = index + self._rows.start
        elif self._rows is not None:
            index = self._rows[index]
        return self._of(self._base, index, len(index), self._about)

    def split(self, fraction: float, seed: int | Rng | None) -> tuple[Dataset, Dataset]:
        """Split into (train, test).

        The training part has ``floor((1 - fraction) * rows)`` rows, and keeps the server's test rows if there are some.

        Args:
            fraction: share of the test rows, between 0 and 1.
            seed: shuffles the rows first; ``None`` keeps the order: the first rows train, the rest test.

        Raises:
            DataError: one part would be empty.
        """
        n = self._length
        train = int((1.0 - fraction) * n + 1e-9)
        if not 0 < train < n:
            raise DataError(
                f"split(fraction={fraction}) of {n} rows leaves {train} to train and {n - train} to test",
                where=f"data set {self.name!r}",
                remedy="choose a fraction between 0 and 1 that leaves both parts a row",
            )
        if seed is None:
            return self.take(slice(0, train)), self._view(slice(train, n))
        order = root(seed).child("split").generator().permutation(n)
        return self.take(np.sort(order[:train])), self._view(np.sort(order[train:]))

    def with_test(self, test: Dataset | None) -> Dataset:
        """Return the same rows with another test set at the server, in these rows' class codes.

        Raises:
            DataError: the test set names classes that these rows do not have, or its rows have another shape.
        """
        if test is not None:
            self.require_form(test)
            test = test.coded_as(self._about)
        return self._of(self._base, self._rows, self._length, self._about, test)

    def require_form(self, test: Dataset) -> None:
        """Refuse test rows whose features or targets differ in names or shape from these rows.

        Raises:
            DataError: they differ; names the column.
        """
        if has_named_features(self) and has_named_features(test):
            require_columns(test._about.features, self._about.features, f"data set {test.name!r}", exactly=True)
        for name in ("x", "y"):
            if name not in self or name not in test:
                continue
            own, other = self._base[name].shape[1:], test._base[name].shape[1:]
            if own != other:
                raise DataError(
                    f"column {name!r} has rows of shape {other} to test and {own} to train on",
                    where=f"data set {test.name!r}",
                    remedy="bring both to one form, or give other test rows",
                )

    def coded_as(self, about: About) -> Dataset:
        """Return these rows with the class codes and the order of features of data with this `About`, where both have names.

        Raises:
            DataError: these rows have a class or a text that ``about`` lacks, so that one code would mean two things; or other features.
        """
        rows = self.with_features_of(about)
        if not named(about) or not named(rows._about):
            return rows
        labels = common_labels(about, rows._about, rows.y)
        return rows if labels == rows._about.labels else rows.recoded(labels)

    def recoded(self, labels: tuple[str, ...]) -> Dataset:
        """Return these rows and their test rows with the codes of these classes, which include their own."""
        coded = self
        if self._about.labels != labels:
            codes = places_in(labels, self._about.labels)[self.y]
            coded = self.with_columns({"y": codes}, labels=labels, classes=len(labels))
        return coded if self._test is None else coded.with_test(self._test)

    def with_columns(self, columns: Mapping[str, ArrayLike], **about: Any) -> Dataset:
        """Return a data set with columns added or replaced; ``about`` changes fields of `About`."""
        fields = replace(self._about, **about)
        merged = {name: self[name] for name in self._base} | dict(columns)
        return Dataset(
            merged,
            task=fields.task,
            classes=fields.classes,
            name=fields.name,
            citation=fields.citation,
            labels=fields.labels,
            features=fields.features,
            test=self._test,
            missing_features=fields.missing_features,
            categories=fields.categories,
        )

    def with_features_of(self, about: About) -> Dataset:
        """Return these rows with the order of features and the codes of text that data with this `About` have.

        Raises:
            DataError: a feature is missing, there is another, or a row has a text that ``about`` lacks.
        """
        own = self._about
        if not has_named_features(self) or not about.features:
            return self
        require_columns(own.features, about.features, f"data set {own.name!r}", exactly=True)
        words = {name: tuple(about.categories[name]) for name in about.features if name in about.categories}
        if own.features == about.features and dict(own.categories) == words:
            return self
        place = {name: k for k, name in enumerate(own.features)}
        x = np.array(self["x"][:, [place[name] for name in about.features]])
        for k, name in enumerate(about.features):
            mine, theirs = own.categories.get(name), words.get(name)
            if mine == theirs or np.isnan(x[:, k].astype(np.float64)).all():
                continue
            if mine is None or theirs is None:
                raise _other_kind(name, own.name, mine is not None)
            there = ~np.isnan(x[:, k].astype(np.float64))
            old = x[there, k].astype(np.int64)
            codes = places_in(theirs, mine)[old]
            if (codes < 0).any():
                raise DataError(
                    f"column {name!r} has {private(mine[int(old[codes < 0][0])])}, which the other rows lack",
                    where=f"data set {own.name!r}",
                    remedy=f"read both with the same values: categories={{{name!r}: [...]}}",
                )
            x[there, k] = codes
        x.flags.writeable = False
        columns = {name: x if name == "x" else self[name] for name in self._base}
        turned = own.reordered or own.features != tuple(about.features)
        changed = replace(own, features=tuple(about.features), categories=words, reordered=turned)
        return self._of(columns, None, self._length, changed, self._test)

    def __repr__(self) -> str:
        shown = [f"{self._length:,} rows"]
        for name, array in self._base.items():
            shape = f"[{', '.join(map(str, array.shape[1:]))}]" if array.ndim > 1 else ""
            shown.append(f"{name} {array.dtype}{shape}")
        shown.append(self.task + (f" of {self.classes} classes" if self.classes else ""))
        if self._test is not None:
            shown.append(f"test {len(self._test):,} rows")
        return f"Dataset({self.name!r}: {', '.join(shown)})"


def _row_numbers(rows: ArrayLike, length: int, name: str) -> NDArray[np.int64]:
    index = np.asarray(rows)
    if index.dtype == np.bool_ and index.shape == (length,):
        return np.flatnonzero(index)
    if index.size == 0:
        return np.zeros(0, np.int64)
    if index.ndim != 1 or index.dtype.kind not in "iu":
        raise DataError(
            f"rows of shape {index.shape} and dtype {index.dtype}",
            where=f"data set {name!r}",
            remedy=f"pass row numbers, a slice, or a mask of {length} booleans",
        )
    if index.min() < 0 or index.max() >= length:
        wrong = int(index[(index < 0) | (index >= length)][0])
        raise DataError(
            f"row {wrong} is outside 0..{length - 1}",
            where=f"data set {name!r}",
            remedy="pass existing row numbers",
        )
    return index.astype(np.int64, copy=False)


def root(seed: int | Rng) -> Rng:
    """Return the random stream of a seed; a stream is returned unchanged."""
    if isinstance(seed, Rng):
        return seed
    try:
        return Rng.of(int(seed))
    except (TypeError, ValueError):
        raise DataError(f"seed={seed!r}", where="seed", remedy="use a whole number, such as seed=0") from None
