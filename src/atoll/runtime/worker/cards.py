"""Data cards: exactly what a server must know of a site's data to build the model's learner.

A card has the task, the columns' shapes and dtypes, the names of features and classes. It holds no value of a feature
and no statistic. The names of classes are shared, because the sites must agree on their codes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from atoll.core.errors import DataError, MessageError
from atoll.core.redaction import private
from atoll.data.missing import labelled_rows

__all__ = ["MOST_CLASSES", "MOST_NAMES", "Column", "DataCard", "card_of"]

MOST_NAMES = 1_000_000
MOST_CLASSES = 10_000
"""Most names of features and of classes in a card: data from a network is bounded."""

_DTYPE = re.compile(r"[<>|=]?[a-zA-Z]{1,16}[0-9]{0,4}(\[[a-zA-Z0-9]{1,8}\])?")
_LABELLED = ("all", "part", "none")
_TASKS = ("classification", "binary", "regression", "multilabel", "tokens", "unlabelled")


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        dtype: as NumPy writes it, such as ``"float32"``; ``"text"`` for texts of any length.
        shape: of one row.
    """

    dtype: str
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.dtype + (f" of shape {self.shape}" if self.shape else "")


@dataclass(frozen=True)
class DataCard:
    """What other parties know of a site's data.

    Attributes:
        task: see `atoll.data.About`.
        columns: the columns ``x`` and ``y``, as far as there are any.
        classes: number of classes; ``None`` for a regression.
        labels: the classes' names in the order of their codes, if known.
        features: names of the features in ``x``, if known.
        negative: the lower one of two codes, 0 or -1; ``None`` if there is no such code or only the upper one occurs.
        categories: of features that were texts, the values in the order of their codes, as the site declared them or its own code gave them.
        labelled: which rows have a label: "all", "part" or "none".
        missing_features: whether features may be missing, as the site declares.
    """

    task: str
    columns: Mapping[str, Column]
    classes: int | None = None
    labels: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    negative: int | None = None
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    labelled: Literal["all", "part", "none"] = "all"
    missing_features: bool = False

    @property
    def bare(self) -> bool:
        """Whether there is no label from which the task could be known."""
        return self.labelled == "none" and self.task == "unlabelled"

    def packed(self) -> dict[str, Any]:
        """Return the card as a message."""
        return {
            "task": self.task,
            "columns": {name: [column.dtype, list(column.shape)] for name, column in self.columns.items()},
            "classes": self.classes,
            "labels": list(self.labels),
            "features": list(self.features),
            "negative": self.negative,
            "categories": {name: list(values) for name, values in self.categories.items()},
            "labelled": self.labelled,
            "missing_features": self.missing_features,
        }

    @staticmethod
    def unpack(tree: Any, where: str) -> DataCard:
        """Return the inverse of ``packed``.

        Raises:
            MessageError: it is not a card.
        """
        try:
            card = DataCard(
                tree["task"],
                {str(n): Column(_dtype(d), _shape(s)) for n, (d, s) in tree["columns"].items()},
                tree["classes"],
                _texts(tree["labels"], MOST_CLASSES),
                _texts(tree["features"], MOST_NAMES),
                tree["negative"],
                {str(name): _texts(values, MOST_CLASSES) for name, values in tree["categories"].items()},
                tree["labelled"],
                tree["missing_features"],
            )  # fmt: skip
            _check(card)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
            raise MessageError(
                f"no data card: {type(error).__name__}: {error}",
                where=where,
                remedy="run the same version of Atoll at the server and at every site",
            ) from error
        return card


def _check(card: DataCard) -> None:
    whole = isinstance(card.classes, int) and not isinstance(card.classes, bool)
    if card.task not in _TASKS or not (card.classes is None or (whole and 0 <= card.classes <= MOST_CLASSES)):
        raise ValueError(f"task {card.task!r} with {card.classes!r} classes")
    if not isinstance(card.missing_features, bool):
        raise ValueError(f"missing_features {card.missing_features!r}")
    if card.labelled not in _LABELLED:
        raise ValueError(f"labelled {card.labelled!r}")
    if card.negative not in (None, 0, -1) or set(card.columns) - {"x", "y"}:
        raise ValueError("an unknown code or column")
    if card.labels and len(card.labels) != card.classes:
        raise ValueError(f"{len(card.labels)} names for {card.classes} classes")


def _dtype(given: Any) -> str:
    """Return the name of a plain dtype: NumPy would read much more out of a text."""
    if given == "text":
        return "text"
    if not isinstance(given, str) or not _DTYPE.fullmatch(given):
        raise ValueError("not a dtype")
    return str(np.dtype(given))


def _shape(given: Sequence[Any]) -> tuple[int, ...]:
    if not isinstance(given, list | tuple) or len(given) > 16 or not all(type(size) is int for size in given):
        raise ValueError("not a shape")
    shape = tuple(given)
    if len(shape) > 16 or any(size < 0 for size in shape) or np.prod(shape, dtype=float) > 1e9:
        raise ValueError(f"shape {shape}")
    return shape


def _texts(given: Any, most: int) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or len(given) > most or not all(isinstance(text, str) for text in given):
        raise ValueError("not a list of names, or too long")
    return tuple(given)


def card_of(data: Any, categories: Mapping[str, Sequence[str]] | None = None) -> DataCard:
    """Return the card of a data set.

    Args:
        data: a ``Dataset`` or a non-empty ``Islands``.
        categories: the declared values of features that were texts.

    Raises:
        DataError: too many classes, so that they are probably not classes.
    """
    about = data.about
    rows = data if hasattr(data, "row_bytes") else data.shard(0)
    columns = {name: _column(rows[name]) for name in ("x", "y") if name in rows}
    if about.classes is not None and about.classes > MOST_CLASSES:
        raise DataError(
            f"the target has {private(about.classes)} classes and at most {MOST_CLASSES} may be named to the server",
            where=f"data set {about.name!r}",
            remedy="choose another target, or a regression (task: regression)",
        )
    negative = None
    if about.task == "binary":
        low = int(min((int(y.min()) for y in _targets(data) if len(y)), default=1))
        negative = low if low < 1 else None
    return DataCard(
        about.task, columns, about.classes, about.labels, about.features, negative,
        {name: tuple(map(str, values)) for name, values in (categories or {}).items()}, _labelled(data), about.missing_features,
    )  # fmt: skip


def _column(values: Any) -> Column:
    array = np.asarray(values)
    return Column("text" if array.dtype.kind in "US" else str(array.dtype), tuple(map(int, array.shape[1:])))


def _targets(data: Any) -> Any:
    """The labels that exist, part by part."""
    parts = (data,) if hasattr(data, "row_bytes") else (data.shard(i) for i in range(len(data)))
    return (np.asarray(part["y"])[labelled_rows(part)] for part in parts)


def _labelled(data: Any) -> Literal["all", "part", "none"]:
    """Which rows have a label; of rows with several, whether one exists."""
    if "y" not in data.columns:
        return "none"
    if "labelled" not in data.columns:
        return "all"
    parts = (data,) if hasattr(data, "row_bytes") else (data.shard(i) for i in range(len(data)))
    marks = [np.asarray(part["labelled"]) for part in parts]
    some, every = any(mark.any() for mark in marks), all(mark.all() for mark in marks)
    return "all" if every else "part" if some else "none"
