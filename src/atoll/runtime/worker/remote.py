"""The server's stand-in for islands whose rows are at sites: names, sizes and a card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.errors import DataError, PolicyError
from atoll.data import Dataset, Description, Tags
from atoll.data.dataset import About
from atoll.data.names import ColumnNames

from .cards import Column, DataCard

__all__ = ["Outline", "RemoteIslands", "example_rows"]


class RemoteIslands:
    """A population of clients at sites: what `atoll.data.Islands` offers without reading a row.

    Attributes:
        names: the clients' names, a sequence.
        sizes: rows of each client, ``(clients,)``.
        card: what all sites agree on; ``None`` if a program of your own works on data without a common form.
        about: task, classes and names, as in a data set.
        tags: empty: no client is known to be corrupted.
        test: rows that the server itself holds for evaluation, or ``None``.
        scheme: how the population was made, for tables.

    Args:
        names: the clients' names.
        sizes: rows of each.
        card: what all sites agree on.
        test: the server's own rows.
        name: short name.

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
    ) -> None:
        self.names = ColumnNames(np.arange(len(names)), np.array(list(names), dtype=np.str_))
        self.sizes: NDArray[np.int64] = np.array(sizes, dtype=np.int64)
        self.sizes.flags.writeable = False
        if self.sizes.shape != (len(names),) or (self.sizes < 0).any():
            raise DataError(
                f"sizes {self.sizes.tolist()[:8]} for {len(names)} clients", remedy="give one size for each client"
            )
        self.card = card
        self.test = test
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
        return RemoteIslands(
            [str(self.names[int(i)]) for i in chosen], self.sizes[chosen], self.card, self.test, self.name
        )

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
        return Outline([str(name) for name in self.names], self.sizes, self.card, self.test, self.name)

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
