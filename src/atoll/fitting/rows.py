"""A party's rows as a method takes them: columns read, holes filled, categories encoded, numbers scaled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError
from atoll.data.readers._words import hold_moments, require_no_moments
from atoll.data.table import DataTable
from atoll.statistics.columns import TableColumn, columns_of, table_of

__all__ = ["FeatureLayout", "PartyRows", "count_left_out", "require_known_labels", "rows_of", "typed"]

Numbers = NDArray[np.float64]

_LARGEST = 1e140
"""Sums of squares of larger numbers are none."""
OTHER_COLUMNS = "or name the other features, columns=[...]"
"""How a fit leaves a column out."""


@dataclass(frozen=True)
class FeatureLayout:
    """How a table becomes a matrix. All parties and the result use the same one.

    Attributes:
        numbers: columns of numbers, in order.
        levels: column of categories -> its values, in order; these columns come after the numbers.
        label: column to predict; empty if there is none.
        classes: values of the label, if it is a class.
        extra: columns that the method reads beside the features, such as times.
        groups: extra column of categories -> its values.
        encode: ``"onehot"`` (a feature a value), ``"dummy"`` (a feature each value but the first) or ``"ordinal"`` (the value's place).
        fill: column -> what a missing value becomes; for a category, its value. Empty if missing values are refused; one-hot, a missing category is none of the values.
        centre: what is subtracted from the numbers, ``(numbers,)``; empty if they are not scaled.
        spread: what they are then divided by.
    """

    numbers: tuple[str, ...] = ()
    levels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    label: str = ""
    classes: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    encode: str = "onehot"
    fill: Mapping[str, Any] = field(default_factory=dict)
    centre: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features: a column, or ``column=value``."""
        if self.encode == "ordinal":
            return (*self.numbers, *self.levels)
        first = int(self.encode == "dummy")
        return (*self.numbers, *(f"{name}={value}" for name, values in self.levels.items() for value in values[first:]))

    @property
    def prepared(self) -> bool:
        """Whether rows differ from the columns as they are."""
        return bool(self.levels or self.fill or self.centre)

    def packed(self) -> dict[str, Any]:
        """The layout as a message."""
        lists = {name: [*getattr(self, name)] for name in ("numbers", "classes", "extra", "centre", "spread")}
        levels = {
            name: {key: [*map(str, v)] for key, v in getattr(self, name).items()} for name in ("levels", "groups")
        }
        return {**lists, **levels, "label": self.label, "encode": self.encode, "fill": dict(self.fill)}

    @classmethod
    def unpacked(cls, message: Mapping[str, Any]) -> FeatureLayout:
        """The inverse of `packed`."""
        tuples = {name: tuple(message[name]) for name in ("numbers", "classes", "extra", "centre", "spread")}
        return cls(**{**message, **tuples})

    def with_scale(self, centre: Numbers, spread: Numbers) -> FeatureLayout:
        """The layout that scales: a spread of 0 leaves a column as it is."""
        divided = np.where(spread == 0, 1.0, spread)
        return replace(self, centre=tuple(centre.tolist()), spread=tuple(divided.tolist()))


@dataclass(frozen=True)
class PartyRows:
    """The rows of a party.

    Attributes:
        x: ``(rows, features)``.
        y: label: place of the class ``(rows,)`` whole numbers, or the number; empty without a label.
        extra: the method's own columns, ``(rows,)`` each: numbers, or places of groups.
        name: the party's name, for errors.
        least: the smallest number of rows behind what is told.
    """

    x: Numbers
    y: NDArray[Any]
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    name: str = ""
    least: int = 1

    def __len__(self) -> int:
        return len(self.x)

    def none(self) -> PartyRows:
        """The same without a row."""
        return replace(self, x=self.x[:0], y=self.y[:0], extra={k: v[:0] for k, v in self.extra.items()})


def rows_of(data: Any, layout: FeatureLayout, where: str, *, least: int = 1, labelled: bool = True) -> PartyRows:
    """Read a table.

    Rows without a label, time or group are left out: nothing can be learnt from them.

    Args:
        data: what a party has: a table, data set, frame, or dict of columns.
        layout: how.
        where: the party, for errors.
        least: minimum count, which the result keeps.
        labelled: whether the label and the extra columns are needed.

    Raises:
        DataError: a column is absent or of another kind, or a value is missing and nothing says what to fill it with.
    """
    table = table_of(data)
    features = _matrix(table, layout, where, fitting=labelled)
    if not labelled:
        return PartyRows(features, np.zeros(len(table)), {}, where, least)
    label, extra, there = _beside(table, layout, where)
    return PartyRows(features[there], label[there], {k: v[there] for k, v in extra.items()}, where, least)


def _beside(
    table: DataTable, layout: FeatureLayout, where: str
) -> tuple[NDArray[Any], dict[str, NDArray[Any]], NDArray[np.bool_]]:
    """The label and the extra columns, and which rows have all of them."""
    label: NDArray[Any] = np.zeros(len(table))
    there = np.ones(len(table), bool)
    if layout.label:
        known = layout.classes or None
        label, there = _places(table, layout.label, known) if known else _plain(table, layout.label, where)
    extra: dict[str, NDArray[Any]] = {}
    for name in layout.extra:
        groups = layout.groups.get(name)
        extra[name], known_rows = _places(table, name, groups) if groups else _plain(table, name, where)
        there = there & known_rows
    return label, extra, there


def count_left_out(data: Any, layout: FeatureLayout) -> tuple[int, dict[str, int]]:
    """Count the rows of a table that `rows_of` leaves out, and by column those that are one-hot and have none of its values.

    Args:
        data: what a party has.
        layout: how it is read.
    """
    table = table_of(data)
    bare = {}
    for name, values in layout.levels.items() if layout.encode == "onehot" else ():
        there = _places(table, name, values)[1]
        lost = ~there & ~table.missing(name) if name in layout.fill else ~there
        bare[name] = int(lost.sum())
    return int((~_beside(table, layout, "notes")[2]).sum()), bare


def require_known_labels(data: Any, layout: FeatureLayout, where: str) -> None:
    """Refuse labels that no class of the model has: rows of another coding would be scored as others, or left out.

    Args:
        data: what a party has.
        layout: how it is read.
        where: the place, for errors.

    Raises:
        DataError: names the values, and the classes.
    """
    table = table_of(data)
    if not layout.classes or layout.label not in table:
        return
    lost = ~_places(table, layout.label, layout.classes)[1] & ~table.missing(layout.label)
    if lost.any():
        shown = ", ".join(dict.fromkeys(str(value) for value in table[layout.label][lost].tolist()[:50]))
        raise DataError(f"column {layout.label!r} has {shown[:200]} in {int(lost.sum())} of {len(table)} rows, and the model knows {', '.join(layout.classes)}", where=where, remedy="code the label alike in all files, or leave these rows out")  # fmt: skip


def column_of(table: DataTable, name: str, *, category: bool) -> TableColumn:
    """One column as a number or as a category."""
    return columns_of(table, [name], categories={name: ()} if category else None)[name]


def _plain(table: DataTable, name: str, where: str) -> tuple[Numbers, NDArray[np.bool_]]:
    """A column of numbers, and which of its values are there."""
    if hold_moments(table[name]):
        require_no_moments(table[name][~table.missing(name)], name, where, OTHER_COLUMNS)
    column = column_of(table, name, category=False).as_kind("number")
    if column.kind != "number" or not column.single:
        raise DataError(
            f"column {name!r} does not hold one number a row",
            where=where,
            remedy=f"say which values it has, categories={{{name!r}: [...]}}, or leave it out",
        )
    values = column.values.astype(np.float64)
    there = np.isfinite(values)
    most = np.abs(values).max(where=there, initial=0)
    if most > _LARGEST:
        raise DataError(
            f"column {name!r} has {most:g}, whose square is no number",
            where=where,
            remedy="correct the value, or leave the row or the column out",
        )
    return values, there


def _places(table: DataTable, name: str, known: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A column of categories as places among the known values, and which rows have a known value."""
    names, codes, rows = column_of(table, name, category=True).coded
    place = {value: k for k, value in enumerate(map(str, known))}
    found = np.full(len(table), -1, np.int64)
    found[rows] = np.array([place.get(value, -1) for value in names] or [-1], np.int64)[codes]
    return found, found >= 0


def _matrix(table: DataTable, layout: FeatureLayout, where: str, fitting: bool) -> Numbers:
    parts = [_filled(table, name, layout, where, fitting)[:, None] for name in layout.numbers]
    numbers = np.concatenate(parts, axis=1) if parts else np.zeros((len(table), 0))
    if layout.centre:
        numbers = (numbers - np.array(layout.centre)) / np.array(layout.spread)
    made = [numbers]
    for name, values in layout.levels.items():
        codes, there = _places(table, name, values)
        if name in layout.fill:
            holes = ~there & table.missing(name)
            codes = np.where(holes, [*map(str, values)].index(str(layout.fill[name])), codes)
        if layout.encode != "onehot":
            # One-hot, a row without an agreed value has none of them; otherwise it would pass for the first value, or for one below it.
            if name not in layout.fill and (lacking := int((~there & table.missing(name)).sum())):
                raise _refuse_missing(name, lacking, where, fitting)
            if (~there & ~table.missing(name)).any():
                raise DataError(
                    f"column {name!r} holds values beyond the agreed ones, {', '.join(map(str, values[:8]))}",
                    where=where,
                    remedy=f"agree on all values, categories={{{name!r}: [...]}}, or use encode='onehot', where such rows have none of them",
                )
        if layout.encode == "ordinal":
            made.append(codes[:, None].astype(np.float64))
        else:
            made.append((codes[:, None] == np.arange(int(layout.encode == "dummy"), len(values))).astype(np.float64))
    return np.concatenate(made, axis=1)


def _refuse_missing(name: str, count: int, where: str, fitting: bool, infinite: bool = False) -> DataError:
    remedy = "give impute='median', or leave the column out"
    if not fitting:
        remedy = "fill them in, or leave these rows out: the model was fitted without impute"
    said = "1 value" if count == 1 else f"{count} values"
    return DataError(
        f"{said} of column {name!r} {'is' if count == 1 else 'are'} missing{' or infinite' if infinite else ''}",
        where=where,
        remedy=remedy,
    )


def _filled(table: DataTable, name: str, layout: FeatureLayout, where: str, fitting: bool) -> Numbers:
    values, there = _plain(table, name, where)
    if there.all():
        return values
    if name not in layout.fill:
        raise _refuse_missing(name, int((~there).sum()), where, fitting, bool(np.isinf(values).any()))
    return np.where(there, values, float(layout.fill[name]))


def typed(values: Sequence[str]) -> NDArray[Any]:
    """Classes as whole numbers or numbers if all of them are, else as text."""
    for kind in (np.int64, np.float64):
        try:
            return np.array([*values]).astype(kind)
        except ValueError:
            continue
    return np.array([*values], dtype=np.str_)
