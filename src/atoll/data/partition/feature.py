"""Feature skew: clients see different parts of the feature space."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from ..dataset import Dataset, root
from ..islands import Islands
from ._rows import Counts, check_between, check_parties, check_sizes, even


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
    values = _values(dataset, by, scheme)
    rng = root(seed).child("feature_skew")
    sizes = even(len(dataset), parties)[rng.child("sizes").generator().permutation(parties)]
    check_sizes(sizes, dataset, scheme, min_size=min_size, allow_empty=allow_empty, remedy="ask for fewer parties")
    order = _mixed(values, mix, rng.child("rows").generator())
    # The clients take the quantile ranges in random order.
    turn = rng.child("ranges").generator().permutation(parties)
    owner = np.empty(len(dataset), np.int64)
    owner[order] = np.repeat(turn, sizes[turn])
    return Islands.from_owner(dataset, owner, parties, scheme=scheme)


def _mixed(values: NDArray[np.float64], mix: float, rng: np.random.Generator) -> Counts:
    """Row numbers sorted by value, with a random fraction of the positions shuffled among themselves."""
    shuffled = rng.permutation(len(values))
    order = shuffled[np.argsort(values[shuffled], kind="stable")]
    loose = rng.choice(len(values), round(mix * len(values)), replace=False)
    order[loose] = order[rng.permutation(loose)]
    return order


def _values(dataset: Dataset, by: int | str, scheme: str) -> NDArray[np.float64]:
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
