"""One table cut for several parties that hold different columns of it: for vertical learning, and for transfer between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.errors import DataError, nearest

from .dataset import Dataset, root

__all__ = ["transfer", "vertical"]

Parties = int | Mapping[str, Sequence[str | int]]
Rows = NDArray[np.int64]


@checked_call
def vertical(
    dataset: Dataset, *, parties: Parties = 2, shared: float = 1.0, labels: Sequence[str] = (), seed: int | Rng = 0
) -> dict[str, Dataset]:
    """Cut a table by columns: all parties have the shared rows, each with features of its own, in an order of its own, under one column ``id``.

    ``round(shared * rows)`` random rows are at every party. The others are dealt out: each is at one party alone, as many at each as possible.

    Args:
        dataset: the table, without test rows.
        parties: maps each party to its features, by name or number; or a number of parties, which get the features in turn: "guest", then "host", or
            "host-1" and so on. The first party is the guest. Two parties may have the same feature.
        shared: share of the rows that all parties have, between 0 and 1.
        labels: the parties that have ``y``; by default the first one. Columns beside ``x``, ``y`` and ``id`` are at the first party.
        seed: chooses the rows, their order at each party, and the ids where the table has no column ``id``.

    Returns:
        The table of each party, the guest's first.

    Raises:
        DataError: there is no such feature or party, an id stands twice, or a party would have no row.

    Example:
        >>> table = Dataset({"x": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "y": [0, 1]}, features=["a", "b", "c"])
        >>> tables = vertical(table, parties={"bank": ["a"], "shop": ["b", "c"]})
        >>> {name: (part.about.features, "y" in part) for name, part in tables.items()}
        {'bank': (('a',), True), 'shop': (('b', 'c'), False)}
    """
    names = _features_of(dataset, parties)
    where = f"vertical of {dataset.name!r}"
    for party in labels:
        if party not in names:
            raise DataError(f"labels of {party!r}.{nearest(party, names)}", where=where, remedy=f"choose from {list(names)}")  # fmt: skip
    having = labels or list(names)[:1]
    return _cut(dataset, names, shared, dict.fromkeys(having, 1.0), root(seed).child("vertical"), where)


@checked_call
def transfer(
    dataset: Dataset,
    *,
    parties: Parties = 2,
    overlap: float = 0.1,
    labelled: float | Mapping[str, float] = 1.0,
    seed: int | Rng = 0,
) -> dict[str, Dataset]:
    """Cut a table by rows, columns and labels: few rows are shared, and a party may have labels for some of its rows.

    Rows and columns are cut as by `vertical` with ``shared=overlap``. Labels that a party lacks are nowhere in its table: its column ``labelled`` says which rows have one.

    Args:
        dataset: the table, without test rows.
        parties: see `vertical`.
        overlap: share of the rows that all parties have, between 0 and 1.
        labelled: share of its rows whose label a party has, by party; one number is that of the first party. A party with 0, or none, has no ``y``.
        seed: chooses rows, orders, ids and labels.

    Returns:
        The table of each party, the first party's first.

    Raises:
        DataError: there is no such feature or party, a share is not between 0 and 1, an id stands twice, or a party would have no row.
    """
    names = _features_of(dataset, parties)
    where = f"transfer of {dataset.name!r}"
    shares = dict(labelled) if isinstance(labelled, Mapping) else {next(iter(names)): float(labelled)}
    for party, share in shares.items():
        if party not in names or not 0 <= share <= 1:
            raise DataError(
                f"labelled={share} of {party!r}.{nearest(party, names) if party not in names else ''}",
                where=where,
                remedy=f"give a share between 0 and 1 to some of {list(names)}",
            )
    return _cut(dataset, names, overlap, shares, root(seed).child("transfer"), where)


def _cut(
    dataset: Dataset, names: Mapping[str, Rows], shared: float, labelled: Mapping[str, float], rng: Rng, where: str
) -> dict[str, Dataset]:
    if dataset.test is not None:
        raise DataError(
            "the table has test rows that the server would keep",
            where=where,
            remedy="load it with test=0: the job holds out rows by their ids",
        )
    if not 0 <= shared <= 1:
        raise DataError(f"a share of {shared}", where=where, remedy="choose it between 0 and 1")
    ids, about = _ids_of(dataset, rng, where), dataset.about
    holders = _deal_rows(len(dataset), shared, len(names), rng)
    made: dict[str, Dataset] = {}
    for k, (party, numbers) in enumerate(names.items()):
        rows = rng.child("order", k).generator().permutation(np.flatnonzero((holders < 0) | (holders == k)))
        if not len(rows):
            raise DataError(f"{party!r} has no row", where=where, remedy="share more rows, or use a larger table")
        columns = {"id": ids[rows], "x": dataset.x[rows][:, numbers]}
        if k == 0:
            columns |= {name: dataset[name][rows] for name in dataset.columns if name not in ("id", "x", "y", "labelled")}  # fmt: skip
        share = labelled.get(party, 0.0)
        with_labels = "y" in dataset and share > 0
        if with_labels:
            columns["y"] = dataset.y[rows]
            known = dataset["labelled"][rows] if "labelled" in dataset else np.ones(len(rows), dtype=bool)
            if share < 1:
                keep = rng.child("labels", k).generator().permutation(len(rows)) < round(share * len(rows))
                known = known & keep.reshape(-1, *[1] * (known.ndim - 1))
            if not known.all():
                columns["labelled"] = known
        features = tuple(about.features[i] for i in numbers) if about.features else ()
        made[party] = Dataset(
            columns,
            task=about.task if with_labels else "unlabelled",
            classes=about.classes if with_labels else None,
            name=f"{about.name} ({party})",
            citation=about.citation,
            labels=about.labels if with_labels else (),
            features=features,
            missing_features=about.missing_features,
            categories={name: words for name, words in about.categories.items() if name in features},
        )
    return made


def _features_of(dataset: Dataset, parties: Parties) -> dict[str, Rows]:
    """The numbers of each party's features."""
    where = f"parties of {dataset.name!r}"
    if "x" not in dataset or dataset.x.ndim != 2:
        raise DataError("there is no table of features", where=where, remedy="give a data set with x of (rows, features)")  # fmt: skip
    count, known = dataset.x.shape[1], dataset.about.features
    if isinstance(parties, int):
        if not 2 <= parties <= count:
            raise DataError(f"parties={parties} of {count} features", where=where, remedy=f"ask for 2 to {count}")
        hosts = ["host"] if parties == 2 else [f"host-{i + 1}" for i in range(parties - 1)]
        return dict(zip(["guest", *hosts], np.array_split(np.arange(count), parties), strict=True))
    if len(parties) < 2:
        raise DataError(f"{len(parties)} party", where=where, remedy="name two or more, with the features of each")
    found = {}
    for party, wanted in parties.items():
        numbers = [known.index(one) if isinstance(one, str) and one in known else one for one in wanted]
        strange = [one for one in numbers if isinstance(one, str) or not 0 <= one < count]
        if strange or len(set(numbers)) != len(numbers) or not numbers:
            problem = f"no feature {strange[0]!r}.{nearest(strange[0], known)}" if strange else f"features {list(wanted)}"  # fmt: skip
            raise DataError(
                problem,
                where=f"party {party!r} of {dataset.name!r}",
                remedy=f"name each of its features once: {', '.join(known[:20]) or f'0 to {count - 1}'}",
            )
        found[str(party)] = np.array(numbers, dtype=np.int64)
    return found


def _deal_rows(count: int, shared: float, parties: int, rng: Rng) -> Rows:
    """For each row the party that has it alone, -1 for all."""
    order = rng.child("rows").generator().permutation(count)
    alone = order[round(shared * count) :]
    holders = np.full(count, -1, dtype=np.int64)
    holders[alone] = np.arange(len(alone)) % parties
    return holders


def _ids_of(dataset: Dataset, rng: Rng, where: str) -> NDArray[np.generic]:
    if "id" not in dataset:
        return rng.child("ids").generator().permutation(len(dataset))
    ids = dataset["id"]
    values, counts = np.unique(ids, return_counts=True)
    if len(values) < len(ids):
        raise DataError(
            f"{int((counts > 1).sum())} ids stand in several rows", where=where, remedy="give each row an id of its own"
        )
    return ids
