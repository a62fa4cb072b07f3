"""Data cards: exactly what a server must know of a site's data, one for all sites, and islands that stand for them at the server."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.errors import DataError, MessageError, PolicyError, nearest
from atoll.core.redaction import private
from atoll.data import Dataset, Description, Tags
from atoll.data.codings import require_one_coding
from atoll.data.dataset import About, order_columns, united
from atoll.data.islands import ColumnNames
from atoll.data.missing import labelled_rows
from atoll.data.units import ColumnExtent, require_one_unit

__all__ = [
    "MOST_CLASSES",
    "MOST_NAMES",
    "Column",
    "DataCard",
    "Outline",
    "RemoteIslands",
    "card_of",
    "example_rows",
    "few",
    "lone_classes",
    "merge_cards",
    "recoded",
    "union_of_labels",
]


# ------------------------------------------------------------------ data cards: exactly what a server must know of a site's data to build the model's learner
#
# A card has the task, the columns' shapes and dtypes, the names of features and classes. It holds no value of a feature
# and no statistic. The names of classes are shared, because the sites must agree on their codes.


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


# ------------------------------------------------------------------ agreement
#
# Agreement: one card for all sites, or an error that says where they differ; and a site's labels in the agreed codes.


def merge_cards(cards: Mapping[str, DataCard]) -> DataCard:
    """Merge the cards of all sites into one.

    Class names are united. If all sites have the same names in the same order, that order stays; otherwise numbers are
    sorted by value, words by spelling. That is the coding of all rows together (see `atoll.data.readers.table.from_table`). A
    site without names uses its codes as they are. Named features are in the order that all sites have, or in alphabetical order. Features may be missing if they may at one site.

    Args:
        cards: owner, as errors name it (``"site 'a'"``), -> card.

    Raises:
        DataError: two cards disagree; the error names both, and the column.
    """
    if not cards:
        raise DataError("no site has any data", where="data cards", remedy="let at least one site join")
    cards = _without_bare(cards)
    for (a, first), (b, other) in pairwise(cards.items()):
        _require_same(a, first, b, other)
    known = {card.labelled for card in cards.values()}
    first = replace(
        next(iter(cards.values())),
        labelled=known.pop() if len(known) == 1 else "part",
        missing_features=any(card.missing_features for card in cards.values()),
        features=order_columns([card.features for card in cards.values()]),
    )
    negatives = {card.negative for card in cards.values() if card.negative is not None}
    if len(negatives) > 1:
        at = {card.negative: name for name, card in cards.items()}
        raise _differ(
            at[0], at[-1], "the target's lower class is 0", "it is -1", "use 0 and 1, or -1 and 1, everywhere"
        )
    negative = next(iter(negatives), None)
    if first.task != "classification":
        return replace(first, negative=negative)
    labels = union_of_labels(cards)
    if labels:
        return replace(first, labels=labels, classes=len(labels))
    return replace(first, classes=max(card.classes or 0 for card in cards.values()))


def _without_bare(cards: Mapping[str, DataCard]) -> Mapping[str, DataCard]:
    """Return the cards, with the task and the targets of sites that have labels also at those that have none.

    Raises:
        DataError: a site without labels has other features.
    """
    lead = next(((name, card) for name, card in cards.items() if not card.bare), None)
    if lead is None:
        return cards
    like = lead[1]
    found = {}
    for site, card in cards.items():
        found[site] = card if not card.bare else replace(
            like, features=card.features, categories=card.categories, negative=None, labelled="none", missing_features=card.missing_features,
            columns={**({"x": card.columns["x"]} if "x" in card.columns else {}), **{k: v for k, v in like.columns.items() if k != "x"}},
        )  # fmt: skip
    return found


def _require_same(a: str, first: DataCard, b: str, other: DataCard) -> None:
    if first.task != other.task:
        raise _differ(
            a, b, f"the target is a {first.task} task", f"a {other.task} task",
            "give every site the same target and task (task: in its data's settings)",
        )  # fmt: skip
    # Names first: an extra column also changes the shape of x, and its name says more.
    _require_features(a, first, b, other)
    for name in ("x", "y"):
        mine, theirs = first.columns.get(name), other.columns.get(name)
        if mine != theirs:
            said = [f"column {name!r} is {'missing' if c is None else c}" for c in (mine, theirs)]
            raise _differ(a, b, said[0], said[1], "give every site the same columns, shapes and dtypes")
    for name in dict.fromkeys((*first.categories, *other.categories)):
        mine_, theirs_ = first.categories.get(name), other.categories.get(name)
        if mine_ != theirs_:
            raise _differ(
                a, b, f"column {name!r} has the values {few(mine_)}", f"the values {few(theirs_)}",
                f"declare the same values in the same order everywhere (categories: {{{name}: [...]}})",
            )  # fmt: skip
    if first.task == "multilabel" and (first.classes, first.labels) != (other.classes, other.labels):
        raise _differ(
            a, b, f"the targets are {few(first.labels)}", f"they are {few(other.labels)}",
            "give every site the same targets in the same order",
        )  # fmt: skip


def _require_features(a: str, first: DataCard, b: str, other: DataCard) -> None:
    if not first.features and not other.features:
        return
    if not first.features or not other.features:
        named, bare = (a, b) if first.features else (b, a)
        raise _differ(
            named, bare, "the features have names", "they have none, so their order is unknown",
            "give names to all (an array `features` in a .npz file) or to none",
        )  # fmt: skip
    require_one_unit(other.features, first.features, b, a)
    for name in first.features:
        if name not in other.features:
            raise _differ(
                a,
                b,
                f"there is a column {name!r}",
                f"there is none.{nearest(name, other.features)}",
                _SAME_COLUMNS.format(name),
            )
    for name in other.features:
        if name not in first.features:
            raise _differ(
                b,
                a,
                f"there is a column {name!r}",
                f"there is none.{nearest(name, first.features)}",
                _SAME_COLUMNS.format(name),
            )


_SAME_COLUMNS = "give every site the same columns, or leave {0!r} out where it is (drop)"


def _differ(a: str, b: str, said: str, other: str, remedy: str) -> DataError:
    return DataError(f"at {a} {said}, and at {b} {other}", where="data cards", remedy=remedy)


def few(values: Sequence[str] | None) -> str:
    """Return the first few of some words, as errors show them."""
    return "none" if not values else ", ".join(values[:8]) + (", ..." if len(values) > 8 else "")


def union_of_labels(cards: Mapping[str, DataCard]) -> tuple[str, ...]:
    """Return the names of all classes, in the order of the agreed codes; empty if no site has names.

    Raises:
        DataError: some sites have names that are not codes, and others have codes without names, or whole numbers for
            names.
    """
    given = {name: card.labels for name, card in cards.items()}
    if not any(given.values()):
        return ()
    known = {name: labels for name, labels in given.items() if labels}
    words = next((name for name, labels in known.items() if not all(_is_whole(label) for label in labels)), None)
    if words is not None and len(known) < len(given):
        bare = next(name for name in given if name not in known)
        raise _differ(
            words, bare, f"the classes are {few(given[words])}", "they are codes without names",
            "give the classes names everywhere (labels), or code them the same way everywhere",
        )  # fmt: skip
    _require_one_kind(known)
    require_one_coding(known, "target", "data cards", label=True)
    every = [_names(card) for card in cards.values()]
    if len(set(every)) == 1:
        return every[0]
    union = united(every)
    if len(union) > MOST_CLASSES:
        raise DataError(
            f"all sites together have {len(union)} classes; {MOST_CLASSES} are allowed",
            where="data cards",
            remedy="choose a target that is a class",
        )
    return union


def _require_one_kind(known: Mapping[str, Sequence[str]]) -> None:
    """Refuse words at one site and whole numbers at another: 0 and 1 would become extra classes that mean the same as the words."""
    words = next((name for name, labels in known.items() if not any(map(_is_whole, labels))), None)
    numbers = next((name for name, labels in known.items() if all(map(_is_whole, labels))), None)
    if words is not None and numbers is not None:
        raise _differ(
            words, numbers, f"the classes are words such as {known[words][0]!r}",
            f"they are whole numbers such as {known[numbers][0]!r}",
            "write each class the same way everywhere; where both are names of classes, list all of them everywhere "
            "(categories: {TARGET: [...]})",
        )  # fmt: skip


def lone_classes(cards: Mapping[str, DataCard]) -> dict[str, tuple[str, ...]]:
    """Return the classes that only one site has, by name: that may be right, or the name is misspelt there."""
    if len(cards) < 2 or not any(card.labels for card in cards.values()):
        return {}
    at = Counter(label for card in cards.values() for label in _names(card))
    lone = {name: tuple(label for label in _names(card) if at[label] == 1) for name, card in cards.items()}
    return {name: labels for name, labels in lone.items() if labels}


def _names(card: DataCard) -> tuple[str, ...]:
    return card.labels or tuple(map(str, range(card.classes or 0)))


def _is_whole(label: str) -> bool:
    return label.removeprefix("-").isdecimal() and label.isascii()


def recoded(data: Any, own: DataCard, agreed: DataCard) -> Any:
    """Return a data set with its labels in the codes, and its features in the order, of the agreed card.

    Args:
        data: a ``Dataset`` whose card is ``own``.
        own: its card.
        agreed: the agreed card.
    """
    data = data.with_features_of(About(features=agreed.features, categories=data.about.categories))
    about = {"classes": agreed.classes, "labels": agreed.labels}
    if own.bare and not agreed.bare and "y" in agreed.columns:
        form = agreed.columns["y"]
        y = np.zeros((len(data), *form.shape), form.dtype)
        return data.with_columns({"y": y, "labelled": np.zeros(len(data), np.bool_)}, task=agreed.task, **about)
    if agreed.task != "classification":
        return data
    names = _names(own)
    if not agreed.labels or names == agreed.labels[: len(names)]:
        return data.with_columns({}, **about)
    code = {label: i for i, label in enumerate(agreed.labels)}
    places = np.array([code[label] for label in names], dtype=np.int64)
    return data.with_columns({"y": places[np.asarray(data["y"])]}, **about)


# ------------------------------------------------------------------ the server's stand-in for islands whose rows are at sites: names, sizes and a card


class RemoteIslands:
    """A population of clients at sites: what `atoll.data.Islands` offers without reading a row.

    Attributes:
        names: the clients' names, a sequence.
        sizes: rows of each client, ``(clients,)``.
        card: what all sites agree on; ``None`` if a program of your own works on data without a common form.
        about: task, classes and names, as in a data set.
        tags: empty: no client is known to be corrupted.
        test: rows that the server itself holds for evaluation, or ``None``.
        public: public rows that the server itself holds, or ``None``; see `with_public`.
        scheme: how the population was made, for tables.
        extents: feature -> where the numbers of the sites that tell it lie, for the model that is saved.
        held_rows: rows of each client on which it measures and does not train, ``(clients,)``; ``None`` if a site cannot tell.

    Args:
        names: the clients' names.
        sizes: rows of each.
        card: what all sites agree on.
        test: the server's own rows.
        name: short name.
        extents: see above.
        held_out: the held-out rows of each.

    Raises:
        DataError: names and sizes differ in number, or the server's rows do not fit the card.
    """

    scheme = "at sites"

    def __init__(
        self,
        names: Sequence[str],
        sizes: ArrayLike,
        card: DataCard | None,
        test: Dataset | None = None,
        name: str = "sites",
        extents: Mapping[str, ColumnExtent] | None = None,
        held_out: ArrayLike | None = None,
    ) -> None:
        self.held_rows: NDArray[np.int64] | None = None if held_out is None else np.array(held_out, dtype=np.int64)
        self.names = ColumnNames(np.arange(len(names)), np.array(list(names), dtype=np.str_))
        self.sizes: NDArray[np.int64] = np.array(sizes, dtype=np.int64)
        self.sizes.flags.writeable = False
        if self.sizes.shape != (len(names),) or (self.sizes < 0).any():
            raise DataError(
                f"sizes {self.sizes.tolist()[:8]} for {len(names)} clients", remedy="give one size for each client"
            )
        self.card = card
        self.test = test
        self.public: Dataset | None = None
        self.extents = dict(extents or {})
        self.tags = Tags(np.zeros(len(names), np.uint8))
        task, classes = ("unlabelled", None) if card is None else (card.task, card.classes)
        named = () if card is None else (card.labels, card.features, card.missing_features, card.categories)
        self.about = About(name, task, classes, "", *named)
        if test is not None and card is not None:
            _require_fit(test, card)

    @property
    def name(self) -> str:
        """Short name of the data."""
        return self.about.name

    @property
    def task(self) -> str:
        """Return the kind of target."""
        return self.about.task

    @property
    def classes(self) -> int | None:
        """Number of classes, or ``None`` for a regression."""
        return self.about.classes

    @property
    def labelled(self) -> str | None:
        """Which of the sites' rows have a label: "all", "part" or "none"; ``None`` if nothing is known of a target."""
        return None if self.card is None or "y" not in self.card.columns else self.card.labelled

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the known columns."""
        return () if self.card is None else tuple(self.card.columns)

    def __len__(self) -> int:
        return len(self.names)

    def shard(self, client: int | str) -> Any:
        """Refused: rows stay at their site.

        Raises:
            PolicyError: always.
        """
        self._refuse(str(client))

    def gather(self, clients: ArrayLike, *columns: str) -> Any:
        """Refused: rows stay at their site.

        Raises:
            PolicyError: always.
        """
        self._refuse(f"{np.size(clients)} clients, columns {', '.join(columns)}")

    def _refuse(self, what: str) -> NoReturn:
        raise PolicyError(
            f"the rows of {what} are at their site and not here",
            where="the server",
            remedy="ask for them by a task: fed.sum or fed.ask; `sizes` and `about` are known",
        )

    def members(self, clients: ArrayLike) -> RemoteIslands:
        """Return the population of some clients, by position; what all sites agree on stays."""
        chosen = np.asarray(clients, dtype=np.int64)
        made = RemoteIslands(
            [str(self.names[int(i)]) for i in chosen],
            self.sizes[chosen],
            self.card,
            self.test,
            self.name,
            self.extents,
            None if self.held_rows is None else self.held_rows[chosen],
        )
        made.public = self.public
        return made

    def with_public(self, public: Dataset) -> RemoteIslands:
        """Return the same population with public rows at the server, in the agreed order of features and codes of classes.

        Raises:
            DataError: they are rows of another form, or name classes that no site has.
        """
        wanted = None if self.card is None else self.card.columns.get("x")
        found = np.asarray(public["x"]).shape[1:] if "x" in public else None
        if wanted is None or found != wanted.shape:
            raise DataError(
                f"the server's public rows have {'no column x' if found is None else f'a column x of shape {found}'}, but the sites have {wanted or 'none'}",
                where="data.public",
                remedy="give the server rows of the same form, or leave data.public out",
            )
        made = self.members(np.arange(len(self)))
        made.public = public.coded_as(self.about)
        return made

    def describe(self, sample: int = 10_000, seed: int = 0) -> Description:
        """Summarise what is known: sizes, but no labels."""
        del sample, seed
        none = np.zeros(0, np.int64)
        rows = int(self.sizes.sum())
        return Description(self.name, self.scheme, len(self), rows, self.sizes, none, None, (), {})

    def outline(self) -> Outline:
        """Return the same population with made-up rows, to build a learner for: see ``example_rows``.

        Raises:
            DataError: the sites' data has no common card.
        """
        if self.card is None or not self.card.columns:
            raise DataError(
                "nothing is known of the sites' data, so no model can be built for it",
                where="data cards",
                remedy="give every site a data set with columns (a CSV file, an archive of arrays, an atoll.data.Dataset)",
            )
        return Outline([str(name) for name in self.names], self.sizes, self.card, self.test, self.name, self.extents)

    def __repr__(self) -> str:
        return (
            f"RemoteIslands({len(self):,} clients, {self.task}{f' of {self.classes} classes' if self.classes else ''})"
        )


class Outline(RemoteIslands):
    """Remote islands whose every shard is the same few made-up rows: enough for a learner to infer shapes and to refuse a misfit."""

    def shard(self, client: int | str) -> Dataset:
        """Return made-up rows of the card's form."""
        del client
        if self.card is None:
            self._refuse("every client")
        return example_rows(self.card)


