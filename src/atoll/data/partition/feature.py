"""Partitioners by what rows are: a column that names the client, or a feature that clients share unevenly."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from ..dataset import Dataset, root
from ..islands import Islands
from ._rows import Counts, check_between, check_parties, check_sizes, even

# The natural partition of the data: by writer, user, year or airline.


@checked_call
def natural(
    dataset: Dataset, column: str, *, parties: int | None = None, seed: int | Rng = 0, min_size: int = 1
) -> Islands:
    """Make one client of each distinct value of a column, in sorted order, named by the value.

    Args:
        dataset: the rows to divide.
        column: the column that names the owner of each row.
        parties: merge the values at random into this many clients, with numbers of values as even as possible;
            these are called "client-0" and so on.
        seed: used only for merging.
        min_size: minimum number of rows of a client.

    Raises:
        DataError: there is no such column, it has fewer values than ``parties``, or a client has fewer than ``min_size`` rows.
    """
    keys, owner = np.unique(dataset[column], return_inverse=True)
    if dataset[column].ndim != 1:
        raise DataError(
            f"column {column!r} has {dataset[column].ndim} dimensions",
            where=f"data set {dataset.name!r}",
            remedy="choose a column with one value per row",
        )
    scheme = f"natural({column!r})"
    if parties is not None:
        check_parties(dataset, parties, scheme)
        if parties > len(keys):
            raise DataError(
                f"parties={parties} of {len(keys)} values of {column!r}",
                where=f"data set {dataset.name!r}",
                remedy=f"ask for at most {len(keys)}",
            )
        group = np.arange(len(keys)) % parties
        owner = root(seed).child("natural").generator().permutation(group)[owner]
    count = len(keys) if parties is None else parties
    sizes = np.bincount(owner, minlength=count)
    remedy = "merge values with parties=, or take(...) only rows of larger clients"
    check_sizes(sizes, dataset, scheme, min_size=min_size, allow_empty=True, remedy=remedy)
    return Islands.from_owner(dataset, owner, count, keys=keys if parties is None else None, scheme=scheme)


@checked_call
def feature_skew(
    dataset: Dataset,
    *,
    parties: int,
    by: int | str = 0,
    mix: float = 0.0,
    seed: int | Rng = 0,
    min_size: int = 1,
    allow_empty: bool = False,
) -> Islands:
    """Sort by one value per row and cut into equal pieces: each client gets one quantile range.

    For skew by noise level or rotation, use `atoll.data.corrupt` with `GradedNoise` or `Rotate`.

    Args:
        dataset: the rows to divide.
        parties: number of clients.
        by: the value: a feature's number or name, or the name of a column such as ``"y"``.
        mix: fraction of the rows that are dealt out at random instead; 1 is the uniform partition.
        seed: breaks ties, chooses the mixed rows, and shuffles the ranges among the clients.
        min_size: minimum number of rows of a client.
        allow_empty: whether clients may have no rows.

    Raises:
        DataError: there is no such feature, or a client has fewer than ``min_size`` rows.
    """
    scheme = f"feature_skew(by={by!r}{f', mix={mix:g}' if mix else ''})"
    check_parties(dataset, parties, scheme)
    check_between(mix, 0.0, 1.0, "mix", scheme)
    values = _values_of_feature(dataset, by, scheme)
    rng = root(seed).child("feature_skew")
    sizes = even(len(dataset), parties)[rng.child("sizes").generator().permutation(parties)]
    check_sizes(sizes, dataset, scheme, min_size=min_size, allow_empty=allow_empty, remedy="ask for fewer parties")
    order = _mix_order(values, mix, rng.child("rows").generator())
    # The clients take the quantile ranges in random order.
    turn = rng.child("ranges").generator().permutation(parties)
    owner = np.empty(len(dataset), np.int64)
    owner[order] = np.repeat(turn, sizes[turn])
    return Islands.from_owner(dataset, owner, parties, scheme=scheme)


def _mix_order(values: NDArray[np.float64], mix: float, rng: np.random.Generator) -> Counts:
    """Row numbers sorted by value, with a random fraction of the positions shuffled among themselves."""
    shuffled = rng.permutation(len(values))
    order = shuffled[np.argsort(values[shuffled], kind="stable")]
    loose = rng.choice(len(values), round(mix * len(values)), replace=False)
    order[loose] = order[rng.permutation(loose)]
    return order


def _values_of_feature(dataset: Dataset, by: int | str, scheme: str) -> NDArray[np.float64]:
    if isinstance(by, str) and by in dataset:
        values = dataset[by]
        if values.ndim == 1 and values.dtype.kind in "biuf":
            return values.astype(np.float64)
        raise DataError(f"column {by!r} has no single number per row", where=scheme, remedy="choose another column")
    names = dataset.about.features
    number = names.index(by) if by in names else by
    x = dataset.x.reshape(len(dataset), -1)
    if not isinstance(number, int) or not 0 <= number < x.shape[1]:
        raise DataError(
            f"no feature or column {by!r}",
            where=f"{scheme} of {dataset.name!r}",
            remedy=f"give a number in 0..{x.shape[1] - 1}, or one of {', '.join((*names, *dataset.columns))}",
        )
    return x[:, number].astype(np.float64)
