"""Data that words name: `open` by name, and the DATA of a command, which is a name, an archive or a table."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.errors import DataError, nearest

from .. import bundled
from ..dataset import Dataset, root
from ..islands import Islands
from ..missing import Missing, labelled_rows
from ..partition import dirichlet, iid, natural
from ..readers.arrays import arrays_of, names_in, read_npz
from ..readers.csv import read_csv
from ..readers.text_vectors import TextVectors, WordVectors, with_text_vectors
from ._place import Folder
from .images import cifar10_subset, digit_domains, mnist, qmnist_writers
from .tables import (
    airfoil,
    airline_tweets,
    boston_housing,
    celeba_attributes,
    gas_turbine,
    kddcup99_tcp,
    movielens_100k,
    sentiment140,
)

__all__ = ["PARTY", "available", "divided_by_party", "open", "read_data"]


# Data sets by name, for configuration files and the command line.


_BUNDLED: dict[str, Callable[..., Dataset]] = {name: getattr(bundled, name) for name in bundled.__all__}
_FOLDER: dict[str, Callable[..., Dataset]] = {
    load.__name__: load
    for load in (
        digit_domains,
        cifar10_subset,
        mnist,
        qmnist_writers,
        airfoil,
        boston_housing,
        celeba_attributes,
        gas_turbine,
        kddcup99_tcp,
        movielens_100k,
        airline_tweets,
        sentiment140,
    )
}


@checked_call
def available() -> dict[str, str]:
    """Map each name that `open` knows to a line on the data set; those in a folder need ``ATOLL_DATA``."""
    return {name: str(load.__doc__).partition("\n")[0] for name, load in sorted((_BUNDLED | _FOLDER).items())}


def open(name: str, **options: Any) -> Dataset:  # noqa: A001 - read as atoll.data.open("mnist")
    """Load a data set by name.

    Args:
        name: one of `available`.
        options: passed to the loader of that name.

    Raises:
        DataError: an unknown name or option, or a missing or malformed file.
    """
    loaders = _BUNDLED | _FOLDER
    if name not in loaders:
        raise DataError(
            f"no data set {name!r}.{nearest(str(name), loaders)}", remedy=f"choose one of {', '.join(sorted(loaders))}"
        )
    known = inspect.unwrap(loaders[name]).__kwdefaults__ or {}
    for option in options:
        if option not in known:
            raise DataError(
                f"no option {option!r}.{nearest(option, known)}",
                where=f"data set {name!r}",
                remedy=f"its options are {', '.join(known)}",
            )
    return loaders[name](**options)


PARTY = "party"
"""The column that names the owner of each row."""
_PARTIES = {"digit_domains": "domain", "airline_tweets": "airline"}
_OWNERS = ("party", "party_train")


@checked_call
def read_data(
    data: str | Path,
    *,
    target: str | None = None,
    text: str | None = None,
    party: str | None = None,
    missing: Missing = None,
    size: int | None = None,
    test: float = 0.2,
    vectors: TextVectors | WordVectors | Literal[False] | None = None,
    seed: int | Rng = 0,
    folder: Folder = None,
    delimiter: str = ",",
    decimal: str = ".",
    encoding: str = "utf-8",
) -> Dataset:
    """Read what a command's DATA names, with test rows and, where there is one, a column ``party``.

    | DATA | what it is |
    | --- | --- |
    | ``mnist`` | a data set by name, see `available` |
    | ``scans.npz`` | arrays ``x``, ``y``, and perhaps ``x_test``, ``y_test`` and ``party``, the owner of each row |
    | ``scans.csv`` | a table with a column ``target``; ``text`` names a column of texts, ``party`` one of owners |

    A set of texts gets vectors, fitted on the training rows alone.

    Args:
        data: a name or a file.
        target: target column of a table.
        text: text column of a table, from which all features come.
        party: column or array of owners; by default an archive's ``party``, and the usual one of data sets by name.
        missing: labels that mean "no label", besides empty cells and NaN.
        size: number of training rows to keep, drawn by seed; all by default.
        test: number of test rows, or their share, to draw from rows with a label; if the data have test rows of their own, a number takes that many of
            them and a share is ignored. 0 draws none, so that all rows stay together.
        vectors: how texts become vectors: `TextVectors`, the default, or `WordVectors`; ``False`` leaves texts as they are.
        seed: draws rows.
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.
        delimiter: the separator of the values of a table.
        decimal: its decimal sign, "." or ",".
        encoding: its encoding.

    Raises:
        DataError: an unknown name, a missing file, no target, or too few rows.
    """
    form = {"delimiter": delimiter, "decimal": decimal, "encoding": encoding}
    whole, text = _read_rows(str(data), target, text, party, missing, folder, form)
    rng = root(seed).child("data")
    whole = _split_test(whole, test, rng)
    if size is not None:
        whole = _draw_rows(whole, size, rng.child("size"), "size").with_test(whole.test)
    if text is not None:
        return whole if vectors is False else with_text_vectors(whole, column=text, form=vectors or None)
    if "x" not in whole:
        raise DataError(
            f"there are no features: the columns are {', '.join(whole.columns)}",
            where=f"data set {whole.name!r}", remedy="name the column of texts: text=",
        )  # fmt: skip
    return whole


@checked_call
def divided_by_party(dataset: Dataset, *, parties: int = 20, alpha: float | None = 0.5, seed: int | Rng = 0) -> Islands:
    """Divide rows among clients: by the column ``party`` if there is one, else by class (`dirichlet`), or evenly if labels are missing or ``alpha`` is ``None``."""
    if PARTY in dataset:
        return natural(dataset, PARTY)
    known = bool(labelled_rows(dataset).all()) and dataset.task in ("classification", "binary")
    return (
        dirichlet(dataset, parties=parties, alpha=alpha, seed=seed)
        if known and alpha is not None
        else iid(dataset, parties=parties, seed=seed)
    )


def _read_rows(
    data: str,
    target: str | None,
    text: str | None,
    party: str | None,
    missing: Missing,
    folder: Folder,
    form: dict[str, Any],
) -> tuple[Dataset, str | None]:
    """The rows as they are, and the name of their text column if features come from it."""
    suffixes = "".join(Path(data).suffixes[-2:])
    if data.endswith(".npz"):
        _without_columns(data, target, text)
        return _own_archive(data, read_npz(data, missing=missing), party), None
    if data.endswith(".csv") or suffixes == ".csv.gz":
        return _of_table(data, target, text, party, missing, form), text
    if data not in available():
        raise DataError(
            f"DATA {data!r} is neither a file .npz or .csv nor the name of a data set.{nearest(data, available())}",
            where="DATA", remedy=f"give a file, or one of {', '.join(available())}",
        )  # fmt: skip
    options: dict[str, Any] = {"folder": folder} if folder is not None and data not in _bundled_names() else {}
    made = open(data, **options)
    owner = party or _PARTIES.get(data)
    if owner is not None:
        made = _add_owner(made, owner)
    return made, text or ("text" if "x" not in made and "text" in made else None)


def _bundled_names() -> tuple[str, ...]:
    from .. import bundled

    return tuple(bundled.__all__)


def _of_table(
    data: str, target: str | None, text: str | None, party: str | None, missing: Missing, form: dict[str, Any]
) -> Dataset:
    if target is None:
        raise DataError("the target column is not set", where=Path(data).name, remedy="name it: target=")
    keep = tuple(column for column in (text, party) if column is not None)
    made = read_csv(data, target=target, features=() if text else None, keep=keep, missing=missing, **form)
    return made if party is None else _add_owner(made, party)


def _add_owner(made: Dataset, owner: str) -> Dataset:
    """The same rows with the owners, as texts, in the column ``party``."""

    def of(rows: Dataset) -> Dataset:
        columns = {PARTY if name == owner else name: rows[name] for name in rows.columns}
        columns[PARTY] = np.asarray(columns[PARTY] if owner in rows else rows[owner]).astype(np.str_)
        return Dataset._of(columns, None, len(rows), rows.about)

    test = None if made.test is None else (of(made.test) if owner in made.test else made.test)
    return of(made).with_test(test)


def _without_columns(data: str, target: str | None, text: str | None) -> None:
    """Refuse columns of an archive, which has arrays of fixed names."""
    for option, column in {"target": target, "text": text}.items():
        if column is not None:
            raise DataError(
                f"an archive has no column {column!r}",
                where=Path(data).name,
                remedy=f"leave out {option}: the labels of an archive are its array y, and its features the array x",
            )


def _own_archive(data: str, made: Dataset, party: str | None) -> Dataset:
    """The rows of an archive with the owners that it names."""
    have = names_in(data)
    if party is not None and party not in have:
        raise DataError(
            f"no array {party!r} of owners.{nearest(party, have)}",
            where=Path(data).name,
            remedy=f"name one of {', '.join(have)}, or leave out the party",
        )
    found = party or next((name for name in _OWNERS if name in have), None)
    if found is None:
        return made
    owners = arrays_of(data, (found,))[0]
    if owners.shape != (len(made),):
        raise DataError(
            f"array {found!r} has shape {owners.shape} for {len(made)} rows",
            where=Path(data).name,
            remedy="give each row one owner",
        )
    return made.with_columns({PARTY: owners.astype(np.str_)}).with_test(made.test)


def _split_test(whole: Dataset, test: float, rng: Rng) -> Dataset:
    """The rows with test rows: their own, or some that have a label; 0 draws none."""
    if whole.test is None and test == 0:
        return whole
    if whole.test is not None:
        own = whole.test
        return (
            whole
            if test < 1 or test >= len(own)
            else whole.with_test(_draw_rows(own, int(test), rng.child("test"), "test"))
        )
    there = np.flatnonzero(labelled_rows(whole))
    count = int(test) if test >= 1 else round(test * len(there))
    if not 0 < count < len(there):
        raise DataError(
            f"test={test} takes {count} of the {len(there)} rows with a label",
            where=f"data set {whole.name!r}", remedy="leave rows with a label to train on and to test on",
        )  # fmt: skip
    chosen = np.zeros(len(whole), np.bool_)
    chosen[rng.child("test").generator().permutation(there)[:count]] = True
    return whole.take(~chosen).with_test(whole.take(chosen))


def _draw_rows(rows: Dataset, size: int, rng: Rng, what: str) -> Dataset:
    if not 0 < size <= len(rows):
        raise DataError(
            f"{what}={size} of {len(rows):,} rows",
            where=f"data set {rows.name!r}",
            remedy=f"ask for 1 to {len(rows):,}",
        )
    return rows.take(np.sort(rng.generator().permutation(len(rows))[:size]))