def example_rows(card: DataCard) -> Dataset:
    """Return two rows of zeros in the form of the card, with the lowest and the highest class."""
    columns: dict[str, Any] = {name: _zeros(column) for name, column in card.columns.items()}
    if card.task == "classification":
        columns["y"] = np.array([0, max(0, (card.classes or 1) - 1)], dtype=np.int64)
    elif card.task == "binary":
        columns["y"] = np.array([card.negative or 0, 1], dtype=np.int64)
    classes = card.classes if card.task == "classification" else None
    return Dataset(
        columns, task=card.task, classes=classes, name="example", labels=card.labels, features=card.features,
        missing_features=card.missing_features, categories=card.categories,
    )  # fmt: skip


def _zeros(column: Column) -> NDArray[Any]:
    return np.zeros((2, *column.shape), dtype=np.str_ if column.dtype == "text" else column.dtype)


def _require_fit(test: Dataset, card: DataCard) -> None:
    """Refuse test rows of the server whose form differs from the sites'."""
    wanted, found = card.columns.get("x"), np.asarray(test["x"]) if "x" in test else None
    if wanted is None or found is None or found.shape[1:] != wanted.shape:
        actual = "no column 'x'" if found is None else f"a column 'x' of shape {found.shape[1:]}"
        raise DataError(
            f"the server's own test rows have {actual}, but the sites have {wanted or 'none'}",
            where="data.test",
            remedy="give the server rows of the same form, or leave data.test out",
        )
    if test.task != card.task or (test.classes or 0) > (card.classes or 0):
        raise DataError(
            f"the server's own test rows are a {test.task} of {test.classes or 'no'} classes, the sites' a {card.task} "
            f"of {card.classes or 'no'}",
            where="data.test",
            remedy="give the server rows of the same task and classes, or leave data.test out",
        )
